"""`checkback resolve`, `cancel` and `resume`: operator actions."""

from __future__ import annotations

from typing import Annotated

import typer

from checkback.commands.options import (
    Actor,
    Config,
    Debug,
    Json,
    OneGroup,
    Overrides,
    QueueId,
    QueueOffset,
    Reason,
    SinceEver,
    Tx,
    Yes,
    app,
    prepared_for_tables,
)
from checkback.commands.printing import print_table


@app.command()
def resolve(
    transaction_id: Tx,
    actor: Actor,
    reason: Reason,
    commit: Annotated[bool, typer.Option("--commit", help="It is committed: the message is published.")] = False,
    rollback: Annotated[bool, typer.Option("--rollback", help="It is rolled back: the message is dropped.")] = False,
    group: OneGroup = None,
    queue_id: QueueId = None,
    queue_offset: QueueOffset = None,
    yes: Yes = False,
    as_json: Json = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """End a pending transaction by hand, with an op of the operator."""
    from checkback.operate import command

    state = command.state_of(commit, rollback)
    request = command.Request.of(transaction_id, group, queue_id, queue_offset, actor, reason, state)
    settings = prepared_for_tables(config, overrides, debug)
    command.run(settings, request, yes, as_json, print_table)


@app.command()
def cancel(
    transaction_id: Tx,
    actor: Actor,
    reason: Reason,
    group: OneGroup = None,
    queue_id: QueueId = None,
    queue_offset: QueueOffset = None,
    yes: Yes = False,
    as_json: Json = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """End a scheduled message before its time: it is kept in `discarded`, and not published."""
    from checkback.operate import command
    from checkback.operate.operations import CANCEL

    request = command.Request.of(transaction_id, group, queue_id, queue_offset, actor, reason, CANCEL)
    settings = prepared_for_tables(config, overrides, debug)
    command.run(settings, request, yes, as_json, print_table)


@app.command()
def resume(
    actor: Actor,
    reason: Reason,
    transaction_id: Annotated[str | None, typer.Argument(metavar="TX", help="The transaction id.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All that were discarded: of --group, --since, if these are given.")
    ] = False,
    group: OneGroup = None,
    since: SinceEver = None,
    queue_id: QueueId = None,
    queue_offset: QueueOffset = None,
    yes: Yes = False,
    as_json: Json = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Make a discarded message, or all, new half messages, whose producers are checked back again."""
    from checkback.inspect.versions.as_of import parse_as_of
    from checkback.operate import command

    request = command.resume_request(
        transaction_id, everything, group, parse_as_of(since), queue_id, queue_offset, actor, reason
    )
    settings = prepared_for_tables(config, overrides, debug)
    command.run(settings, request, yes, as_json, print_table)
