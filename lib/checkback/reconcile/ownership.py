"""Whose the tables are: the checkpoint that owns them is written down with the table `decisions`.

Where delta-rs writes, as versions of applications in Delta's transaction identifiers, which cost nothing and which no
reader sees: ``checkpoint`` counts the owners there were, ``checkpoint/<query id>`` is the owner's number, and
``segment_size/<query id>`` the segment size that it began with. SQL cannot read these: where only Spark writes, they
are properties of the table, ``checkback.checkpoint`` (the owner's query id) and ``checkback.segment_size``.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from checkback.errors import StorageError
from checkback.reconcile.preconditions import DecisionFacts, StartFacts, TableLog
from checkback.storage import filesystem, spark_log
from checkback.storage.checkpoint import PARTITIONS, Checkpoint, StreamPosition, read_checkpoint
from checkback.storage.delta_log import DeltaLog
from checkback.storage.fsync import flush_owner
from checkback.storage.paths import local_path
from checkback.storage.schemas import SOURCES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from checkback.settings import Settings
    from checkback.storage.tables import Tables

#: the query, and the folder of its checkpoint
NAME = "reconcile"
#: the folder beside the checkpoint that is there while a rebuild is
REBUILDING = f"{NAME}.rebuilding"
#: application whose version counts the owners there were
OWNERS = "checkpoint"
_WRITTEN = ("decisions", "discarded", "check_requests", "rejected", "unpublished", "batches")
_OWNER, _SIZE = "checkback.checkpoint", "checkback.segment_size"
_COMMIT = re.compile(r"([0-9]{20})\.json")


def facts(spark: SparkSession, settings: Settings, tables: Tables) -> StartFacts:
    """What a start of `reconcile` finds. The tables must be there. Raises StorageError."""
    place = tables.checkpoint(NAME)
    checkpoint = read_checkpoint(spark, place)
    return StartFacts(
        place=place,
        checkpoint=checkpoint,
        ledger=_ledger(spark, tables, checkpoint),
        partitions=int(spark.conf.get(PARTITIONS) or settings.reconcile.partitions),
        segment_size=settings.reconcile.segment_size,
        rebuilding=filesystem.exists(spark, tables.checkpoint(REBUILDING)),
        logs=_logs(spark, tables, checkpoint),
    )


def claim(spark: SparkSession, tables: Tables, query_id: str, segment_size: int) -> None:
    """Write down that this query's checkpoint owns the tables, unless it is the owner already.

    Where only Spark writes, nobody may append to `decisions` meanwhile: the append would fail.
    Raises FencedError when another one is written down at the same time, StorageError.
    """
    if not tables.by_files:
        table = tables.in_sql("decisions")
        if spark_log.properties(spark, table).get(_OWNER) != query_id:
            spark_log.set_properties(spark, table, {_OWNER: query_id, _SIZE: str(segment_size)})
        return
    own, size = f"{OWNERS}/{query_id}", f"segment_size/{query_id}"
    log = DeltaLog(
        "decisions", tables.location("decisions"), tables.sync
    )  # its own: batches may use the tables' meanwhile
    found = log.versions([OWNERS, own])
    if found[own] is None or found[own] != found[OWNERS]:
        number = (found[OWNERS] or 0) + 1
        place = local_path(tables.checkpoint(NAME))
        if tables.sync and place is not None:
            flush_owner(place)
        log.commit_after([], found, {OWNERS: number, own: number, size: segment_size})
    else:
        log.flush()


def committed(spark: SparkSession, tables: Tables, query_id: str, batch_id: int) -> list[str]:
    """Names of the tables that a batch of a query has committed to; of a topic's that cannot be read nobody knows.

    Raises StorageError.
    """
    names = [*_WRITTEN, *tables.topics(spark)]

    def last(name: str) -> int | None:
        try:
            return tables.last_version(spark, name, f"{query_id}/{name}")
        except StorageError:
            if name in _WRITTEN:
                raise
            return None

    with ThreadPoolExecutor(max_workers=8) as pool:
        found = pool.map(last, names)
        return [name for name, version in zip(names, found, strict=True) if version is not None and version >= batch_id]


def _ledger(spark: SparkSession, tables: Tables, checkpoint: Checkpoint | None) -> DecisionFacts:
    if not tables.by_files:
        return _spark_ledger(spark, tables, checkpoint)
    log = tables.log("decisions")
    written = bool(log.data_files())
    if checkpoint is None:
        # The first batch of all may have been broken off when it had published, and decided nothing yet.
        others = ("discarded", "check_requests", *tables.topics(spark))
        return DecisionFacts(written or any(tables.log(name).data_files() for name in others))
    query_id = checkpoint.query_id
    own, size = f"{OWNERS}/{query_id}", f"segment_size/{query_id}"
    found = log.versions([OWNERS, own, size])
    batches = [tables.log(name).versions([f"{query_id}/{name}"]) for name in _WRITTEN]
    return DecisionFacts(
        written,
        owner=found[OWNERS] or 0,
        owned=found[own],
        last_batch=max((batch for one in batches for batch in one.values() if batch is not None), default=None),
        segment_size=found[size],
    )


def _spark_ledger(spark: SparkSession, tables: Tables, checkpoint: Checkpoint | None) -> DecisionFacts:
    written = bool(tables.read(spark, "decisions").limit(1).count())
    if checkpoint is None:
        return DecisionFacts(written)
    properties = spark_log.properties(spark, tables.in_sql("decisions"))
    query_id = checkpoint.query_id
    with ThreadPoolExecutor() as pool:
        batches = list(pool.map(lambda name: tables.last_version(spark, name, f"{query_id}/{name}"), _WRITTEN))
    # Without an owner they are of an older Checkback, which wrote none down.
    ours = properties.get(_OWNER, query_id) == query_id
    return DecisionFacts(
        written,
        owner=1,
        owned=1 if ours else None,
        last_batch=max((batch for batch in batches if batch is not None), default=None),
        segment_size=int(properties[_SIZE]) if ours and _SIZE in properties else None,
    )


def _logs(spark: SparkSession, tables: Tables, checkpoint: Checkpoint | None) -> dict[str, TableLog]:
    """The logs of the sources, by name, in the query's order."""
    names, newest = SOURCES[NAME], None if checkpoint is None else checkpoint.newest
    if tables.by_files:
        return {name: _log(tables, name) for name in names}
    if newest is None:
        return {}  # nothing to compare them with
    with ThreadPoolExecutor() as pool:
        logs = pool.map(lambda name, position: _spark_log(spark, tables, name, position), names, newest.positions)
        return dict(zip(names, logs, strict=False))


def _spark_log(spark: SparkSession, tables: Tables, name: str, position: StreamPosition | None) -> TableLog:
    """Its log, back to where the checkpoint goes on from: of older versions nothing is asked."""
    newest = max(tables.history(spark, name, 1))
    behind = 1 if position is None else newest - max(position.version, 0) + 1
    oldest = newest if behind <= 1 else min(tables.history(spark, name, behind))
    return TableLog(spark_log.table_id(spark, tables.in_sql(name)), oldest, newest)


def _log(tables: Tables, name: str) -> TableLog:
    log = tables.log(name)
    found = [_COMMIT.fullmatch(file) for file in os.listdir(f"{tables.location(name)}/_delta_log")]
    versions = [int(match.group(1)) for match in found if match]
    return TableLog(log.table_id(), oldest=min(versions, default=0), newest=max(versions, default=0))
