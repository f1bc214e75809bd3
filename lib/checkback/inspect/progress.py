"""How far the reconcile query has come, by its checkpoint: which batch is done, and which are under way.

Spark writes ``offsets/N`` before batch N begins and ``commits/N`` when it is done
(https://spark.apache.org/docs/latest/streaming/, fault tolerance). Offsets: a line with the version, one of metadata,
one for each source.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkback import folders
from checkback.errors import StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Batch:
    """A batch. ``time``: ms, as its rows have it. ``half_version``: first version of `half` it has not read whole."""

    batch_id: int
    time: int
    half_version: int


def parse(batch_id: int, text: str) -> Batch:
    """The batch that a file of the offset log describes. Raises StorageError when it is not one."""
    try:
        _, metadata, half, *_ = text.splitlines()
        time, source = json.loads(metadata)["batchTimestampMs"], json.loads(half)
        # While the table's first version is read, none is read whole. `half` is the first source of the union.
        version = 0 if source is None or source["isStartingVersion"] else source["reservoirVersion"]
        return Batch(batch_id, int(time), int(version))
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError("is no batch of the offset log", f"offsets/{batch_id}", "restore the checkpoint") from error


def last_done(spark: SparkSession, checkpoint: str) -> int:
    """Id of the last batch that is done; -1 = none."""
    return max(_numbers(spark, f"{checkpoint}/commits"), default=-1)


def batches_since(spark: SparkSession, checkpoint: str, batch_id: int) -> list[Batch]:
    """The batch with the id, where the log still has it, and all that began after it, in order."""
    numbers = sorted(number for number in _numbers(spark, f"{checkpoint}/offsets") if number >= batch_id)
    return [parse(number, folders.text(spark, f"{checkpoint}/offsets/{number}")) for number in numbers]


def _numbers(spark: SparkSession, folder: str) -> list[int]:
    return [int(name) for name in folders.names(spark, folder) if name.isdigit()]
