"""Whose the tables are: the checkpoint that owns them is written down with the table `decisions`.

Where delta-rs writes, as versions of applications in Delta's transaction identifiers, which cost nothing and which no
reader sees: ``checkpoint`` counts the owners there were, ``checkpoint/<query id>`` is the owner's number, and
``segment_size/<query id>`` the segment size that it began with. SQL cannot read these: where only Spark writes, they
are properties of the table, ``checkback.checkpoint`` (the owner's query id) and ``checkback.segment_size``.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from checkback.errors import StorageError
from checkback.reconcile.preconditions import DecisionFacts, StartFacts
from checkback.storage import filesystem, spark_log
from checkback.storage.checkpoint import PARTITIONS, Checkpoint, StreamPosition, last_done, read_checkpoint
from checkback.storage.checkpoint_facts import logs
from checkback.storage.delta_log import DeltaLog
from checkback.storage.fsync import flush_owner
from checkback.storage.paths import local_path
from checkback.storage.schemas import SOURCES
from checkback.storage.seen_commits import replaced

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
#: the table to which each batch commits, last
_CONCLUDED = "batches"
_WRITTEN = ("decisions", "discarded", "check_requests", "rejected", "unpublished", _CONCLUDED)
_OWNER, _SIZE = "checkback.checkpoint", "checkback.segment_size"


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
        logs=logs(spark, tables, _positions(tables, checkpoint)),
        done=last_done(spark, place),
        replaced=replaced(spark, tables, NAME),
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
    batches = {name: tables.log(name).versions([f"{query_id}/{name}"])[f"{query_id}/{name}"] for name in _WRITTEN}
    return DecisionFacts(
        written,
        owner=found[OWNERS] or 0,
        owned=found[own],
        last_batch=max((batch for batch in batches.values() if batch is not None), default=None),
        concluded=batches[_CONCLUDED],
        segment_size=found[size],
    )


def _spark_ledger(spark: SparkSession, tables: Tables, checkpoint: Checkpoint | None) -> DecisionFacts:
    written = bool(tables.read(spark, "decisions").limit(1).count())
    if checkpoint is None:
        return DecisionFacts(written)
    properties = spark_log.properties(spark, tables.in_sql("decisions"))
    query_id = checkpoint.query_id
    with ThreadPoolExecutor() as pool:
        last = pool.map(lambda name: tables.last_version(spark, name, f"{query_id}/{name}"), _WRITTEN)
        batches = dict(zip(_WRITTEN, last, strict=True))
    # Without an owner they are of an older Checkback, which wrote none down.
    ours = properties.get(_OWNER, query_id) == query_id
    return DecisionFacts(
        written,
        owner=1,
        owned=1 if ours else None,
        last_batch=max((batch for batch in batches.values() if batch is not None), default=None),
        concluded=batches[_CONCLUDED],
        segment_size=int(properties[_SIZE]) if ours and _SIZE in properties else None,
    )


def _positions(tables: Tables, checkpoint: Checkpoint | None) -> dict[str, StreamPosition | None]:
    """Where the checkpoint stands in the sources, by name, in the query's order."""
    newest, names = None if checkpoint is None else checkpoint.newest, SOURCES[NAME]
    if newest is None:  # nothing to compare with, which only costs nothing where files tell
        return dict.fromkeys(names) if tables.by_files else {}
    return dict(zip(names, newest.positions, strict=False))
