"""A query's checkpoint, read only: query id, offset log (batches begun), commit log (batches done).

Spark writes ``offsets/N`` before batch N begins and ``commits/N`` when it is done
(https://spark.apache.org/docs/latest/streaming/, fault tolerance). An offset log entry has a line with the version, one
of metadata, and one for each source (org.apache.spark.sql.execution.streaming.checkpointing: StreamMetadata,
OffsetSeqLog); a source's line is Delta's (DeltaSourceOffset).

An entry is the batch's plan, identified by its time. Spark looks whether there is an entry, then writes it, and in an
object store the one replaces the other: a process that was stopped in between, or whose request was long under way,
replaces the entry of its successor. What was written by the first plan must not be completed by the second. Each commit
of a batch therefore records the time of its plan (`plan_versions`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checkback.errors import FencedError, StorageError
from checkback.storage.files import filesystem

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


#: what reading a damaged file raises
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
#: Spark stores its value in the checkpoint
PARTITIONS = "spark.sql.shuffle.partitions"


class UnreadableCheckpointError(StorageError):
    """A checkpoint file is not in Spark's format."""


@dataclass(frozen=True)
class StreamPosition:
    """A batch's end offset of a source.

    ``table``: Delta's table id. ``version``: read up to its file ``index``; -1 = none of it yet. ``starting``: the
    query's initial snapshot, which includes all rows of older versions.
    """

    table: str
    version: int
    index: int = -1
    starting: bool = False

    @property
    def seen(self) -> int:
        """Newest version that was read at least in part; -1 = none."""
        return self.version if self.starting or self.index >= 0 else self.version - 1

    @property
    def unread(self) -> int:
        """First version that may not have been read completely."""
        return 0 if self.starting else self.version


@dataclass(frozen=True)
class Batch:
    """An entry of the offset log. ``time``: the batch's time (ms). ``partitions``: those of the query's state.

    ``positions``: the sources' end offsets, in the query's order; None if a source had no rows yet.
    """

    batch_id: int
    time: int
    positions: tuple[StreamPosition | None, ...] = ()
    partitions: int | None = None

    def position(self, source: int) -> StreamPosition | None:
        """The end offset of a source, by its index in the query; None = it had no rows yet."""
        return self.positions[source] if source < len(self.positions) else None

    def unread(self, source: int) -> int:
        """First version of a source that this batch may not have read completely."""
        position = self.position(source)
        return 0 if position is None else position.unread


@dataclass(frozen=True)
class Checkpoint:
    """A query's checkpoint. ``newest``: the newest batch in the offset log; None = none yet."""

    query_id: str
    newest: Batch | None = None


def read_checkpoint(spark: SparkSession | None, place: str) -> Checkpoint | None:
    """The checkpoint in a folder; None if there is none. Raises StorageError if it cannot be read."""
    if not filesystem.exists(spark, f"{place}/metadata"):
        return None
    query_id = parse_metadata(filesystem.text(spark, f"{place}/metadata"), place)
    newest = max(numbers(spark, f"{place}/offsets"), default=None)
    return Checkpoint(query_id, None if newest is None else read_batch(spark, place, newest))


def last_done(spark: SparkSession | None, place: str) -> int:
    """The last batch id in the commit log; -1 = none."""
    return max(numbers(spark, f"{place}/commits"), default=-1)


def missing_schema(spark: SparkSession | None, place: str) -> str | None:
    """The path of a missing state schema file; None if all exist, or there is no state.

    Spark stores their absolute paths (OperatorStateMetadataV2.stateSchemaFilePaths): in a checkpoint that was moved or
    copied they point to the old location. Raises StorageError.
    """
    folder = f"{place}/state/0/_metadata/v2"
    newest = max(numbers(spark, folder), default=None)
    if newest is None:
        return None
    try:
        stores = json.loads(filesystem.text(spark, f"{folder}/{newest}").partition("\n")[2])["stateStoreInfo"]
        paths = [str(path) for store in stores for path in store["stateSchemaFilePaths"]]
    except _DAMAGE as error:
        raise _unreadable(f"{folder}/{newest}") from error
    return next((path for path in paths if not filesystem.exists(spark, path)), None)


def batches_since(spark: SparkSession | None, place: str, batch_id: int) -> list[Batch]:
    """The batches from ``batch_id`` on that are still in the offset log, in order.

    Raises StorageError if one cannot be read.
    """
    return [
        read_batch(spark, place, number) for number in sorted(numbers(spark, f"{place}/offsets")) if number >= batch_id
    ]


def parse_metadata(text: str, place: str) -> str:
    """The query's id. Raises UnreadableCheckpointError."""
    try:
        return str(json.loads(text)["id"])
    except _DAMAGE as error:
        raise _unreadable(f"{place}/metadata") from error


def parse_batch(batch_id: int, text: str, place: str) -> Batch:
    """The batch described by an entry of the offset log in ``place``. Raises UnreadableCheckpointError."""
    try:
        _, metadata, *sources = text.splitlines()
        about = json.loads(metadata)
        partitions = about.get("conf", {}).get(PARTITIONS)
        return Batch(
            batch_id,
            int(about["batchTimestampMs"]),
            tuple(map(_position, sources)),
            None if partitions is None else int(partitions),
        )
    except _DAMAGE as error:
        raise _unreadable(f"{place}/offsets/{batch_id}") from error


def parse_time(batch_id: int, text: str, place: str) -> int:
    """The batch's time (ms), from an entry of the offset log with any sources. Raises UnreadableCheckpointError."""
    try:
        return int(json.loads(text.splitlines()[1])["batchTimestampMs"])
    except _DAMAGE as error:
        raise _unreadable(f"{place}/offsets/{batch_id}") from error


def _position(source: str) -> StreamPosition | None:
    if source == "-":  # OffsetSeqLog: the source had nothing yet
        return None
    fields: Any = json.loads(source)
    if fields is None:
        return None
    return StreamPosition(
        str(fields["reservoirId"]),
        int(fields["reservoirVersion"]),
        int(fields.get("index", -1)),
        bool(fields["isStartingVersion"]),
    )


def _unreadable(place: str) -> UnreadableCheckpointError:
    return UnreadableCheckpointError(
        "the checkpoint cannot be read", place, "restore it from a backup, or run `checkback rebuild`"
    )


def read_batch(spark: SparkSession | None, place: str, number: int) -> Batch:
    """A batch from the offset log. ``spark`` is needed if the folder is not local. Raises StorageError."""
    return parse_batch(number, filesystem.text(spark, f"{place}/offsets/{number}"), place)


def numbers(spark: SparkSession | None, folder: str) -> list[int]:
    """The batch ids in `offsets` or `commits`, in any order. ``spark`` as in `read_batch`. Raises StorageError."""
    return [int(name) for name in filesystem.names(spark, folder) if name.isdecimal()]


def plan_versions(app: str, batch_id: int, time: int) -> dict[str, int]:
    """The versions of applications (Delta's transaction identifiers) that record a plan with a commit of ``app``.

    ``time``: ms.
    """
    return {f"{app}/planned": batch_id, f"{app}/planned_at": time}


def plan_recorded(app: str, look_up: Callable[[str], int | None]) -> tuple[int, int] | None:
    """The batch id and time (ms) that ``app``'s last commit with a plan recorded; None = none did.

    ``look_up``: the version of an application.
    """
    batch_id, time = (look_up(name) for name in plan_versions(app, 0, 0))
    return None if batch_id is None or time is None else (batch_id, time)


def refuse_other_plan(entry: Batch, batch_time: int, place: str) -> None:
    """Check that the batch in progress is the one in the offset log. ``batch_time``: ms; 0 = it touches no segment.

    Raises FencedError.
    """
    if batch_time not in (0, entry.time):
        raise FencedError(
            f"another process has planned batch {entry.batch_id}, too, while this one did", place, "let only one work"
        )
