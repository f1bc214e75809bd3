"""Topics of Kafka -> `half` and `op`: one streaming query a topic, by Spark's Kafka source.

Sources: Spark's Structured Streaming + Kafka integration guide; Kafka's consumer and admin client configuration.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F

from checkback.connect import classic_only
from checkback.errors import CheckbackError, SettingsError
from checkback.landing.records import readers
from checkback.landing.run import Inlet, Landed, run
from checkback.messages import LINE_MAX
from checkback.session import kafka_package
from checkback.settings import MASK
from checkback.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from checkback.landing.lines import Kind
    from checkback.settings import Settings

_SOURCE = (
    "org.apache.spark.sql.kafka010.KafkaSourceProvider",
    "org.apache.spark.kafka010.KafkaConfigUpdater",  # of the token provider, without which the source does not start
)
_ADMIN = "org.apache.kafka.clients.admin.AdminClient"
#: How long the first question to the brokers may take; Kafka's own default is a minute, three times.
_PATIENCE_MS = "10000"
#: How Spark says that failOnDataLoss has struck.
_LOSS = re.compile(r"KAFKA_DATA_LOSS|(?i:some data may have been (lost|missed))")
_UNKNOWN = ("UnknownTopicOrPartitionException", "InvalidTopicException")
_UNREACHABLE = ("TimeoutException", "DisconnectException")


def land(
    spark: SparkSession,
    settings: Settings,
    brokers: str,
    half_topic: str | None,
    op_topic: str | None,
    available_now: bool,
) -> Landed:
    """Take the records of topics into `half` and `op`, and what is no message into `rejected`.

    ``brokers`` are Kafka's bootstrap servers. A record is a line of JSON (`records`); the topics are read from their
    beginning, then from where the checkpoints ``land-kafka-half`` and ``land-kafka-op`` stand. Of Kafka's
    transactions only what is committed is read, unless kafka.options says otherwise. With ``available_now`` what is
    there is taken, and the function returns; else the topics are followed until SIGINT or SIGTERM, which let the
    running batch finish.

    Raises SettingsError when there is no such topic or Spark has no Kafka source, CheckbackError when no broker
    answers, records are gone before they were read, or a table cannot be read or written.
    """
    classic_only(spark, "land")
    # Ops first: an op without its half waits, a half without its op may be checked for nothing.
    named: list[tuple[Kind, str | None]] = [("op", op_topic), ("half", half_topic)]
    topics = {kind: topic for kind, topic in named if topic}
    if not topics:
        raise SettingsError("no topics to land", fix="give --half-topic TOPIC, --op-topic TOPIC or both")
    options = _options(settings, brokers)
    require_source(spark)
    check_topics(spark, topics.values(), options)
    reader = readers(settings.kafka.queue_base)
    inlets = {
        kind: Inlet(records(spark, settings, topic, options), f"land-kafka-{kind}", reader[kind])
        for kind, topic in topics.items()
    }
    try:
        return run(spark, settings, inlets, available_now)
    except CheckbackError as error:
        if _LOSS.search(error.what):
            raise _loss(error, settings) from error
        raise


def _loss(error: CheckbackError, settings: Settings) -> CheckbackError:
    """Spark's long advice about lost records as one line."""
    reason = re.search(r"Reason: ([^\n]*)", str(error.__cause__))
    what = "records of Kafka were removed before they were read" + (f": {reason[1]}" if reason else "")
    place = Tables.of(settings.storage).checkpoint(error.where.removeprefix("query "))
    fix = f"let the topic keep them longer; to go on with those that are left, remove {place}: what has landed is known"
    return CheckbackError(what, error.where, fix)


def records(spark: SparkSession, settings: Settings, topic: str, options: Mapping[str, str]) -> DataFrame:
    """The stream of a topic's records.

    line BINARY (the value), file (``kafka:topic/partition/offset``), file_time, file_block, store_timestamp (time of
    the batch), partition INT, offset BIGINT, timestamp_ms BIGINT.
    """
    reader = spark.readStream.format("kafka").options(**{f"kafka.{name}": text for name, text in options.items()})
    rows = reader.options(
        subscribe=topic,
        startingOffsets="earliest",
        # Records that are gone before they were read are lost messages: better to stop.
        failOnDataLoss="true",
        maxOffsetsPerTrigger=str(settings.kafka.max_records),
    ).load()
    value, offset = F.col("value"), F.col("offset")
    return rows.select(
        # What is far too long is cut here: it will be rejected.
        F.when(F.octet_length(value) > LINE_MAX, F.substring(value, 1, LINE_MAX + 1)).otherwise(value).alias("line"),
        F.format_string("kafka:%s/%d/%d", "topic", "partition", "offset").alias("file"),
        F.col("timestamp").alias("file_time"),
        offset.alias("file_block"),
        F.current_timestamp().alias("store_timestamp"),
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("timestamp_ms"),
    )


def _options(settings: Settings, brokers: str) -> dict[str, str]:
    """Kafka's consumer options. What the producer has aborted is no message."""
    own = {name: value.get_secret_value() for name, value in settings.kafka.options.items()}
    return {"isolation.level": "read_committed"} | own | {"bootstrap.servers": brokers}


def require_source(spark: SparkSession) -> None:
    """Raise SettingsError when Spark's Kafka source is not on the class path."""
    jvm: Any = spark.sparkContext._jvm
    if not all(jvm.org.apache.spark.util.Utils.classIsLoadable(name) for name in _SOURCE):
        raise SettingsError("Spark's Kafka source is missing", "--kafka", f"add {kafka_package()} to --packages")


def check_topics(spark: SparkSession, topics: Iterable[str], options: Mapping[str, str]) -> None:
    """Raise at once, and in one line, what Spark's source would try for minutes: no broker, no topic, no right to it.

    Raises SettingsError, CheckbackError. Where Kafka's client has another name (Databricks), nothing is asked.
    """
    jvm: Any = spark.sparkContext._jvm
    if not jvm.org.apache.spark.util.Utils.classIsLoadable(_ADMIN):
        return
    properties = jvm.java.util.Properties()
    for name, text in {"default.api.timeout.ms": _PATIENCE_MS, "request.timeout.ms": _PATIENCE_MS, **options}.items():
        properties.setProperty(name, text)
    try:
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
    except Py4JJavaError as error:
        what = f"Kafka's client cannot be made: {_masked(str(_cause(error).getMessage()), options)}"
        raise SettingsError(what, options["bootstrap.servers"], "check --kafka and kafka.options") from None
    try:
        for topic in topics:
            _describe(jvm, admin, topic, options)
    finally:
        admin.close(jvm.java.time.Duration.ZERO)


def _describe(jvm: Any, admin: Any, topic: str, options: Mapping[str, str]) -> None:
    brokers = options["bootstrap.servers"]
    try:
        admin.describeTopics(jvm.java.util.List.of(topic)).allTopicNames().get()
    except Py4JJavaError as error:
        cause = _cause(error)
        kind = str(cause.getClass().getSimpleName())
        if kind in _UNKNOWN:
            raise SettingsError(f"there is no such topic at {brokers}", topic, "create it or check its name") from None
        if kind in _UNREACHABLE:
            raise CheckbackError(
                "no Kafka broker answers", brokers, "check --kafka, kafka.options and the brokers"
            ) from None
        # Not chained: the whole text may hold what a secret is part of.
        what = f"{topic} cannot be read: {_masked(str(cause.getMessage() or kind), options)}"
        raise CheckbackError(what, brokers, "check kafka.options and the rights to the topic") from None


def _cause(error: Py4JJavaError) -> Any:
    """The Java exception that began it."""
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return cause


def _masked(text: str, options: Mapping[str, str]) -> str:
    """The text without what kafka.options holds; of a JAAS configuration Kafka quotes parts."""
    if re.search(r"(?i)jaas|login module", text):
        return "sasl.jaas.config is not one that Kafka understands"
    for name, value in options.items():
        if value and name not in ("bootstrap.servers", "isolation.level"):
            text = text.replace(value, MASK)
    return text
