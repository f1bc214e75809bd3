"""Where a group begins with a topic that it has never consumed (ConsumeFromWhere of RocketMQ)."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypeAlias

from checkback.consumer.position import Position, last_of
from checkback.errors import SettingsError
from checkback.query.versions.as_of import parse_as_of
from checkback.storage.timestamps import aware, ms_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from checkback.consumer.batch_listing import ListedBatch
    from checkback.consumer.batch_log import BatchLog

#: "first", "last", the time of a batch, or a batch id of the newest application
StartFrom: TypeAlias = Literal["first", "last"] | datetime | int


def check_start(start_from: StartFrom, now: datetime) -> None:
    """Raises SettingsError if it is none of them, or a datetime without a time zone or after ``now``."""
    if isinstance(start_from, datetime):
        if aware(start_from, "start_from") > now:
            what, fix = f"{start_from} is in the future", 'use "last" for what is published from now on'
            raise SettingsError(what, "start_from", fix)
    elif start_from not in ("first", "last") and (isinstance(start_from, bool) or not isinstance(start_from, int)):
        raise SettingsError("is not a start", "start_from", 'use "first", "last", a datetime or a batch id')


def parse_start(text: str, option: str) -> StartFrom:
    """What an option says: first, last, a batch id, or a time as `parse_as_of` takes it. Raises SettingsError."""
    if text == "first":
        return "first"
    if text == "last":
        return "last"
    if text.isdecimal() and text.isascii() and len(text) < 19:
        return int(text)
    try:
        moment = parse_as_of(text)
    except SettingsError as error:
        raise SettingsError(error.what, option, f"write first, last, a batch id, or a time: {error.fix}") from error
    assert moment is not None  # noqa: S101 - for the type: it was given
    return moment


def start_positions(log: BatchLog, start_from: StartFrom, topics: Iterable[str]) -> dict[str, Position]:
    """The position before the first message, by topic. Raises SettingsError if there is no such batch."""
    new = list(topics)
    return dict.fromkeys(new, start_position(log, start_from)) if new else {}


def start_position(log: BatchLog, start_from: StartFrom, name: str = "start_from") -> Position:
    """The position before the first message. Raises SettingsError, of ``name``, if there is no such batch."""
    if start_from == "first":
        return Position()
    if start_from == "last":
        listed = log.listed
        return listed.consumed_before(len(listed.batches))
    log = log.another()
    batches, listed = log.batches, log.listed
    if isinstance(start_from, datetime):
        time = ms_of(start_from)
        at = listed.first_since(time)
        return _within(log, at, lambda batch: batch.key.batch_time < time)
    newest = batches[-1].key.application if batches else ""
    found = [
        at
        for at, each in enumerate(batches)
        if each.key.application == newest and each.first_id <= start_from <= each.key.batch_id
    ]
    if not found:
        raise SettingsError(f"there is no batch {start_from}", name, "see the table batches")
    position = _within(log, found[0], lambda batch: batch.key.batch_id < start_from)
    run = batches[found[0]]
    if run.first_id == start_from:
        return position
    return position.after_batches([run.key._replace(batch_id=start_from - 1)], None)


def _within(log: BatchLog, at: int, before: Callable[[ListedBatch], bool]) -> Position:
    """The position before the batch, or within the run, at an index: those ``before`` it are consumed.

    A run that is one row of the table begins with its first batch.
    """
    position = log.listed.consumed_before(at)
    if at == len(log) or log.batches[at].first is None:
        return position
    consumed = [batch.key for batch in log.apart(log.batches[at]) if before(batch)]
    return position.after_batches(last_of(consumed).values(), consumed[-1].batch_time) if consumed else position
