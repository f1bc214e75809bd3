"""`checkback group`: a consumer group's positions are set, or dropped."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from checkback.commands.options import (
    Actor,
    Config,
    Debug,
    Json,
    OneTopic,
    Overrides,
    Reason,
    Yes,
    app,
    prepared_for_tables,
)
from checkback.commands.printing import print_table

if TYPE_CHECKING:
    from checkback.consumer.group_command import Request
    from checkback.settings import Settings

group_app = typer.Typer(no_args_is_help=True, help="Set or drop the positions of a consumer group.")
app.add_typer(group_app, name="group")

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]


@group_app.command()
def reset(
    group: Group,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="first|last|TIME|BATCH",
            help="Where it goes on: TIME of a batch, as --as-of takes it, or a batch id.",
        ),
    ],
    actor: Actor,
    reason: Reason,
    topic: OneTopic = None,
    yes: Yes = False,
    as_json: Json = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Set a consumer group's position, in all of its topics or one; its members are stopped."""
    from checkback.consumer.group_command import Request

    request = Request.reset(group, topic, to, actor, reason)
    _run(prepared_for_tables(config, overrides, debug), request, yes, as_json)


@group_app.command("remove-topic")
def remove_topic(
    group: Group,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic that it no longer subscribes to.")],
    actor: Actor,
    reason: Reason,
    yes: Yes = False,
    as_json: Json = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Drop a topic that a consumer group no longer subscribes to: its positions and retries."""
    from checkback.consumer.group_command import Request

    request = Request.remove(group, topic, actor, reason)
    _run(prepared_for_tables(config, overrides, debug), request, yes, as_json)


@group_app.command()
def remove(
    group: Group,
    actor: Actor,
    reason: Reason,
    yes: Yes = False,
    as_json: Json = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Drop a consumer group: its positions and retries in all topics."""
    from checkback.consumer.group_command import Request

    request = Request.remove(group, None, actor, reason)
    _run(prepared_for_tables(config, overrides, debug), request, yes, as_json)


def _run(settings: Settings, request: Request, yes: bool, as_json: bool) -> None:
    from checkback.consumer import group_command
    from checkback.consumer.storage import consumer_tables

    tables, _ = consumer_tables(settings)
    group_command.run(tables, request, yes, as_json, print_table, lambda: round(time.time() * 1000))
