"""Do the tables keep the promises? Each transaction's facts are judged by Spark, on the executors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from checkback.errors import SettingsError
from checkback.inspect.facts import KEY, facts
from checkback.inspect.findings import FINDINGS, Finding
from checkback.inspect.judge import conditions
from checkback.inspect.snapshot import Snapshot
from checkback.operate.transaction import RESUMED_FROM
from checkback.schemas import SCHEMAS
from checkback.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from checkback.checkpoint import Batch
    from checkback.settings import Settings

#: Samples of each finding.
SAMPLES = 5


@dataclass(frozen=True)
class Found:
    """A finding and how many transactions have it; ``samples`` are a few of them, as (queue_id, queue_offset)."""

    finding: Finding
    count: int
    samples: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Report:
    """What an audit found: all figures, and of the other findings those that some transaction has.

    ``done``: the last batch that was done, by the checkpoint; ``under_way``: batches whose rows were left out.
    ``oldest_pending``: its birth, ms.
    """

    found: tuple[Found, ...]
    done: Batch | None
    under_way: tuple[Batch, ...]
    oldest_pending: int | None

    @property
    def broken(self) -> bool:
        """Is a promise broken?"""
        return any(found.finding.level == "broken" for found in self.found)


def audit(spark: SparkSession, settings: Settings) -> Report:
    """The report on the tables as they are now; batches may go on meanwhile.

    Raises SettingsError when there are no tables at all, StorageError when tables or checkpoint cannot be read.
    """
    snapshot = _snapshot(spark, settings)
    rows = {row["name"]: row for row in _summary(_labelled(snapshot, settings)).collect()}
    found = []
    for name, finding in FINDINGS.items():
        row = rows.get(name)
        samples = () if row is None else tuple((at["queue_id"], at["queue_offset"]) for at in row["samples"])
        if name == "offset_gap":
            row = rows.get("halves")
            count, samples = (0, ()) if row is None else (row["gaps"], ())
        else:
            count = 0 if row is None else row["count"]
        if count or finding.level == "figure":
            found.append(Found(finding, int(count), samples))
    pending = rows.get("pending")
    return Report(tuple(found), snapshot.done, snapshot.under_way, None if pending is None else pending["oldest"])


def findings(spark: SparkSession, settings: Settings) -> DataFrame:
    """One row for each finding and transaction, figures left out: for notebooks.

    Columns: level (broken, warning), promise (P1 .. P5, or empty), finding, queue_id INT, queue_offset BIGINT, meaning.
    Raises as `audit`.
    """
    told = [(f.name, f.level, f.promise, f.meaning) for f in FINDINGS.values() if f.level != "figure"]
    names = F.broadcast(spark.createDataFrame(told, "name STRING, level STRING, promise STRING, meaning STRING"))
    found = _labelled(_snapshot(spark, settings), settings).join(names, on="name", how="inner")
    return found.select("level", "promise", F.col("name").alias("finding"), *KEY, "meaning")


def _snapshot(spark: SparkSession, settings: Settings) -> Snapshot:
    snapshot = Snapshot.take(spark, Tables.of(settings.storage))
    # One that is missing beside others counts as empty: what it should hold is then found to be lost.
    if not set(snapshot.versions) & set(SCHEMAS):
        where = snapshot.tables.location("half")
        raise SettingsError("there is no such table", where, "run `checkback reconcile` first")
    return snapshot


def _labelled(snapshot: Snapshot, settings: Settings) -> DataFrame:
    """Columns name (of a finding), queue_id, queue_offset, born (ms): a row for each finding that a transaction has."""
    batch_time = None if snapshot.done is None else snapshot.done.time
    found = conditions(settings.transaction, batch_time, snapshot.half_read_until())
    labels = F.array_compact(F.array(*(F.when(condition, F.lit(name)) for name, condition in found.items())))
    judged = facts(snapshot, settings).select(*KEY, "born", F.explode(labels).alias("name"))
    return judged.unionByName(_published_again(snapshot, settings.operator.queue))


def _published_again(snapshot: Snapshot, resumed_queue: int) -> DataFrame:
    """As `_labelled`: the first offset of each (producer_group, transaction_id) that is published under several.

    Where these are one discarded message that was resumed twice, a promise is broken.
    """
    topics = [snapshot.read(name) for name in snapshot.topics or ("topics/",)]
    place = F.struct(F.col("half_queue_id").alias("queue_id"), F.col("half_queue_offset").alias("queue_offset"))
    owner, origin = F.xxhash64("producer_group", "transaction_id"), F.element_at("properties", RESUMED_FROM)
    ids = [topic.select(place.alias("place"), owner.alias("who")) for topic in topics]
    resumed = [topic.where(F.col("half_queue_id") == resumed_queue) for topic in topics]
    origins = [topic.select(place.alias("place"), origin.alias("who")).where("who IS NOT NULL") for topic in resumed]
    return _several(ids, "id_published_twice").unionByName(_several(origins, "resumed_twice"))


def _several(rows: list[DataFrame], name: str) -> DataFrame:
    """As `_labelled`: the first ``place`` of each ``who`` that has more than one."""
    groups = reduce(DataFrame.unionByName, rows).groupBy("who")
    places = groups.agg(F.min("place").alias("first"), F.max("place").alias("last")).where("first != last")
    return places.select("first.*", F.lit(None).cast("bigint").alias("born"), F.lit(name).alias("name"))


def _summary(labelled: DataFrame) -> DataFrame:
    """Columns name, count, samples, oldest (birth, ms), gaps (missing offsets): one row for each finding there is.

    Samples are the oldest. Nothing grows with the number of transactions: counts, and SAMPLES of each queue.
    """
    place = F.struct("born", *KEY)
    queues = labelled.groupBy("name", "queue_id").agg(
        F.count("*").alias("count"),
        F.min("born").alias("oldest"),
        F.min_by(place, place, SAMPLES).alias("samples"),
        # As decimals: the offsets of a queue may be as far apart as numbers can be.
        (F.max("queue_offset").cast("decimal(38)") - F.min("queue_offset") + 1 - F.count("*")).alias("gaps"),
    )
    samples = F.slice(F.sort_array(F.flatten(F.collect_list("samples"))), 1, SAMPLES)
    return queues.groupBy("name").agg(
        F.sum("count").alias("count"),
        F.min("oldest").alias("oldest"),
        F.sum("gaps").alias("gaps"),
        samples.alias("samples"),
    )
