"""`checkback consume`: the messages of a topic; `consumers` and `reconsume`: the consumer groups."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from checkback.commands.answering import say
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
from checkback.commands.printing import console, print_line, print_table, wait_for_reader
from checkback.errors import SettingsError, StorageError

if TYPE_CHECKING:
    from checkback.consumer.browse import Browser
    from checkback.consumer.group.group_lag import GroupLag
    from checkback.consumer.reconsume import Judged
    from checkback.filter import MessageSelector
    from checkback.storage.tables import Tables

#: dead letters that `consumers GROUP` shows: those that were given up first
LETTERS = 10
#: pause between two looks for new batches (s)
POLL_S = 0.2

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
ConsumerGroup = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]
Tag = Annotated[str | None, typer.Option("--tag", metavar="TAGS", help="Only messages with these tags: 'A || B'.")]
Sql = Annotated[
    str | None, typer.Option("--sql", metavar="EXPRESSION", help="Only those for which it is true: 'amount > 5'.")
]
From = Annotated[
    str,
    typer.Option("--from", metavar="first|last|TIME|BATCH", help="Where to begin; TIME as --as-of takes it."),
]
Follow = Annotated[bool, typer.Option("--follow", help="Go on with new messages, until Ctrl-C.")]
Bodies = Annotated[bool, typer.Option("--bodies", help="Show the bodies, too: as text, or base64.")]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="End after N messages.")]


@app.command()
def consume(
    topic: Topic,
    tag: Tag = None,
    sql: Sql = None,
    start: From = "first",
    follow: Follow = False,
    limit: Limit = None,
    bodies: Bodies = False,
    as_json: Json = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Show the messages of a topic, in order; no consumer group is joined, nothing is written."""
    settings = prepared_for_tables(config, overrides, debug)
    from checkback.consumer.browse import Browser, has_topic
    from checkback.consumer.consume_from_where import parse_start
    from checkback.consumer.storage import consumer_tables, refuse_no_tables

    selector = _selector(tag, sql)
    begin = parse_start(start, "--from")
    tables, _ = consumer_tables(settings)
    if not has_topic(tables, topic):
        refuse_no_tables(tables)
        if not follow:
            raise SettingsError("there is no such topic", topic, "a topic is there once its first message is published")
    with suppress(KeyboardInterrupt, BrokenPipeError):  # Ctrl-C, `| head`
        _print_messages(Browser(tables, topic, selector, begin), follow, limit, bodies, as_json)


def _print_messages(browser: Browser, follow: bool, limit: int | None, bodies: bool, as_json: bool) -> None:
    from checkback.consumer.message_lines import header, json_line, text_line

    line = json_line if as_json else text_line
    if not as_json:
        print_line(header(bodies), flush=follow)
    count = 0
    failed: bool | None = None  # at the last look; None = nothing was read yet
    while True:
        shown = count
        try:
            for message in browser.read():
                print_line(line(message, bodies))
                count += 1
                if count == limit:
                    return
        except StorageError as error:  # a store that has been read may throttle for a while
            if failed is None:
                raise
            if not failed:
                say(str(error))
            failed = True
        else:
            failed = False
        if not follow:
            return
        if count > shown:
            print(end="", flush=True)
        if not wait_for_reader(POLL_S):
            return


def _selector(tag: str | None, sql: str | None) -> MessageSelector | None:
    """None = all messages. Raises SettingsError, SelectorError."""
    from checkback.filter import MessageSelector

    if tag is not None and sql is not None:
        raise SettingsError("a message is selected by either", "--tag, --sql", "give one of the two")
    if sql is not None:
        return MessageSelector.by_sql(sql)
    selector = MessageSelector.by_tag(tag)
    return selector if selector.columns or not selector.matches() else None


@app.command()
def consumers(
    group: Annotated[str | None, typer.Argument(metavar="GROUP", help="Only this group, with its queues.")] = None,
    as_json: Json = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Show the consumer groups: members, positions, lag, retries, dead letters."""
    settings = prepared_for_tables(config, overrides, debug)
    from checkback.consumer.group import lag_screen
    from checkback.consumer.group.lag_reader import consumer_lag
    from checkback.consumer.reconsume_command import message_json
    from checkback.consumer.storage import consumer_tables, refuse_no_tables

    tables, _ = consumer_tables(settings)
    now = _now_ms()
    found = consumer_lag(tables, now, group)
    if not found:
        refuse_no_tables(tables)
    letters = [] if group is None or not found[0].dead_letters else _given_up(tables, group)
    if as_json:
        first = {} if group is None else {"first_dead_letters": [message_json(one) for one in letters[:LETTERS]]}
        for each in found:
            print_line(json.dumps(lag_screen.as_json(each) | first))
        return
    if not found:
        print_line("There are no consumer groups.")
    for number, each in enumerate(found):
        if number:
            print_line("")
        _print_group(each, now)
    if group is not None:
        if letters:
            _print_letters(group, letters)
        _print_queues(found[0], now)


def _given_up(tables: Tables, group: str) -> list[Judged]:
    """The dead letters of a group that nobody has resumed, those given up first come first."""
    from checkback.consumer.reconsume import AGAIN
    from checkback.consumer.reconsume_command import dead_letters

    return [one for one in dead_letters(tables, group) if one.fate == AGAIN]


def _print_letters(group: str, letters: list[Judged]) -> None:
    from checkback.consumer import reconsume_command as reconsuming

    print_table(reconsuming.SHOWN[:-1], [reconsuming.cells(one)[:-1] for one in letters[:LETTERS]])
    if len(letters) > LETTERS:
        print_line(f"and {len(letters) - LETTERS} more dead letters, given up later")
    print_line(f"to have them consumed again: {reconsuming.command_of(group)} (shows it; --yes does it)")


def _print_group(group: GroupLag, now: int) -> None:
    from checkback.consumer.group import lag_screen

    console().print(lag_screen.heading(group, now))
    for columns, rows in (
        (lag_screen.TOPICS, lag_screen.topic_rows(group, now)),
        (lag_screen.HELD, lag_screen.held_rows(group, now)),
        (lag_screen.MEMBERS, lag_screen.member_rows(group)),
    ):
        if rows:
            print_table(columns, rows)


def _print_queues(group: GroupLag, now: int) -> None:
    from checkback.consumer.group import lag_screen

    rows = lag_screen.queue_rows(group, now)
    if rows:
        print_table(lag_screen.QUEUES, rows)
    idle = lag_screen.idle(group)
    if idle:
        print_line(idle)


@app.command()
def reconsume(
    group: ConsumerGroup,
    actor: Actor,
    reason: Reason,
    transaction_ids: Annotated[
        list[str] | None, typer.Option("--transaction-id", metavar="TX", help="This dead letter; may be repeated.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters of the group.")] = False,
    topic: OneTopic = None,
    yes: Yes = False,
    as_json: Json = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Have dead letters of a consumer group consumed again."""
    from checkback.consumer import reconsume_command
    from checkback.consumer.storage import consumer_tables

    asked = reconsume_command.Request.of(group, topic, transaction_ids or (), everything, actor, reason)
    tables, _ = consumer_tables(prepared_for_tables(config, overrides, debug))
    reconsume_command.run(tables, asked, yes, as_json, print_table, _now_ms)


def _now_ms() -> int:
    return round(time.time() * 1000)
