"""What a checkpoint says of itself: whose it is, how far it is, what it was made with. Spark's files, only read.

The layout is Spark's (org.apache.spark.sql.execution.streaming.checkpointing: StreamMetadata, OffsetSeqLog) and, for
the offsets of a source, Delta's (DeltaSourceOffset).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checkback import folders
from checkback.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

#: Spark keeps its value with the checkpoint
PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True)
class Position:
    """Where a source stands: ``table`` is Delta's id of the table, ``version`` the first that is still to be read."""

    table: str
    version: int


@dataclass(frozen=True)
class Checkpoint:
    """A query's checkpoint. ``last_batch``: the newest one begun, None = none yet; ``partitions``: of its state.

    ``positions``: of the sources, in the query's order, as that batch reads them; None where a source had no rows.
    """

    query_id: str
    last_batch: int | None = None
    partitions: int | None = None
    positions: tuple[Position | None, ...] = ()


def read_checkpoint(spark: SparkSession, place: str) -> Checkpoint | None:
    """The checkpoint in a folder, None when there is none. Raises StorageError when it is not whole."""
    if not folders.exists(spark, f"{place}/metadata"):
        return None
    batches = [int(name) for name in folders.names(spark, f"{place}/offsets") if name.isdecimal()]
    newest = {str(batch): folders.text(spark, f"{place}/offsets/{batch}") for batch in sorted(batches)[-1:]}
    return parse(folders.text(spark, f"{place}/metadata"), newest, place)


def parse(metadata: str, offsets: Mapping[str, str], place: str) -> Checkpoint:
    """The checkpoint of these files' contents; ``offsets`` by name. Raises StorageError."""
    try:
        query_id = str(json.loads(metadata)["id"])
        batches = sorted(int(name) for name in offsets if name.isdecimal())
        if not batches:
            return Checkpoint(query_id)
        _, about, *sources = offsets[str(batches[-1])].splitlines()
        partitions = json.loads(about).get("conf", {}).get(PARTITIONS)
        return Checkpoint(
            query_id,
            batches[-1],
            None if partitions is None else int(partitions),
            tuple(_position(source) for source in sources),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(
            "the checkpoint cannot be read", place, "put it back as it was, or run `checkback rebuild`"
        ) from error


def _position(source: str) -> Position | None:
    if source == "-":  # OffsetSeqLog: the source had nothing yet
        return None
    fields: Any = json.loads(source)
    return Position(str(fields["reservoirId"]), int(fields["reservoirVersion"]))
