"""A real Kafka broker for tests: KRaft, one process on loopback, gone with the test; and a client of it.

The client is Kafka's own, in the JVM of the test's Spark session.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from checkback.spark.jvm import java_check

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

_START_S = 60
_CLUSTER = "Y2hlY2tiYWNrLXRlc3RzMA"
#: who may log in at the secured address
USER, PASSWORD = "checkback", "correct-horse"
_SCRAM = f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{secured},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{secured}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location={key_store}
log.dirs={folder}/logs
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.retention.ms=-1
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
super.users=User:ANONYMOUS
"""
_SERIALIZER = "org.apache.kafka.common.serialization.ByteArraySerializer"


class Broker(NamedTuple):
    """The addresses of a running broker: ``secured`` with TLS and SASL (SCRAM-SHA-512, user `USER`)."""

    servers: str
    secured: str


class Place(NamedTuple):
    """Where a record lies."""

    partition: int
    offset: int


@contextmanager
def running_broker(class_path: Sequence[str], folder: Path, key_store: Path) -> Iterator[Broker]:
    """A broker's addresses, while it runs. Its files and its log are in ``folder``; ``key_store``: PEM."""
    port, secured, controller = _free_ports(3)
    settings = folder / "server.properties"
    filled = {"port": port, "secured": secured, "controller": controller, "folder": folder, "key_store": key_store}
    settings.write_text(_PROPERTIES.format(**filled))
    java = [java_check(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", ":".join(class_path)]
    storage = [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings), "--add-scram", _SCRAM]
    log = folder / "broker.log"
    with log.open("wb") as out:
        subprocess.run(storage, stdout=out, stderr=out, check=True, timeout=_START_S)
        process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=out, stderr=out, cwd=folder)
    try:
        _await_port(port, process, log)
        yield Broker(f"127.0.0.1:{port}", f"127.0.0.1:{secured}")
    finally:
        process.kill()
        process.wait(30)


def _free_ports(number: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [int(each.getsockname()[1]) for each in held]
    for each in held:
        each.close()
    return ports


def _await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"the broker did not start: {log.read_text()[-2000:]}")


_NO_HEADERS: Mapping[str, str] = {}


class Kafka:
    """A client of a broker: makes topics, sends records, forgets them."""

    def __init__(self, spark: SparkSession, broker: Broker) -> None:
        self.servers, self.secured = broker
        self._spark = spark
        context: Any = spark.sparkContext
        self._jvm, self._gateway = context._jvm, context._gateway
        self._admin = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(self._properties())
        self._producer = self._new_producer()

    def close(self) -> None:
        self._producer.close()
        self._admin.close()

    def create(self, topic: str, partitions: int = 1, **configuration: str) -> str:
        """A new topic. ``configuration``: by Kafka's names, with _ for the dots."""
        optional = self._jvm.java.util.Optional
        new = self._jvm.org.apache.kafka.clients.admin.NewTopic(topic, optional.of(partitions), optional.empty())
        new.configs({name.replace("_", "."): value for name, value in configuration.items()})
        self._admin.createTopics(self._jvm.java.util.List.of(new)).all().get()
        return topic

    def allow_only_to_read(self, topic: str) -> None:
        """Allow `USER` nothing with the topic but to read it, and to describe it."""
        common = self._jvm.org.apache.kafka.common
        what = common.resource.ResourcePattern(
            common.resource.ResourceType.TOPIC, topic, common.resource.PatternType.LITERAL
        )
        operation, allow = common.acl.AclOperation.READ, common.acl.AclPermissionType.ALLOW
        entry = common.acl.AccessControlEntry(f"User:{USER}", "*", operation, allow)
        self._admin.createAcls(self._jvm.java.util.List.of(common.acl.AclBinding(what, entry))).all().get()

    def create_anew(self, topic: str, partitions: int = 1) -> None:
        """Delete a topic and make it again, under its name."""
        names = self._jvm.java.util.List.of(topic)
        self._admin.deleteTopics(names).all().get()
        deadline = time.monotonic() + _START_S
        while topic in self._admin.listTopics().names().get():
            assert time.monotonic() < deadline
        self.create(topic, partitions)
        # The producer knows the topic's old id.
        self._producer.close()
        self._producer = self._new_producer()

    def send(
        self, topic: str, value: str | bytes | None, partition: int = 0, timestamp_ms: int = 1, **headers: str
    ) -> Place:
        """Send a record; its place once the broker has it."""
        return self._send(self._producer, topic, value, partition, timestamp_ms, headers)

    def send_all(self, topic: str, values: Sequence[str]) -> None:
        """Send many records to partition 0, in their order, by Spark's writer; return when the broker has them."""
        rows = self._spark.createDataFrame([(value, 0) for value in values], "value string, partition int").coalesce(1)
        writer = rows.write.format("kafka").option("kafka.bootstrap.servers", self.servers)
        writer.option("topic", topic).save()

    def send_in_transaction(self, topic: str, values: Sequence[str], commit: bool) -> list[Place]:
        """Send records in a transaction of Kafka, and commit or abort it."""
        producer = self._new_producer({"transactional.id": f"test-{time.monotonic_ns()}"})
        try:
            producer.initTransactions()
            producer.beginTransaction()
            places = [self._send(producer, topic, value, 0, 1) for value in values]
            (producer.commitTransaction if commit else producer.abortTransaction)()
        finally:
            producer.close()
        return places

    def forget(self, topic: str, before: int, partition: int = 0) -> None:
        """Remove the records before an offset, as retention does."""
        place = self._jvm.org.apache.kafka.common.TopicPartition(topic, partition)
        self._admin.deleteRecords(self._jvm.java.util.Map.of(place, self._before(before))).all().get()

    def _before(self, offset: int) -> Any:
        """RecordsToDelete.beforeOffset: a static method that py4j takes for the other one of its name."""
        name = "org.apache.kafka.clients.admin.RecordsToDelete"
        methods = self._jvm.org.apache.spark.util.Utils.classForName(name, True, False).getMethods()
        (method,) = (each for each in methods if each.getName() == "beforeOffset" and each.getParameterCount())
        arguments = self._gateway.new_array(self._jvm.java.lang.Object, 1)
        arguments[0] = self._jvm.java.lang.Long.valueOf(offset)
        return method.invoke(None, arguments)

    def _properties(self, more: dict[str, str] | None = None) -> Any:
        properties = self._jvm.java.util.Properties()
        for name, text in {"bootstrap.servers": self.servers, **(more or {})}.items():
            properties.setProperty(name, text)
        return properties

    def _new_producer(self, more: dict[str, str] | None = None) -> Any:
        serializers = {"key.serializer": _SERIALIZER, "value.serializer": _SERIALIZER}
        options = self._properties({**serializers, "linger.ms": "0", **(more or {})})
        return self._jvm.org.apache.kafka.clients.producer.KafkaProducer(options)

    def _record(self, topic: str, value: str | bytes | None, partition: int, timestamp_ms: int) -> Any:
        raw = value.encode() if isinstance(value, str) else value
        long = self._jvm.java.lang.Long.valueOf(timestamp_ms)
        return self._jvm.org.apache.kafka.clients.producer.ProducerRecord(topic, partition, long, None, raw)

    def _send(
        self,
        producer: Any,
        topic: str,
        value: str | bytes | None,
        partition: int,
        timestamp_ms: int,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> Place:
        record = self._record(topic, value, partition, timestamp_ms)
        for name, text in headers.items():
            record.headers().add(name, text.encode())
        sent = producer.send(record).get()
        return Place(sent.partition(), sent.offset())


def changed(line: str, leave: Sequence[str] = (), **changes: object) -> str:
    """A line of JSON with some fields changed or left out."""
    fields = json.loads(line) | changes
    return json.dumps({name: value for name, value in fields.items() if name not in leave})
