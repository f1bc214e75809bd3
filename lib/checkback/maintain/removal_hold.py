"""Why nothing may be removed: where `reconcile` stands is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from checkback.maintain.stream_positions import rebuilding
from checkback.reconcile.checkpoint_owner import NAME, owner_of
from checkback.storage.checkpoints.checkpoint import parse_metadata
from checkback.storage.files import filesystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from checkback.storage.tables import Tables

REBUILDING = "a rebuild of the checkpoint is under way, or was broken off: nothing is removed until it is done"
LOST = "reconcile's checkpoint is not in storage.checkpoints, so nothing is removed: name its folder, or rebuild it"
OTHERS = (
    "storage.checkpoints has another checkpoint than that of the last reconcile, so nothing is removed: name its folder"
)


def removal_hold(tables: Tables, spark: SparkSession | None) -> str | None:
    """The reason; None: files may be removed. Raises StorageError.

    The tables name the checkpoint that owns them. ``spark``: only if they, or the checkpoints, need it.
    """
    if rebuilding(tables, spark):
        return REBUILDING
    session = cast("SparkSession", spark)
    if not tables.exists(session, "decisions"):
        return None
    place = f"{tables.checkpoint(NAME)}/metadata"
    lost = not filesystem.exists(spark, place)
    query_id = "" if lost else parse_metadata(filesystem.text(spark, place), place)
    found = owner_of(session, tables, tables.open_log("decisions") if tables.readable else None, query_id)
    if found.stands or not found.last:
        return None
    return LOST if lost else OTHERS
