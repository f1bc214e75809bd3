"""Topics of Kafka as the brokers describe them: asked at the start, when what is wrong is one line, and in each batch.

Offsets do not tell a topic from one that was made anew under its name: once the new one has grown beyond where the
checkpoint stands, its first records would be passed over without a word. Its id does (KIP-516).
"""

from __future__ import annotations

import hashlib
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JJavaError

from checkback.errors import CheckbackError, SettingsError
from checkback.settings import MASK
from checkback.storage import filesystem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

_ADMIN = "org.apache.kafka.clients.admin.AdminClient"
#: How long the first question to the brokers may take; Kafka's own default is a minute, three times.
_PATIENCE_MS = "10000"
_UNKNOWN = ("UnknownTopicOrPartitionException", "InvalidTopicException")
_UNREACHABLE = ("TimeoutException", "DisconnectException")
#: Uuid.ZERO_UUID: a broker before 2.8 gives topics no id.
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
#: Of the folder in a checkpoint whose name ends with the id of its topic.
_NOTE = "topic-"


class Topic(NamedTuple):
    """A topic: its name, its id (None: the broker gives none) and how many partitions it has now."""

    name: str
    id: str | None
    partitions: int

    @property
    def mark(self) -> int:
        """A positive number that stands for the id; 1 stands for none."""
        return 1 if self.id is None else 2 + (int.from_bytes(hashlib.sha256(self.id.encode()).digest()[:7], "big"))


class Brokers:
    """Kafka's admin client in the JVM; see ``connected``."""

    def __init__(self, jvm: Any, admin: Any, options: Mapping[str, str]) -> None:
        self._jvm = jvm
        self._admin = admin
        self._options = options

    def describe(self, topic: str) -> Topic:
        """The topic. Raises SettingsError when there is none, CheckbackError when no broker answers, or not to us."""
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
            # Not chained: the whole text may hold what a secret is part of.
            what = f"{topic} cannot be read: {_masked(str(cause.getMessage() or kind), self._options)}"
            raise CheckbackError(what, brokers, "check kafka.options and the rights to the topic") from None
        given = str(found.topicId())
        return Topic(topic, None if given == _NO_ID else given, int(found.partitions().size()))


@contextmanager
def connected(spark: SparkSession, options: Mapping[str, str]) -> Iterator[Brokers | None]:
    """The brokers; None where Kafka's client has another name (Databricks). Raises SettingsError."""
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
        what = f"Kafka's client cannot be made: {_masked(str(_cause(error).getMessage()), options)}"
        raise SettingsError(what, options["bootstrap.servers"], "check --kafka and kafka.options") from None
    try:
        yield Brokers(jvm, admin, options)
    finally:
        admin.close(jvm.java.time.Duration.ZERO)


def check_noted(spark: SparkSession, checkpoint: str, topic: Topic, fix: str) -> None:
    """Raise CheckbackError when a checkpoint is of another topic."""
    noted = [name.removeprefix(_NOTE) for name in filesystem.names(spark, checkpoint) if name.startswith(_NOTE)]
    if noted and topic.id not in (None, *noted):
        raise made_anew(topic, fix)


def note(spark: SparkSession, checkpoint: str, topic: Topic) -> None:
    """Note in a checkpoint which topic it is of. Raises StorageError."""
    if topic.id is not None:
        filesystem.make(spark, f"{checkpoint}/{_NOTE}{topic.id}")


def made_anew(topic: Topic, fix: str) -> CheckbackError:
    """That a topic is not the one that the checkpoint is of."""
    return CheckbackError(
        "the topic was made anew, or is another one than before: its offsets begin anew", topic.name, fix
    )


def _masked(text: str, options: Mapping[str, str]) -> str:
    """The text without what kafka.options holds; of a JAAS configuration Kafka quotes parts."""
    if re.search(r"(?i)jaas|login module", text):
        return "sasl.jaas.config is not one that Kafka understands"
    for name, value in options.items():
        if value and name not in ("bootstrap.servers", "isolation.level"):
            text = text.replace(value, MASK)
    return text


def _cause(error: Py4JJavaError) -> Any:
    """The Java exception that began it."""
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return cause
