"""What a checkpoint says of itself: whose it is, how far it is, what it was made with. Spark's files, only read.

The layout is Spark's (org.apache.spark.sql.execution.streaming.checkpointing: StreamMetadata, OffsetSeqLog) and, for
the offsets of a source, Delta's (DeltaSourceOffset).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checkback.errors import StorageError
from checkback.session import local_path

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
    metadata = _texts(spark, place, "metadata")
    if not metadata:
        return None
    return parse(metadata["metadata"], _texts(spark, place, "offsets"), place)


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


def _texts(spark: SparkSession, place: str, name: str) -> dict[str, str]:
    """The files of that name, or in the folder of that name, by their own names."""
    local = local_path(place)
    if local is None:
        return _texts_by_spark(spark, f"{place}/{name}")
    path = os.path.join(local, name)
    try:
        if os.path.isfile(path):
            return {name: _text(path)}
        names = os.listdir(path) if os.path.isdir(path) else []
        return {name: _text(os.path.join(path, name)) for name in names if not name.startswith(".")}
    except OSError as error:
        raise StorageError(f"the checkpoint cannot be read: {error.strerror}", path) from error


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _texts_by_spark(spark: SparkSession, path: str) -> dict[str, str]:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    try:
        files = spark.read.text(path, wholetext=True).select(
            "value", F.element_at(F.split(F.input_file_name(), "/"), -1)
        )
        return {row[1]: row[0] for row in files.collect()}
    except AnalysisException:
        return {}
