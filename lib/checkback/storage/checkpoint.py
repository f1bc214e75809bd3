"""What a query's checkpoint says: whose it is, which batches are done, which are under way. Spark's files, only read.

Spark writes ``offsets/N`` before batch N begins and ``commits/N`` when it is done
(https://spark.apache.org/docs/latest/streaming/, fault tolerance). A file of offsets has a line with the version, one
of metadata, and one for each source (org.apache.spark.sql.execution.streaming.checkpointing: StreamMetadata,
OffsetSeqLog); a source's line is Delta's (DeltaSourceOffset).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checkback.errors import StorageError
from checkback.storage import filesystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Spark keeps its value with the checkpoint
PARTITIONS = "spark.sql.shuffle.partitions"


class UnreadableCheckpointError(StorageError):
    """A file of a checkpoint is not what Spark writes there."""


@dataclass(frozen=True)
class StreamPosition:
    """Up to where a batch reads a source.

    ``table``: Delta's id of the table. ``version``: of the table, read up to the file ``index`` of it; -1 = none of
    it yet. ``starting``: it is the version that the query began with, which holds all rows of the older ones.
    """

    table: str
    version: int
    index: int = -1
    starting: bool = False

    @property
    def seen(self) -> int:
        """Newest version that something was read of; -1 = none."""
        return self.version if self.starting or self.index >= 0 else self.version - 1

    @property
    def unread(self) -> int:
        """First version that is not known to have been read whole."""
        return 0 if self.starting else self.version


@dataclass(frozen=True)
class Batch:
    """A batch that has begun. ``time``: ms, as its rows have it. ``partitions``: of the query's state.

    ``positions``: of the sources, in the query's order; None where a source had no rows yet.
    """

    batch_id: int
    time: int
    positions: tuple[StreamPosition | None, ...] = ()
    partitions: int | None = None

    def unread(self, source: int) -> int:
        """First version of a source, by its place in the query, that this batch has not read whole."""
        position = self.positions[source] if source < len(self.positions) else None
        return 0 if position is None else position.unread


@dataclass(frozen=True)
class Checkpoint:
    """A query's checkpoint. ``newest``: the newest batch that has begun; None = none yet."""

    query_id: str
    newest: Batch | None = None


def read_checkpoint(spark: SparkSession | None, place: str) -> Checkpoint | None:
    """The checkpoint in a folder, None when there is none. Raises StorageError when it is not whole."""
    if not filesystem.exists(spark, f"{place}/metadata"):
        return None
    query_id = parse_metadata(filesystem.text(spark, f"{place}/metadata"), place)
    newest = max(numbers(spark, f"{place}/offsets"), default=None)
    return Checkpoint(query_id, None if newest is None else read_batch(spark, place, newest))


def last_done(spark: SparkSession | None, place: str) -> int:
    """Id of the last batch that is done; -1 = none."""
    return max(numbers(spark, f"{place}/commits"), default=-1)


def missing_schema(spark: SparkSession | None, place: str) -> str | None:
    """A schema of the query's state that is not where the checkpoint says; None: all are, or there is no state.

    Spark keeps their absolute paths (OperatorStateMetadataV2.stateSchemaFilePaths): in a folder that was moved or
    copied they lead back to the old one. Raises StorageError.
    """
    folder = f"{place}/state/0/_metadata/v2"
    newest = max(numbers(spark, folder), default=None)
    if newest is None:
        return None
    try:
        stores = json.loads(filesystem.text(spark, f"{folder}/{newest}").partition("\n")[2])["stateStoreInfo"]
        paths = [str(path) for store in stores for path in store["stateSchemaFilePaths"]]
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(f"{folder}/{newest}") from error
    return next((path for path in paths if not filesystem.exists(spark, path)), None)


def batches_since(spark: SparkSession, place: str, batch_id: int) -> list[Batch]:
    """The batch with the id, where the log still has it, and all that began after it, in order.

    Raises StorageError when one cannot be read.
    """
    return [
        read_batch(spark, place, number) for number in sorted(numbers(spark, f"{place}/offsets")) if number >= batch_id
    ]


def parse_metadata(text: str, place: str) -> str:
    """The query's id. Raises UnreadableCheckpointError."""
    try:
        return str(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(f"{place}/metadata") from error


def parse_batch(batch_id: int, text: str, place: str) -> Batch:
    """The batch that a file of the offset log in ``place`` describes. Raises UnreadableCheckpointError."""
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
    except (ValueError, KeyError, TypeError, AttributeError) as error:
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
        "the checkpoint cannot be read", place, "put it back as it was, or run `checkback rebuild`"
    )


def read_batch(spark: SparkSession | None, place: str, number: int) -> Batch:
    """A batch that has begun. ``spark`` is needed where the folder is not local. Raises StorageError."""
    return parse_batch(number, filesystem.text(spark, f"{place}/offsets/{number}"), place)


def numbers(spark: SparkSession | None, folder: str) -> list[int]:
    """The batches that `offsets` or `commits` has, in any order. ``spark`` as for `read_batch`. Raises StorageError."""
    return [int(name) for name in filesystem.names(spark, folder) if name.isdecimal()]
