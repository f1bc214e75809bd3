"""What a checkpoint of `land` was made with, as small files in it: with something else it would lose or repeat rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from checkback.storage.checkpoints.checkpoint import last_done, numbers
from checkback.storage.files import filesystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def made_with(spark: SparkSession, checkpoint: str, key: str, value: str) -> str | None:
    """The value that the checkpoint was made with, if it is another one; else None, and this one is recorded.

    A checkpoint that has begun no batch takes any value, one without a record the first. Raises StorageError.
    """
    file = f"{checkpoint}/{key}"
    found = filesystem.text(spark, file) if filesystem.exists(spark, file) else None
    if found == value:
        return None
    if found is not None and has_begun(spark, checkpoint):
        return found
    filesystem.write(spark, file, value)
    return None


def has_begun(spark: SparkSession, checkpoint: str) -> bool:
    """Has a batch begun? Raises StorageError."""
    return bool(filesystem.names(spark, f"{checkpoint}/offsets"))


def planned_inside(spark: SparkSession, checkpoint: str, inside: str) -> str | None:
    """What the files of an interrupted batch are inside of, by the run that has listed them; None = there is none.

    ``inside``: what those of later batches are inside of, which is recorded by the first of them. Raises StorageError.
    """
    file, begun = f"{checkpoint}/inside", max(numbers(spark, f"{checkpoint}/offsets"), default=-1)
    kept = json.loads(filesystem.text(spark, file)) if filesystem.exists(spark, file) else {}
    mine = max((int(first) for first in kept if int(first) <= begun), default=None)
    before = None if mine is None or begun <= last_done(spark, checkpoint) else str(kept[str(mine)])
    noted = {str(begun + 1): inside} if before is None else {str(begun): before, str(begun + 1): inside}
    if noted != kept:
        filesystem.write(spark, file, json.dumps(noted))
    return before
