"""Kafka topics -> `half` and `op`: one streaming query per topic, with Spark's Kafka source.

Sources: Spark's Structured Streaming + Kafka integration guide; Kafka's consumer and admin client configuration.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.errors import IllegalArgumentException
from pyspark.sql import functions as F

from checkback.errors import CheckbackError, SettingsError
from checkback.landing.kafka_metadata import check_noted, connected, note, recreated_error
from checkback.landing.kafka_records import HEADERS, REGISTRY_HEADER, readers
from checkback.landing.landing_queries import Landed, LandingStream, has_begun, made_with, run
from checkback.messages.limits import LINE_MAX
from checkback.spark.connect import classic_only
from checkback.spark.session import kafka_package
from checkback.storage.queue_owners import ANY_TOPIC, QueueOwner, log_of_half, refuse_elsewhere, refuse_foreign
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from checkback.landing.kafka_metadata import Brokers, Topic
    from checkback.landing.parser import Kind
    from checkback.settings import Settings
    from checkback.storage.log.delta_log import DeltaLog

_SOURCE = (
    "org.apache.spark.sql.kafka010.KafkaSourceProvider",
    "org.apache.spark.kafka010.KafkaConfigUpdater",  # of the token provider, without which the source does not start
)
_OWN_QUEUES = "give each queues of its own"
#: Spark's error for an option that it sets itself
_UNSUPPORTED = re.compile(r"Kafka option '([^']+)' is not supported")
#: Spark's error for failOnDataLoss.
_LOSS = re.compile(r"KAFKA_DATA_LOSS|(?i:some data may have been (lost|missed))")


def land(
    spark: SparkSession,
    settings: Settings,
    brokers: str,
    half_topic: str | None,
    op_topic: str | None,
    available_now: bool,
) -> Landed:
    """Land the records of topics in `half` and `op`, and invalid ones in `rejected`.

    ``brokers``: Kafka's bootstrap servers. A record is a line of JSON (`kafka_records`); the topics are read from the
    earliest offset, then from the offsets in the checkpoints ``land-kafka-half`` and ``land-kafka-op``. Isolation level
    read_committed, unless kafka.options overrides it. With ``available_now`` the available records are landed, and the
    function returns; else the topics are followed until SIGINT or SIGTERM, which let the running batch finish.

    Raises SettingsError if there is no such topic, Spark has no Kafka source, or a half queue of the topic has another
    owner; CheckbackError if no broker answers, records were deleted before they were read, a topic was re-created, or a
    table cannot be read or written.
    """
    classic_only(spark, "land")
    # Ops first: an op without its half waits, a half without its op may be checked needlessly.
    named: list[tuple[Kind, str | None]] = [("op", op_topic), ("half", half_topic)]
    topics = {kind: topic for kind, topic in named if topic}
    if not topics:
        raise SettingsError("no topics to land", fix="give --half-topic TOPIC, --op-topic TOPIC or both")
    options = _options(settings, brokers)
    require_source(spark)
    tables = Tables.of(settings.storage)
    with connected(spark, options) as admin:
        found = {} if admin is None else {kind: admin.describe(topic) for kind, topic in topics.items()}
        if admin is not None:
            for name in topics.values():
                admin.refuse_compacted(name)
        fixes = {kind: _fix(kind, tables) for kind in topics}
        for kind, topic in found.items():
            check_noted(spark, tables.checkpoint(_query(kind)), topic, fixes[kind])
        if "half" in topics:
            _check_half_queues(spark, settings, tables, found.get("half"))
        inlets = {}
        for kind, name in topics.items():
            confirm: Callable[[], object] = bool
            if admin is not None:
                note(spark, tables.checkpoint(_query(kind)), found[kind])
                confirm = partial(_confirm, admin, found[kind], fixes[kind])
            reader = readers(settings.kafka.queue_base, settings.kafka.groups.get(name))[kind]
            inlets[kind] = LandingStream(records(spark, settings, name, options), _query(kind), reader, confirm=confirm)
        mark = found["half"].mark if "half" in found else ANY_TOPIC
        try:
            return run(spark, settings, inlets, QueueOwner.KAFKA, available_now, mark=mark)
        except CheckbackError as error:
            if _LOSS.search(error.what):
                raise _loss(error, settings) from error
            raise


def _check_half_queues(spark: SparkSession, settings: Settings, tables: Tables, topic: Topic | None) -> None:
    """Raise SettingsError if another owner or topic has one of them, or this topic has landed in others."""
    checkpoint, half = tables.checkpoint(_query("half")), log_of_half(tables)
    if topic is not None:
        check_queues(settings, half, topic)
    _keep_base(spark, checkpoint, settings.kafka.queue_base)
    if topic is not None and not has_begun(spark, checkpoint):
        refuse_elsewhere(half, _queues(settings, topic), topic.mark, topic.name)


def check_queues(settings: Settings, half: DeltaLog | None, topic: Topic) -> None:
    """Raise SettingsError if a partition's half queue has another owner or topic, by the settings or `half`."""
    queues = _queues(settings, topic)
    told = f"partitions of {topic.name} are half queues {queues[0]} to {queues[-1]}" if queues else ""
    for key, others in (("gateway.queues", settings.gateway.queues), ("operator.queue", [settings.operator.queue])):
        for queue in others:
            if queue in queues:
                raise SettingsError(f"{told}, and {queue} is in {key}", "kafka.queue_base", _OWN_QUEUES)
    refuse_foreign(half, queues, QueueOwner.KAFKA, "kafka.queue_base", topic.mark)


def _queues(settings: Settings, topic: Topic) -> range:
    """The half queues of its partitions."""
    return range(settings.kafka.queue_base, settings.kafka.queue_base + topic.partitions)


def _keep_base(spark: SparkSession, checkpoint: str, base: int) -> None:
    """Raise SettingsError if the half topic's checkpoint was made with another base.

    That of the op topic is not asked: it continues when the half topic is recreated, with another base.
    """
    other = made_with(spark, checkpoint, "queue_base", str(base))
    if other is not None:
        what = f"is {base}, but the checkpoint {checkpoint} was made with {other}"
        raise SettingsError(what, "kafka.queue_base", f"set it to {other}: ops name what has landed by it")


def _query(kind: Kind) -> str:
    return f"land-kafka-{kind}"


def _fix(kind: Kind, tables: Tables) -> str:
    """The fix for a topic that was re-created."""
    fix = f"to land it from its beginning remove {tables.checkpoint(_query(kind))}"
    if kind == "op":
        return fix
    return f"{fix} and give it half queues of its own (--queue-base N): the previous ones hold its old offsets"


def _confirm(admin: Brokers, topic: Topic, fix: str) -> None:
    """Raise CheckbackError if the topic was re-created: a batch may have read records of the new one."""
    if admin.describe(topic.name).id != topic.id:
        raise recreated_error(topic, fix)


def _loss(error: CheckbackError, settings: Settings) -> CheckbackError:
    """Spark's long message about data loss, in one line."""
    reason = re.search(r"Reason: ([^\n]*)", str(error.__cause__))
    what = "records of Kafka were removed before they were read" + (f": {reason[1]}" if reason else "")
    place = Tables.of(settings.storage).checkpoint(error.where.removeprefix("query "))
    fix = f"let the topic keep them longer; to go on with those that are left, remove {place}: what has landed is known"
    return CheckbackError(what, error.where, fix)


def records(spark: SparkSession, settings: Settings, topic: str, options: Mapping[str, str]) -> DataFrame:
    """The stream of a topic's records. Raises SettingsError for an option that Spark sets itself.

    line BINARY (the value, without a Schema Registry header before JSON), file (``kafka:topic/partition/offset``),
    file_time, file_block, store_timestamp (time of the batch), partition INT, offset BIGINT, timestamp_ms BIGINT,
    traceparent STRING and tracestate STRING (headers).
    """
    reader = spark.readStream.format("kafka").options(**{f"kafka.{name}": text for name, text in options.items()})
    reader = reader.options(
        subscribe=topic,
        startingOffsets="earliest",
        # Records deleted before they were read are lost messages: fail instead.
        failOnDataLoss="true",
        maxOffsetsPerTrigger=str(settings.kafka.max_records),
        includeHeaders="true",
    )
    try:
        rows = reader.load()
    except IllegalArgumentException as error:
        named = _UNSUPPORTED.search(str(error))
        if named is None:
            raise
        raise SettingsError(f"Spark's Kafka source does not take {named[1]}", "kafka.options", "leave it out") from None
    offset, value = F.col("offset"), F.col("value")
    registered = (F.substring(value, 1, 1) == F.lit(b"\0")) & (
        F.substring(value, REGISTRY_HEADER + 1, 1) == F.lit(b"{")
    )
    value = F.when(registered, F.substring(value, REGISTRY_HEADER + 1, LINE_MAX + 1)).otherwise(value)
    return rows.select(
        # Oversized values are truncated here; they will be rejected.
        F.when(F.octet_length(value) > LINE_MAX, F.substring(value, 1, LINE_MAX + 1)).otherwise(value).alias("line"),
        F.format_string("kafka:%s/%d/%d", "topic", "partition", "offset").alias("file"),
        F.col("timestamp").alias("file_time"),
        offset.alias("file_block"),
        F.current_timestamp().alias("store_timestamp"),
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("timestamp_ms"),
        *(_header(name) for name in HEADERS),
    )


def _header(name: str) -> Column:
    """The last header of this name, as text, or null."""
    values = F.filter("headers", lambda header: header["key"] == name)
    return F.try_element_at(values, F.lit(-1))["value"].cast("string").alias(name)


def _options(settings: Settings, brokers: str) -> dict[str, str]:
    """Kafka's consumer options. Aborted records are not messages."""
    own = {name: value.get_secret_value() for name, value in settings.kafka.options.items()}
    return {"isolation.level": "read_committed"} | own | {"bootstrap.servers": brokers}


def require_source(spark: SparkSession) -> None:
    """Raise SettingsError if Spark's Kafka source is not on the class path."""
    jvm: Any = spark.sparkContext._jvm
    if not all(jvm.org.apache.spark.util.Utils.classIsLoadable(name) for name in _SOURCE):
        raise SettingsError("Spark's Kafka source is missing", "--kafka", f"add {kafka_package()} to --packages")
