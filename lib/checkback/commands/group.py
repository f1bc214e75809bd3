"""`checkback group`: consumer groups, their positions, and their dead letters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from checkback.commands.options import Answer, Change, ConsumerGroup, OfTopic, command, group
from checkback.commands.printing import Done, Plan, change, console, print_line, print_objects, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkback.consumer.group.group_lag import GroupLag
    from checkback.consumer.group_positions import Request as PositionsRequest
    from checkback.consumer.reconsume import Judged
    from checkback.storage.tables import Tables

#: dead letters that `group describe` shows: those that were given up first
LETTERS = 10
#: dead letters that `group reconsume` shows
_SHOWN = 50


@command(group, "list")
def list_(options: Answer) -> None:
    """List the consumer groups: members, lag, retries, dead letters, by topic."""
    from checkback.consumer.group import lag_screen

    now = _now_ms()
    _, found = _lag(options, now)
    if not options.for_people:
        print_objects(map(lag_screen.as_json, found), options.output)
        return
    if not found:
        print_line("There are no consumer groups.")
    for number, each in enumerate(found):
        if number:
            print_line("")
        _print_group(each, now)


@command(group)
def describe(options: Answer, group: ConsumerGroup) -> None:
    """Show a consumer group, with its queues and the first of its dead letters."""
    from checkback.consumer import dead_letter_requests as reconsuming
    from checkback.consumer.group import lag_screen

    now = _now_ms()
    tables, [found] = _lag(options, now, group)
    letters = _given_up(tables, group) if found.dead_letters else []
    if not options.for_people:
        first = {"first_dead_letters": [reconsuming.as_json(one) for one in letters[:LETTERS]]}
        print_objects([lag_screen.as_json(found) | first], options.output)
        return
    _print_group(found, now)
    if letters:
        print_table(reconsuming.SHOWN[:-1], [reconsuming.cells(one)[:-1] for one in letters[:LETTERS]])
        if len(letters) > LETTERS:
            print_line(f"and {len(letters) - LETTERS} more dead letters, given up later")
        print_line(f"to have them consumed again: {reconsuming.command_of(group)} (shows it; --yes does it)")
    rows = lag_screen.queue_rows(found, now)
    if rows:
        print_table(lag_screen.QUEUES, rows)
    idle = lag_screen.idle(found)
    if idle:
        print_line(idle)


def _lag(options: Answer, now: int, group: str | None = None) -> tuple[Tables, list[GroupLag]]:
    """The groups, or this one. Raises SettingsError if there is none of this name, or there are no tables."""
    from checkback.consumer.group.lag_reader import consumer_lag

    tables = _tables(options)
    return tables, consumer_lag(tables, now, group)


def _tables(options: Answer) -> Tables:
    """Raises SettingsError if there are none, StateError if there are not all; StorageError."""
    from checkback.consumer.storage import consumer_tables, refuse_no_tables

    tables, _ = consumer_tables(options.settings())
    refuse_no_tables(tables)
    return tables


def _given_up(tables: Tables, group: str) -> list[Judged]:
    """The dead letters of a group that nobody has resumed, those given up first come first."""
    from checkback.consumer.dead_letter_requests import dead_letters
    from checkback.consumer.reconsume import AGAIN

    return [one for one in dead_letters(tables, group) if one.fate == AGAIN]


def _print_group(group: GroupLag, now: int) -> None:
    from checkback.consumer.group import lag_screen

    console().print(lag_screen.heading(group, now))
    for titles, rows in (
        (lag_screen.TOPICS, lag_screen.topic_rows(group, now)),
        (lag_screen.HELD, lag_screen.held_rows(group, now)),
        (lag_screen.MEMBERS, lag_screen.member_rows(group)),
    ):
        if rows:
            print_table(titles, rows)


@command(group)
def reset(
    options: Change,
    group: ConsumerGroup,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="first|last|TIME|BATCH",
            help="Where it goes on: TIME of a batch, as --as-of takes it, or a batch id.",
        ),
    ],
    topic: OfTopic = None,
) -> None:
    """Set a consumer group's position, in all of its topics or one; its members are stopped."""
    from checkback.consumer.group_positions import Request

    _set(options, Request.reset(group, topic, to, options.actor, options.reason))


@command(group, "remove-topic")
def remove_topic(
    options: Change,
    group: ConsumerGroup,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic that it no longer subscribes to.")],
) -> None:
    """Drop a topic that a consumer group no longer subscribes to: its positions and retries."""
    from checkback.consumer.group_positions import Request

    _set(options, Request.remove(group, topic, options.actor, options.reason))


@command(group)
def remove(options: Change, group: ConsumerGroup) -> None:
    """Drop a consumer group: its positions and retries in all topics."""
    from checkback.consumer.group_positions import Request

    _set(options, Request.remove(group, None, options.actor, options.reason))


def _set(options: Change, request: PositionsRequest) -> None:
    from checkback.consumer.group_positions import COLUMNS, act, as_json, follows, look
    from checkback.storage.timestamps import iso

    tables = _tables(options)
    plan = look(tables, request, _now_ms())

    def done() -> Iterator[Done]:
        now = _now_ms()
        act(tables, request, plan, now)
        told = as_json(request, plan, done=True) | {"at": iso(now)}
        yield Done(f"Done: {request.action} of the group {request.group}.", told)

    rows = [["?" if cell is None else cell for cell in each] for each in plan.topics]
    lines = [f"{request.action}: {follows(request, plan)}"]
    change(options, Plan(COLUMNS, rows, lines, as_json(request, plan, done=False)), done)


@command(group)
def reconsume(
    options: Change,
    group: ConsumerGroup,
    transaction_ids: Annotated[
        list[str] | None, typer.Option("--transaction-id", metavar="TX", help="This dead letter; may be repeated.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters of the group.")] = False,
    topic: OfTopic = None,
) -> None:
    """Have dead letters of a consumer group consumed again."""
    from checkback.consumer import dead_letter_requests as reconsuming
    from checkback.consumer.dead_letter_requests import ACTION
    from checkback.storage.timestamps import iso

    request = reconsuming.Request.of(group, topic, transaction_ids or (), everything, options.actor, options.reason)
    tables = _tables(options)
    judged = reconsuming.look(tables, request)
    chosen = reconsuming.chosen_of(request, judged)

    def done() -> Iterator[Done]:
        now = _now_ms()
        resumed = reconsuming.act(tables, request, chosen[: reconsuming.MOST], now)
        told = reconsuming.request_json(request, resumed, done=bool(resumed)) | {"at": iso(now)}
        yield Done(reconsuming.outcome(request, resumed, len(chosen)), told)

    more = [f"and {len(judged) - _SHOWN} more; -o json shows all"] if len(judged) > _SHOWN else []
    follows = reconsuming.follows(request, chosen)
    shown = reconsuming.request_json(request, judged, done=False) | {"follows": follows}
    rows = [reconsuming.cells(one) for one in judged[:_SHOWN]]
    plan = Plan(reconsuming.SHOWN, rows, [*more, f"{ACTION}: {follows}"], shown, nothing=not chosen)
    change(options, plan, done)


def _now_ms() -> int:
    return round(time.time() * 1000)
