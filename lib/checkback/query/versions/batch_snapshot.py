"""All topics and the ledger as of one batch: a join of them sees each batch in all of them or in none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkback.errors import SettingsError, StateError
from checkback.query.engines.spark_engine import SparkEngine, whole_columns
from checkback.query.versions.as_of import parse_as_of
from checkback.query.versions.whole_batches import NAME, Cut, WholeBatch, batch_time, read_batches
from checkback.storage.schemas import SCHEMAS, TOPIC_PREFIX
from checkback.storage.spark_schemas import schema_of
from checkback.storage.tables import Tables
from checkback.storage.timestamps import ms_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from checkback.settings import Settings


@dataclass(frozen=True)
class Snapshot:
    """The tables that batches write, with the rows of all batches up to ``batch`` and of none after it.

    ``topics``: by topic name. ``unpublished``: None if there is no such table. The columns are those of docs/tables.md.
    """

    batch: WholeBatch
    topics: Mapping[str, DataFrame]
    decisions: DataFrame
    deliveries: DataFrame
    discarded: DataFrame
    check_requests: DataFrame
    unpublished: DataFrame | None = None


def snapshot(spark: SparkSession, settings: Settings, at: datetime | str | None = None) -> Snapshot:
    """All topics and the ledger as of the last batch complete ``at`` a time; None: as of the newest complete batch.

    A batch is complete once it has its row in `batches`. Rows are selected by the batch they record, not by time
    travel: the snapshot reaches back as far as the rows do, regardless of OPTIMIZE and VACUUM; rows deleted since are
    missing. The tables' versions are fixed on call.

    Raises SettingsError if there are no tables, or if ``at`` is not a time or no batch was complete then; StateError if
    no batch has a row in `batches`.
    """
    moment, tables = parse_as_of(at), Tables.of(settings.storage)
    if not tables.exists(spark, "half"):
        raise SettingsError("there is no such table", tables.location("half"), "run `checkback reconcile` first")
    whole = read_batches(SparkEngine(spark, tables))
    # A batch's rows are committed before its row in `batches`: fix the versions after reading that table.
    names = [*(name for name in SCHEMAS if batch_time(name)), *tables.topics(spark)]
    with ThreadPoolExecutor(max_workers=4) as pool:
        versions = dict(zip(names, pool.map(lambda name: tables.newest(spark, name), names), strict=True))
    # Batches completed meanwhile are known now, and left out.
    cut = Cut.at(whole, None if moment is None else ms_of(moment), read_batches(SparkEngine(spark, tables)))
    if cut is None:
        fix = "run `checkback reconcile`: a snapshot is of a batch that it finishes"
        raise StateError("no batch is known to be complete", tables.location(NAME), fix)
    if cut.batch is None:
        first = WholeBatch.of(whole.batches[0])
        fix = f"ask for {first.finished_at:%Y-%m-%dT%H:%M:%S.%f}Z or later"
        raise SettingsError("no batch was complete then", "at", fix)

    def read(name: str) -> DataFrame:
        version = versions[name]
        if version is None:
            return spark.createDataFrame([], schema_of(name))
        return whole_columns(cut.of(tables.read(spark, name, version), name), name)

    topics = {name.removeprefix(TOPIC_PREFIX): read(name) for name in names if name.startswith(TOPIC_PREFIX)}
    unpublished = read("unpublished") if versions.get("unpublished") is not None else None
    ledger = {name: read(name) for name in ("decisions", "deliveries", "discarded", "check_requests")}
    return Snapshot(cut.batch, topics, **ledger, unpublished=unpublished)
