"""How retention reads the tables and removes rows: by files (`rows_in_files`), or by SQL (`rows_in_sql`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from checkback.reconcile.ended_transactions import KEY, WHOSE, repeated
from checkback.storage.rejected_ops import PLACE
from checkback.storage.schemas import ROW_TIMES, TOPIC_PREFIX, arrow_schema
from checkback.storage.timestamps import EPOCH, time_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from checkback.reconcile.ended_transactions import Mask
    from checkback.storage.log.snapshot_files import DataFile

    #: by half queue, the first and the last offset
    Ranges: TypeAlias = Mapping[int, tuple[int, int]]

#: Tables whose rows follow their half messages, in this order: without its delivery a decision would seem to wait.
FOLLOWING = ("op", "check_requests", "check_answers", "rejected", "decisions", "deliveries", "unpublished")


@dataclass
class Removed:
    """What retention has removed from a table, or would: rows, and bytes (of mixed files by their share).

    ``bodies``, ``of_bodies``: the bodies that it has emptied, and their bytes. SQL does not tell the bytes of rows.
    ``kept``: why rows stay.
    """

    rows: int = 0
    bytes: int = 0
    bodies: int = 0
    of_bodies: int = 0
    kept: tuple[str, ...] = ()


class Group(Protocol):
    """Rows of a table that are looked at together."""

    @property
    def rows(self) -> pa.Table:
        """KEY (null = not about a half message), of `half` WHOSE, of `decisions` state, their time.

        Of `discarded` and topics batch_id.
        """


@dataclass(frozen=True)
class FileGroup:
    """Files of a table, the number of rows of each, and all of these, see `Group`."""

    files: Sequence[DataFile]
    sizes: Sequence[int]
    rows: pa.Table


G = TypeVar("G", bound=Group)


class RetainedRows(Protocol[G]):
    """The rows of the tables. Raises StorageError. Times: ms."""

    @property
    def removed(self) -> dict[str, Removed]:
        """What was removed, by table."""

    def last_batch(self, before: int | None = None) -> int | None:
        """Time of the last complete batch, up to a time; None = there is none."""

    def groups(self, name: str, before: int) -> Iterator[G]:
        """All rows from before a time, and maybe others, the oldest first, some million together."""

    def rows(self, name: str, columns: Sequence[str], ranges: Ranges | None = None) -> pa.Table:
        """All rows, or those in these ranges of offsets and maybe others; empty if there is no such table."""

    def halves(self, ranges: Ranges, columns: Sequence[str]) -> tuple[pa.Table, pa.Table]:
        """As `rows`, of `half`: those that stay, and those that a dry run leaves though it counts the expired ones."""

    def least_since(self, since: int, ranges: Ranges) -> dict[int, int]:
        """By half queue the least offset that has landed since then, if it may be in its range.

        Only of queues of files, where any offset lands: others have an owner, who gives them in turn.
        """

    def published_since(self, name: str, since: int, messages: pa.Table) -> pa.Table:
        """Those of the messages that a topic's table has as published since then: half_queue_id, half_queue_offset."""

    def resumed(self, queue: int) -> pa.Table:
        """KEY and properties of the half messages that operators have sent: those that were resumed are among them.

        ``queue``: operator.queue.
        """

    def waits(self, rows: pa.Table) -> pa.Array:
        """Mask of the rows of `unpublished` that wait there, see published_notes."""

    def remove(self, name: str, group: G, gone: Mask, horizon: int) -> None:
        """Remove the rows of a group that the mask names, as far as that is worth it."""

    def make_runs(self, horizon: int) -> None:
        """Of the batches finished before the horizon `batches` keeps runs: by them readers know which rows are whole.

        A run is complete when its last batch is: with one under way at the horizon none of it was there as of then.
        """

    def empty_bodies(self, before: int, over: Callable[[pa.Table], Mask]) -> None:
        """Empty bodies of half messages from before a time. ``over``: mask of those, of a group, that no one needs."""


def time_column(name: str) -> str:
    """The column with a row's time."""
    return ROW_TIMES.get(name, "published_at")


def until(name: str, horizon: int) -> dict[str, tuple[datetime, datetime]]:
    """The span of a table's rows from before the horizon (ms)."""
    return {time_column(name): (EPOCH, time_of(horizon))}


def at(ms: int) -> pa.Scalar:
    """A time as the tables have it."""
    return pa.scalar(ms * 1000, arrow_schema("half").field("store_timestamp").type)


def place_of(name: str) -> tuple[str, ...]:
    """The columns of KEY in a table, where its rows are about half messages."""
    there = arrow_schema(name).names
    of_half = tuple(f"half_{column}" for column in KEY)
    return next((columns for columns in (of_half, KEY) if set(columns) <= set(there)), ())


def columns_of_group(name: str) -> tuple[str, ...]:
    """The columns that `keyed` needs of a table."""
    time = time_column(name)
    return ("source", "file", "raw", "reason", time) if name == "rejected" else (*place_of(name), *_also(name), time)


def _also(name: str) -> tuple[str, ...]:
    of_batch = name == "discarded" or name.startswith(TOPIC_PREFIX)
    return ("batch_id",) if of_batch else {"half": WHOSE, "decisions": ("state",)}.get(name, ())


def keyed(name: str, rows: pa.Table) -> pa.Table:
    """The rows of a Group: the KEY of a rejected op is in its text, which `reconcile` has written."""
    if name == "rejected":
        of_op = pc.and_(pc.equal(rows.column("source"), "op"), pc.is_null(rows.column("file")))
        place = pc.extract_regex(pc.if_else(of_op, rows.column("raw"), None), PLACE)
        again = repeated(rows)
        parts = [
            pc.coalesce(pc.struct_field(place, each).cast(arrow_schema("half").field(each).type), again.column(each))
            for each in KEY
        ]
    else:
        parts = [rows.column(each) for each in place_of(name)]
    more = {column: rows.column(column) for column in (*_also(name), time_column(name))}
    return pa.table([*parts, *more.values()], names=[*KEY[: len(parts)], *more])


def ranges_of(rows: pa.Table) -> Ranges:
    """The ranges of offsets that rows (KEY) are in."""
    found = rows.select(list(KEY)).drop_null().group_by("queue_id").aggregate([("queue_offset", "min_max")])
    spans = found.column("queue_offset_min_max").to_pylist()
    return {
        queue: (span["min"], span["max"])
        for queue, span in zip(found.column("queue_id").to_pylist(), spans, strict=True)
    }
