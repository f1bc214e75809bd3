"""Gathers the facts for `preconditions` at a start of `reconcile`, from the checkpoint and the tables."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from checkback.reconcile.checkpoint_owner import CONCLUDED, NAME, REBUILDING, WRITTEN, owner_of
from checkback.reconcile.start.preconditions import DecisionFacts, StartFacts
from checkback.settings.model import MOST_PARTITIONS
from checkback.storage.checkpoints.checkpoint import (
    PARTITIONS,
    Checkpoint,
    StreamPosition,
    last_done,
    missing_schema,
    numbers,
    read_batch,
    read_checkpoint,
)
from checkback.storage.checkpoints.checkpoint_fit import logs, positions_of, recorded_plan
from checkback.storage.checkpoints.seen_commits import replaced
from checkback.storage.failure_scope import own_failure
from checkback.storage.files import filesystem
from checkback.storage.schemas import SOURCES

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import SparkSession

    from checkback.settings import Settings
    from checkback.storage.checkpoints.checkpoint import Batch
    from checkback.storage.tables import Tables


def facts(spark: SparkSession, settings: Settings, tables: Tables) -> StartFacts:
    """The facts for a start of `reconcile`. The tables must exist. Raises StorageError."""
    place = tables.checkpoint(NAME)
    checkpoint = read_checkpoint(spark, place)
    decisions = decision_facts(spark, tables, checkpoint)
    newest = None if checkpoint is None else checkpoint.newest
    starts = {} if newest is None else positions_of(spark, tables, NAME, newest.batch_id - 1)
    return StartFacts(
        place=place,
        checkpoint=checkpoint,
        decisions=decisions,
        times=_times(spark, place, newest, decisions.planned),
        partitions=partitions(spark, settings, newest),
        segment_size=settings.reconcile.segment_size,
        rebuilding=filesystem.exists(spark, tables.checkpoint(REBUILDING)),
        starts=starts,
        logs=logs(spark, tables, _positions(tables, newest), starts),
        done=last_done(spark, place),
        replaced=replaced(spark, tables, NAME),
        missing_schema=missing_schema(spark, place),
    )


def partitions(spark: SparkSession, settings: Settings, newest: Batch | None = None) -> int:
    """The shuffle partitions: if nobody has set their number, those of the checkpoint; of a new one the session's."""
    is_set = settings.reconcile.partitions is not None or PARTITIONS in settings.spark
    made_with = None if is_set or newest is None else newest.partitions
    return made_with or int(spark.conf.get(PARTITIONS) or MOST_PARTITIONS)


def decision_facts(spark: SparkSession, tables: Tables, checkpoint: Checkpoint | None) -> DecisionFacts:
    """The tables' facts about a checkpoint; without Spark where the logs can be read. Raises StorageError."""
    log = tables.log("decisions") if tables.readable else None
    rows = tables.has_rows(spark, "decisions")
    if checkpoint is None or checkpoint.newest is None:
        return DecisionFacts(rows or _first_batch_wrote(spark, tables))
    query_id = checkpoint.query_id
    with ThreadPoolExecutor() as pool:
        last = pool.map(lambda name: tables.last_version(spark, name, f"{query_id}/{name}"), WRITTEN)
        batches = dict(zip(WRITTEN, last, strict=True))
    found = owner_of(spark, tables, log, query_id)
    return DecisionFacts(
        rows,
        owner=found.last,
        owned=found.own,
        last_batch=max((batch for batch in batches.values() if batch is not None), default=None),
        concluded=batches[CONCLUDED],
        segment_size=found.size,
        planned=_planned(spark, tables, checkpoint, batches[CONCLUDED]) if tables.by_files else {},
    )


def _first_batch_wrote(spark: SparkSession, tables: Tables) -> bool:
    """Whether a table has rows that the very first batch wrote before `decisions`, and was interrupted.

    Where only Spark reads the logs: whether it may have. There a batch claims the tables before its first commit.
    """
    if not tables.readable:
        return owner_of(spark, tables, None, "").last > 0
    if any(tables.log(name).data_files() for name in ("discarded", "check_requests")):
        return True

    def has_rows(name: str) -> bool:
        try:
            log = tables.log(name)
            # What somebody has made in a topic's place holds none; its messages wait in `unpublished`.
            return log.is_topic() and bool(log.data_files())
        except Exception as error:  # noqa: BLE001 - re-raised unless the table's own
            own_failure(error)
            return False

    return any(map(has_rows, tables.topics(spark)))


def _planned(
    spark: SparkSession, tables: Tables, checkpoint: Checkpoint, concluded: int | None
) -> dict[int, frozenset[int]]:
    """DecisionFacts.planned. Commits by Spark tell nothing."""
    newest = None if checkpoint.newest is None else checkpoint.newest.batch_id
    # A batch that is not concluded may have written to topics only.
    names = [*WRITTEN, *(tables.topics(spark) if newest != concluded else [])]

    def recorded(name: str) -> tuple[int, int] | None:
        try:
            return recorded_plan(tables, name, f"{checkpoint.query_id}/{name}")
        except Exception as error:
            if name in WRITTEN:
                raise
            own_failure(error)  # a topic's table does not block the others
            return None

    with ThreadPoolExecutor(max_workers=8) as pool:
        plans = {plan for plan in pool.map(recorded, names) if plan is not None}
    return {
        batch_id: frozenset(time for number, time in plans if number == batch_id)
        for batch_id, _ in plans
        if batch_id in (newest, concluded)
    }


def _times(spark: SparkSession, place: str, newest: Batch | None, planned: Collection[int]) -> dict[int, int]:
    """StartFacts.times of the newest batch, which is read, and of those ``planned`` that the offset log still has."""
    times = {} if newest is None else {newest.batch_id: newest.time}
    others = set(planned).difference(times)
    if others:
        others.intersection_update(numbers(spark, f"{place}/offsets"))
    return times | {batch_id: read_batch(spark, place, batch_id).time for batch_id in others}


def _positions(tables: Tables, newest: Batch | None) -> dict[str, StreamPosition | None]:
    """The positions in the sources of the newest batch, by name, in the query's order."""
    names = SOURCES[NAME]
    if newest is None:  # nothing to compare with; reading the logs is only cheap from files
        return dict.fromkeys(names) if tables.by_files else {}
    return dict(zip(names, newest.positions, strict=False))
