"""Metadata of Kafka topics from the brokers: at the start, to report errors in one line, and in each batch.

Offsets cannot detect a topic that was deleted and re-created: once the new one has grown beyond the checkpoint's
offsets, its first records would be skipped silently. The topic id can (KIP-516).
"""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JJavaError

from checkback.errors import CheckbackError, SettingsError
from checkback.settings import MASK
from checkback.storage.files import filesystem
from checkback.storage.queue_owners import ANY_TOPIC, mark_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

_log = logging.getLogger("checkback.land")

_ADMIN = "org.apache.kafka.clients.admin.AdminClient"
#: Timeout of the first request to the brokers; Kafka's own default is a minute, three times.
_PATIENCE_MS = "10000"
_UNKNOWN = ("UnknownTopicOrPartitionException", "InvalidTopicException")
_UNREACHABLE = ("TimeoutException", "DisconnectException")
#: Uuid.ZERO_UUID: brokers before 2.8 have no topic ids.
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
#: the topic's setting of what is done with old records: delete, compact or both
_POLICY = "cleanup.policy"
#: Prefixes of the folders in a checkpoint whose names end with the topic's id, and its name (at most 249 characters).
_NOTE, _NAME = "topic-", "name-"


class Topic(NamedTuple):
    """A topic: its name, its id (None: the broker has none) and its current number of partitions."""

    name: str
    id: str | None
    partitions: int

    @property
    def mark(self) -> int:
        """A positive number derived from the id; ANY_TOPIC = no id."""
        return ANY_TOPIC if self.id is None else mark_of(self.id)


class Brokers:
    """Kafka's admin client in the JVM; see ``connected``."""

    def __init__(self, jvm: Any, admin: Any, options: Mapping[str, str]) -> None:
        self._jvm = jvm
        self._admin = admin
        self._options = options

    def describe(self, topic: str) -> Topic:
        """The topic. Raises SettingsError if it does not exist, CheckbackError if no broker answers or access fails."""
        brokers = self._options["bootstrap.servers"]
        try:
            found = self._admin.describeTopics(self._jvm.java.util.List.of(topic)).allTopicNames().get().get(topic)
        except Py4JJavaError as error:
            cause = _cause(error)
            kind = str(cause.getClass().getSimpleName())
            if kind in _UNKNOWN:
                what = f"there is no such topic at {brokers}"
                raise SettingsError(what, topic, "create it or check its name") from None
            if kind in _UNREACHABLE:
                what = "no Kafka broker answers"
                raise CheckbackError(what, brokers, "check --kafka, kafka.options and the brokers") from None
            # Not chained: the full message may contain secrets.
            what = f"{topic} cannot be read: {_masked(str(cause.getMessage() or kind), self._options)}"
            raise CheckbackError(what, brokers, "check kafka.options and the rights to the topic") from None
        given = str(found.topicId())
        return Topic(topic, None if given == _NO_ID else given, int(found.partitions().size()))

    def refuse_compacted(self, topic: str) -> None:
        """Raise SettingsError if the broker compacts the topic: acknowledged records would vanish before they are read.

        Spark's source passes over the offsets of compacted records, whatever failOnDataLoss. If the configuration may
        not be read, a warning is logged.
        """
        config: Any = self._jvm.org.apache.kafka.common.config
        resource = config.ConfigResource(config.ConfigResource.Type.TOPIC, topic)
        try:
            entry = (
                self._admin.describeConfigs(self._jvm.java.util.List.of(resource))
                .all()
                .get()
                .get(resource)
                .get(_POLICY)
            )
        except Py4JJavaError as error:
            cause = _cause(error)
            why = _masked(str(cause.getMessage() or cause.getClass().getSimpleName()), self._options)
            _log.warning("%s: its %s cannot be read: %s; it must be delete: see docs/landing.md", topic, _POLICY, why)
            return
        policy = "" if entry is None else str(entry.value())
        if "compact" in policy.split(","):
            raise SettingsError(
                f"has {_POLICY}={policy}: Kafka removes records of equal keys, before they have landed, too",
                topic,
                f"set the topic's {_POLICY} to delete; what is compacted away already is lost",
            )


@contextmanager
def connected(spark: SparkSession, options: Mapping[str, str]) -> Iterator[Brokers | None]:
    """The brokers; None where Kafka's client has another class name (Databricks). Raises SettingsError."""
    jvm: Any = spark.sparkContext._jvm
    if not jvm.org.apache.spark.util.Utils.classIsLoadable(_ADMIN):
        yield None
        return
    properties = jvm.java.util.Properties()
    for name, text in {"default.api.timeout.ms": _PATIENCE_MS, "request.timeout.ms": _PATIENCE_MS, **options}.items():
        properties.setProperty(name, text)
    try:
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
    except Py4JJavaError as error:
        what = f"Kafka's client cannot be created: {_masked(str(_cause(error).getMessage()), options)}"
        raise SettingsError(what, options["bootstrap.servers"], "check --kafka and kafka.options") from None
    try:
        yield Brokers(jvm, admin, options)
    finally:
        admin.close(jvm.java.time.Duration.ZERO)


def check_noted(spark: SparkSession, checkpoint: str, topic: Topic, fix: str) -> None:
    """Raise SettingsError if a checkpoint belongs to another topic, CheckbackError if the topic was recreated."""
    found = filesystem.names(spark, checkpoint)
    names, noted = ([name.removeprefix(of) for name in found if name.startswith(of)] for of in (_NAME, _NOTE))
    if names and topic.name not in names:
        # Not to be removed: that topic would land once more.
        fix = f"land {names[0]} with it; another topic needs a storage.checkpoints and half queues of its own"
        raise SettingsError(f"{checkpoint} is the checkpoint of the topic {names[0]}", topic.name, fix)
    if noted and topic.id not in (None, *noted):
        raise recreated_error(topic, fix)


def note(spark: SparkSession, checkpoint: str, topic: Topic) -> None:
    """Record the topic in a checkpoint. Raises StorageError."""
    filesystem.make(spark, f"{checkpoint}/{_NAME}{topic.name}")
    if topic.id is not None:
        filesystem.make(spark, f"{checkpoint}/{_NOTE}{topic.id}")


def recreated_error(topic: Topic, fix: str) -> CheckbackError:
    """The error for a topic that is not the checkpoint's."""
    return CheckbackError(
        "the topic was deleted and created again, or another one has its name: its offsets start over", topic.name, fix
    )


def _masked(text: str, options: Mapping[str, str]) -> str:
    """The text with the values of kafka.options masked; Kafka quotes parts of a JAAS configuration."""
    if re.search(r"(?i)jaas|login module", text):
        return "sasl.jaas.config is not one that Kafka understands"
    for name, value in options.items():
        if value and name not in ("bootstrap.servers", "isolation.level"):
            text = text.replace(value, MASK)
    return text


def _cause(error: Py4JJavaError) -> Any:
    """The root cause, a Java exception."""
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return cause
