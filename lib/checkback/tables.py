"""Checkback's Delta tables: their schemas, where they lie, how they are made and opened.

The names and columns are a contract with everybody who reads the tables. All timestamps are UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from checkback.session import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from checkback.settings import Storage

_INT, _LONG, _STRING, _BINARY = IntegerType(), LongType(), StringType(), BinaryType()
_TIME = TimestampType()
_PROPERTIES = MapType(StringType(), StringType())


def _column(name: str, kind: DataType, comment: str) -> StructField:
    return StructField(name, kind, True, {"comment": comment})


_QUEUE_ID = _column("queue_id", _INT, "half queue")
_QUEUE_OFFSET = _column("queue_offset", _LONG, "offset in the half queue; (queue_id, queue_offset) is the transaction")
_TRANSACTION_ID = _column("transaction_id", _STRING, "the producer's name of the transaction")
_GROUP = _column("producer_group", _STRING, "group that sent the half message and answers its checks")
_REAL_TOPIC = _column("real_topic", _STRING, "topic the message is meant for")
_CHECK_TIMES = _column("check_times", _INT, "checks so far, this one included")
_BORN = _column("born_timestamp", _TIME, "when the producer made it, by its own clock")
_BATCH_ID = _column("batch_id", _LONG, "batch of the query that wrote the row")

HALF = StructType(
    [
        _QUEUE_ID,
        _QUEUE_OFFSET,
        _TRANSACTION_ID,
        _GROUP,
        _REAL_TOPIC,
        _column("real_queue_id", _INT, "queue of the real topic"),
        _column("tags", _STRING, "RocketMQ's TAGS"),
        _column("keys", _STRING, "RocketMQ's KEYS"),
        _column("properties", _PROPERTIES, "the message's other properties"),
        _column("body", _BINARY, "the message"),
        _BORN,
        _column("store_timestamp", _TIME, "when it landed"),
        _column("check_immunity_s", _INT, "seconds without checks after birth; null = transaction.timeout"),
    ]
)
OP = StructType(
    [
        _QUEUE_ID,
        _column("half_offset", _LONG, "queue_offset of the half message it ends"),
        _column("transaction_id", _STRING, "must be the half's; null = not stated (batched form)"),
        _column("producer_group", _STRING, "must be the half's"),
        _column("state", _STRING, "COMMIT or ROLLBACK"),
        _column("source", _STRING, "producer, check or operator"),
        _column("remark", _STRING, "free text"),
        _BORN,
        _column("store_timestamp", _TIME, "when it landed"),
    ]
)
TOPIC = StructType(
    [
        _column("half_queue_id", _INT, "queue_id of the half message"),
        _column("half_queue_offset", _LONG, "queue_offset of the half message"),
        _column("queue_id", _INT, "the half's real_queue_id"),
        _TRANSACTION_ID,
        _GROUP,
        *HALF.fields[6:10],
        _BORN,
        _column("half_store_timestamp", _TIME, "when the half message landed"),
        _column("committed_at", _TIME, "time of the batch that published it"),
        _BATCH_ID,
    ]
)
DECISIONS = StructType(
    [
        _QUEUE_ID,
        _QUEUE_OFFSET,
        _TRANSACTION_ID,
        _GROUP,
        _REAL_TOPIC,
        _column("state", _STRING, "COMMIT, ROLLBACK or DISCARD"),
        _column("source", _STRING, "whose op decided: producer, check, operator; checkback = no op came"),
        _column("reason", _STRING, "CHECK_MAX or EXPIRED for a DISCARD, else null"),
        _column("check_times", _INT, "checks sent before the decision"),
        _column("decided_at", _TIME, "time of the batch that decided"),
        _BATCH_ID,
    ]
)
DISCARDED = StructType(
    [
        *HALF.fields,
        _column("check_times", _INT, "checks sent before the discard"),
        _column("reason", _STRING, "CHECK_MAX or EXPIRED"),
        _column("discarded_at", _TIME, "time of the batch that discarded it"),
        _BATCH_ID,
    ]
)
CHECK_REQUESTS = StructType(
    [
        _QUEUE_ID,
        _QUEUE_OFFSET,
        _TRANSACTION_ID,
        _GROUP,
        _REAL_TOPIC,
        _CHECK_TIMES,
        _BORN,
        _column("requested_at", _TIME, "time of the batch that asks"),
        _BATCH_ID,
    ]
)
CHECK_ANSWERS = StructType(
    [
        *CHECK_REQUESTS.fields[:6],
        _column("endpoint", _STRING, "endpoint that answered, or the last one tried; null = the group has none"),
        _column("outcome", _STRING, "COMMIT, ROLLBACK, UNKNOWN or NO_ANSWER"),
        _column("error", _STRING, "why there is no answer"),
        _column("latency_ms", _INT, "from the first try to the outcome"),
        _column("answered_at", _TIME, "when the outcome was known"),
        _column(
            "failed_tries",
            ArrayType(
                StructType([StructField("endpoint", _STRING), StructField("error", _STRING)]), containsNull=False
            ),
            "endpoints tried in vain before `endpoint`",
        ),
        _column("batch_id", _LONG, "batch of the check query"),
    ]
)
REJECTED = StructType(
    [
        _column("source", _STRING, "half or op: what it was meant to be"),
        _column("raw", _STRING, "the input as it came"),
        _column("reason", _STRING, "why it could not be taken"),
        _column("file", _STRING, "file it came from; null = from the tables"),
        _column("rejected_at", _TIME, "when"),
    ]
)
TICKS = StructType([_column("tick_at", _TIME, "start of a scheduled run; wakes the timers")])

SCHEMAS: Mapping[str, StructType] = {
    "half": HALF,
    "op": OP,
    "decisions": DECISIONS,
    "discarded": DISCARDED,
    "check_requests": CHECK_REQUESTS,
    "check_answers": CHECK_ANSWERS,
    "rejected": REJECTED,
    "ticks": TICKS,
}
TOPIC_PREFIX = "topics/"

_APPEND_ONLY = {"delta.appendOnly": "true"}
# Statistics only where files are skipped by them: they cost time in every write.
_PROPERTIES_OF: Mapping[str, Mapping[str, str]] = {
    "half": _APPEND_ONLY | {"delta.dataSkippingStatsColumns": "queue_id,queue_offset,store_timestamp"},
    "op": _APPEND_ONLY | {"delta.dataSkippingStatsColumns": "queue_id,half_offset,store_timestamp"},
    "decisions": _APPEND_ONLY | {"delta.dataSkippingStatsColumns": "queue_id,queue_offset,decided_at"},
    TOPIC_PREFIX: {"delta.dataSkippingStatsColumns": "half_queue_id,half_queue_offset,committed_at"},
}


def schema_of(name: str) -> StructType:
    """The schema of a table by its name: one of SCHEMAS, or ``topics/<topic>``."""
    return TOPIC if name.startswith(TOPIC_PREFIX) else SCHEMAS[name]


def _absolute(place: str) -> str:
    return (local_path(place) or place).rstrip("/")


@dataclass(frozen=True)
class Tables:
    """Where the tables lie: under ``root`` as paths, or in ``catalog``.``schema`` as names.

    A table's name here is one of SCHEMAS, or ``topics/<topic>``.
    """

    root: str = ""
    catalog: str = ""
    schema: str = ""
    checkpoints: str = ""

    @classmethod
    def of(cls, storage: Storage) -> Tables:
        """The tables that the settings name. A local folder becomes absolute: Spark's working folder may differ."""
        return cls(
            root=_absolute(storage.root),
            catalog=storage.catalog or "",
            schema=storage.schema_ or "",
            checkpoints=_absolute(storage.checkpoints_root),
        )

    def location(self, name: str) -> str:
        """Path of a table, or its quoted three-level name."""
        if not self.catalog:
            return f"{self.root}/{name}"
        return ".".join(f"`{part}`" for part in (self.catalog, self.schema, name.replace(TOPIC_PREFIX, "topic_")))

    def checkpoint(self, query: str) -> str:
        """Checkpoint folder of a query. It is a path also where the tables are names of a catalog."""
        return f"{self.checkpoints or self.root + '/_checkpoints'}/{query}"

    def exists(self, spark: SparkSession, name: str) -> bool:
        """Is there such a table?"""
        if self.catalog:
            return spark.catalog.tableExists(self.location(name))
        from delta.tables import DeltaTable

        return DeltaTable.isDeltaTable(spark, self.location(name))

    def create(self, spark: SparkSession, *names: str) -> None:
        """Make the tables that are not there yet, side by side: each costs a Delta commit."""
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(lambda name: self._create(spark, name), names))

    def _create(self, spark: SparkSession, name: str) -> None:
        if self.exists(spark, name):
            return
        from delta.tables import DeltaTable

        builder = DeltaTable.createIfNotExists(spark).addColumns(schema_of(name))
        place = self.location(name)
        builder = builder.tableName(place) if self.catalog else builder.location(place)
        kind = TOPIC_PREFIX if name.startswith(TOPIC_PREFIX) else name
        for key, value in _PROPERTIES_OF.get(kind, {}).items():
            builder = builder.property(key, value)
        builder.execute()

    def read(self, spark: SparkSession, name: str) -> DataFrame:
        """The table as it is now."""
        place = self.location(name)
        return spark.read.table(place) if self.catalog else spark.read.format("delta").load(place)

    def stream(self, spark: SparkSession, name: str, **options: str) -> DataFrame:
        """The table as a stream of its appended rows."""
        place = self.location(name)
        reader = spark.readStream.format("delta").options(**options)
        return reader.table(place) if self.catalog else reader.load(place)

    def append(self, rows: DataFrame, name: str, app: str | None = None, version: int = 0) -> None:
        """Append; with ``app`` once: the same (app, version) is skipped when it comes again.

        That is Delta's idempotent write (https://docs.delta.io/latest/delta-streaming.html, txnAppId, txnVersion).
        ``rows`` are put in the order of the table's schema; a missing column is an error.
        """
        writer = rows.select(*schema_of(name).names).write.format("delta").mode("append")
        if app is not None:
            writer = writer.option("txnAppId", app).option("txnVersion", version)
        place = self.location(name)
        if self.catalog:
            writer.saveAsTable(place)
        else:
            writer.save(place)
