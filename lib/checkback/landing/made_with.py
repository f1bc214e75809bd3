"""What a checkpoint of `land` was made with, as small files in it: with something else it would lose or repeat rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.storage.files import filesystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def made_with(spark: SparkSession, checkpoint: str, key: str, value: str) -> str | None:
    """The value that the checkpoint was made with, if it is another one; else None, and this one is recorded.

    A checkpoint that has begun no batch takes any value, one of an earlier release the first. Raises StorageError.
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
