"""Audits whether the tables keep the protocol's promises. Spark evaluates each transaction's facts on the executors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from checkback.errors import SettingsError
from checkback.inspect.audit_facts import KEY, facts
from checkback.inspect.audit_findings import FINDINGS, Finding
from checkback.inspect.audit_rules import RulesInForce, conditions
from checkback.inspect.batch_audit import BatchAudit, audit_batches, rules
from checkback.inspect.batches import epochs
from checkback.inspect.check_intervals import RulesHistory
from checkback.inspect.table_versions import FixedTables
from checkback.messages import RESUMED_FROM
from checkback.reconcile.event_columns import transaction_key
from checkback.reconcile.segment import CHECKS_AT_LEAST
from checkback.storage.checkpoint import Batch
from checkback.storage.schemas import SCHEMAS
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from checkback.settings import Settings

#: Samples per finding.
SAMPLES = 5


@dataclass(frozen=True)
class Found:
    """A finding, the number of transactions or batches that have it, and a few of them as ``samples``.

    Samples are (queue_id, queue_offset); for batches (batch_id, time in ms), None where the row lacks the value.
    """

    finding: Finding
    count: int
    samples: tuple[tuple[int | None, int | None], ...]


@dataclass(frozen=True)
class Report:
    """The result of an audit: all figures, and the other findings with at least one transaction or batch.

    ``done``: the last completed batch; ``under_way``: batches in progress, whose rows were left out.
    ``oldest_pending``: its born_timestamp, ms. ``first``: the first batch with a row in `batches`, None = none has one;
    ``past``: whether there were batches before it.
    """

    found: tuple[Found, ...]
    done: Batch | None
    under_way: tuple[Batch, ...]
    oldest_pending: int | None
    first: Batch | None = None
    past: bool = False

    @property
    def broken(self) -> bool:
        """Whether a promise is broken."""
        return any(found.finding.level == "broken" for found in self.found)


def audit(spark: SparkSession, settings: Settings) -> Report:
    """Audit the current tables; batches may run meanwhile.

    Each batch is judged by the rules recorded for it in `batches`; of the settings only those of storage are used.
    Raises SettingsError if there are no tables at all, StorageError if tables or checkpoint cannot be read.
    """
    accounted = _account(spark, settings)
    fixed = accounted.fixed
    rows = {row["name"]: row for row in _summary(_labelled(accounted, settings)).collect()}
    found = []
    for name, finding in FINDINGS.items():
        row = rows.get(name)
        samples = () if row is None else tuple((at["queue_id"], at["queue_offset"]) for at in row["samples"])
        if finding.about == "batch":
            count, samples = accounted.found.get(name, (0, ()))
        elif name == "offset_gap":
            row = rows.get("halves")
            count, samples = (0, ()) if row is None else (row["gaps"], ())
        else:
            count = 0 if row is None else row["count"]
        if count or finding.level == "figure":
            found.append(Found(finding, int(count), samples))
    pending = rows.get("pending")
    return Report(
        tuple(found),
        _done(fixed),
        fixed.under_way,
        None if pending is None else pending["oldest"],
        None if accounted.first is None else Batch(*accounted.first),
        accounted.past,
    )


def _done(fixed: FixedTables) -> Batch | None:
    """The last completed batch: from the checkpoint, otherwise from `batches`."""
    batches = fixed.whole.batches
    if fixed.logged or not len(batches):
        return fixed.done
    return Batch(int(batches["batch_id"][-1]), int(batches["time"][-1]))


def findings(spark: SparkSession, settings: Settings) -> DataFrame:
    """One row per finding and transaction, without figures: for notebooks.

    Columns: level (broken, warning), promise (P1 .. P5, or empty), finding, queue_id INT, queue_offset BIGINT, meaning.
    Findings about batches are in `audit` only. Raises as `audit`.
    """
    told = [(f.name, f.level, f.promise, f.meaning) for f in FINDINGS.values() if f.level != "figure"]
    names = F.broadcast(spark.createDataFrame(told, "name STRING, level STRING, promise STRING, meaning STRING"))
    found = _labelled(_account(spark, settings), settings).join(names, on="name", how="inner")
    return found.select("level", "promise", F.col("name").alias("finding"), *KEY, "meaning")


def _account(spark: SparkSession, settings: Settings) -> BatchAudit:
    fixed = FixedTables.take(spark, Tables.of(settings.storage))
    # If some tables exist, a missing one counts as empty: what it should hold is then reported as lost.
    if not set(fixed.versions) & set(SCHEMAS):
        where = fixed.tables.location("half")
        raise SettingsError("there is no such table", where, "run `checkback reconcile` first")
    return audit_batches(fixed, SAMPLES)


def _labelled(accounted: BatchAudit, settings: Settings) -> DataFrame:
    """One row per finding of a transaction: name (of the finding), queue_id, queue_offset, born (ms)."""
    fixed = accounted.fixed
    of_batch = rules(fixed)
    ever = RulesHistory.of(of_batch)
    found = conditions(_in_force(accounted, ever))
    labels = F.array_compact(F.array(*(F.when(condition, F.lit(name)) for name, condition in found.items())))
    judged = facts(fixed, of_batch, ever).select(*KEY, "born", F.explode(labels).alias("name"))
    return judged.unionByName(_published_again(fixed, _resumed_queues(fixed, settings)))


def _in_force(accounted: BatchAudit, ever: RulesHistory) -> RulesInForce:
    fixed, batches = accounted.fixed, accounted.fixed.whole.batches
    done = _done(fixed)
    known = RulesInForce(
        batch_time=None if done is None else done.time,
        half_until=fixed.half_read_until(),
        epochs=epochs(batches),
        past=accounted.past,
        uncounted=ever.uncounted,
    )
    if not len(batches):
        return known
    interval, jitter, reserved, most = (
        int(batches[name][-1]) for name in ("check_interval", "jitter", "reserved", "check_max")
    )
    enough = min(most, CHECKS_AT_LEAST, reserved // max(1, interval) + 1)
    return replace(known, longest=interval + max(0, jitter), enough=enough)


def _resumed_queues(fixed: FixedTables, settings: Settings) -> list[int]:
    """Half queues of resumed messages: those named in `operations`, and operator.queue of the settings."""
    rows = fixed.all_rows("operations").where("new_queue_id IS NOT NULL").select("new_queue_id").distinct().collect()
    return sorted({settings.operator.queue, *(row["new_queue_id"] for row in rows)})


def _published_again(fixed: FixedTables, resumed_queues: list[int]) -> DataFrame:
    """As `_labelled`: the first offset of each (producer_group, transaction_id) published under several offsets.

    If these are one discarded message resumed twice, a promise is broken.
    """
    topics = fixed.read_topics()
    place = F.struct(F.col("half_queue_id").alias("queue_id"), F.col("half_queue_offset").alias("queue_offset"))
    owner, origin = transaction_key(), F.element_at("properties", RESUMED_FROM)
    ids = topics.select(place.alias("place"), owner.alias("who"))
    resumed = topics.where(F.col("half_queue_id").isin(resumed_queues))
    origins = resumed.select(place.alias("place"), origin.alias("who")).where("who IS NOT NULL")
    return _several(ids, "id_published_twice").unionByName(_several(origins, "resumed_twice"))


def _several(rows: DataFrame, name: str) -> DataFrame:
    """As `_labelled`: the first ``place`` of each ``who`` that has several."""
    places = rows.groupBy("who").agg(F.min("place").alias("first"), F.max("place").alias("last"))
    found = places.where("first != last")
    return found.select("first.*", F.lit(None).cast("bigint").alias("born"), F.lit(name).alias("name"))


def _summary(labelled: DataFrame) -> DataFrame:
    """One row per finding that occurs: name, count, samples, oldest (born, ms), gaps (missing offsets).

    Samples are the oldest. Memory does not grow with the number of transactions: counts, and SAMPLES per queue.
    """
    place = F.struct("born", *KEY)
    queues = labelled.groupBy("name", "queue_id").agg(
        F.count("*").alias("count"),
        F.min("born").alias("oldest"),
        F.min_by(place, place, SAMPLES).alias("samples"),
        # DECIMAL: the difference between two offsets of a queue may overflow BIGINT.
        (F.max("queue_offset").cast("decimal(38)") - F.min("queue_offset") + 1 - F.count("*")).alias("gaps"),
    )
    samples = F.slice(F.sort_array(F.flatten(F.collect_list("samples"))), 1, SAMPLES)
    return queues.groupBy("name").agg(
        F.sum("count").alias("count"),
        F.min("oldest").alias("oldest"),
        F.sum("gaps").alias("gaps"),
        samples.alias("samples"),
    )
