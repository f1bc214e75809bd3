"""The settings model: keys, defaults and validation.

Layers, each overriding the one before: the defaults here, ``conf/base.yml``, the file of ``--config``, the environment
(``CHECKBACK__TRANSACTION__TIMEOUT=2s``), ``--set transaction.timeout=2s``. Maps merge, lists replace.
The models use their arguments only; only ``loading.load`` reads files and the environment.
"""

from __future__ import annotations

import re
from datetime import timedelta
from itertools import combinations
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator
from typing_extensions import Self

from checkback.messages.limits import BATCH_MAX, INT_MAX
from checkback.settings.spark_values import shown_value
from checkback.settings.values import (
    SECRETS,
    ConfKey,
    ConfValue,
    ConsumerGroupName,
    Count,
    DurationFromZero,
    Endpoint,
    Folder,
    GroupName,
    Lasting,
    Location,
    MediaType,
    Password,
    PositiveDuration,
    QueueId,
    Registry,
    Secret,
    SecretConf,
    Size,
    Text,
    Token,
    TopicName,
    refuse,
)
from checkback.urls import CHECKS_OF_CLIENTS, MASK, host_only, masked_each

BASE_FILE = "conf/base.yml"
#: of a new checkpoint, if nobody has set their number
MOST_PARTITIONS = 4
#: a catalog's schema, with the catalog
_SCHEMA = r"^[^.]+\.[^.]+$"
#: object stores in which Checkback commits itself (`checkback.storage.files.object_store`)
_OBJECT_STORE = re.compile(r"(?i)(?:s3a?|gs|abfss?)://")


Port = Annotated[StrictInt, Field(ge=0, le=65535)]


class _Section(BaseModel):
    # No inputs in pydantic's messages: they may be secrets.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Storage(_Section):
    """Location of the tables: paths under ``root``, or tables in ``catalog``.``schema``. URIs hold no credentials.

    ``options`` that are not set come from the environment (``AWS_ENDPOINT_URL``); their values are always masked.
    """

    root: Location = "./data"
    catalog: Text | None = None
    schema_: Text | None = Field(default=None, alias="schema")
    checkpoints: Location | None = None
    writer: Literal["auto", "spark"] = "auto"
    sync: StrictBool = True
    register_: Annotated[str, Field(pattern=_SCHEMA)] | None = Field(default=None, alias="register")
    options: dict[Text, SecretConf] = {}

    @property
    def plain_options(self) -> dict[str, str]:
        """``options`` unmasked."""
        return {key: value.get_secret_value() for key, value in self.options.items()}

    @property
    def checkpoints_root(self) -> str:
        """Folder of the queries' checkpoints: ``checkpoints``, or ``<root>/_checkpoints``."""
        return self.checkpoints or f"{self.root.rstrip('/')}/_checkpoints"

    @model_validator(mode="after")
    def _name_is_whole(self) -> Self:
        if (self.catalog is None) != (self.schema_ is None):
            refuse("storage.catalog and storage.schema go together", "set both or neither")
        if self.catalog is None and self.writer == "spark" and _OBJECT_STORE.match(self.root):
            refuse(
                "of two commits by Spark to a table in an object store, one may silently overwrite the other",
                "leave storage.writer at auto: Checkback commits there on condition that the version is new",
            )
        if self.catalog is not None and self.register_ is not None:
            refuse("storage.catalog and storage.register exclude each other", "set one of them")
        if self.catalog is not None and self.checkpoints is None:
            refuse(
                "tables in a catalog leave no folder for the checkpoints",
                "set storage.checkpoints to a folder that outlives the machine, as /Volumes/main/checkback/checkpoints",
            )
        return self


class Transaction(_Section):
    """Times and limits of the protocol; the defaults are RocketMQ's."""

    timeout: DurationFromZero = timedelta(seconds=6)
    check_interval: PositiveDuration = timedelta(seconds=60)
    check_max: Count = 15
    count_undelivered: StrictBool = True
    check_jitter: DurationFromZero = timedelta(0)
    max_age: PositiveDuration = timedelta(hours=72)

    @model_validator(mode="after")
    def _jitter_is_less(self) -> Self:
        if self.check_jitter > self.check_interval:
            refuse("transaction.check_jitter is longer than check_interval", "a tenth of check_interval is plenty")
        return self


class Reconcile(_Section):
    """The query that decides transactions."""

    trigger: DurationFromZero = timedelta(seconds=2)
    segment_size: Annotated[StrictInt, Field(ge=1, le=65536)] = 4096
    partitions: Count | None = None
    max_files: Count = 1000
    max_checks: Count = 160_000
    max_deliveries: Count = 100_000


class Check(_Section):
    """The query that sends checks to producers."""

    timeout: PositiveDuration = timedelta(seconds=5)
    concurrency: Count = 32
    ca_file: Text | None = None
    breaker_failures: Count = 10
    breaker_pause: PositiveDuration = timedelta(seconds=30)
    retry_after_max: PositiveDuration = timedelta(minutes=5)
    batch_time: PositiveDuration = timedelta(seconds=30)


class RocketMQ(_Section):
    """Ports for RocketMQ 5's clients (checkback[rocketmq]). ``groups``: producer groups of topics."""

    port: Port | None = None
    plain_port: Port | None = None
    certificate: Text | None = None
    key: Text | None = None
    groups: dict[Text, GroupName] = {}

    @model_validator(mode="after")
    def _certificate_has_its_key(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            refuse("gateway.rocketmq.certificate and key go together", "set both or neither")
        return self


class Gateway(_Section):
    """The HTTP API for producers."""

    host: Text = "127.0.0.1"
    port: Port = 8900
    queues: Annotated[list[QueueId], Field(min_length=1, max_length=64)] = [0]
    acknowledge: Literal["auto", "journal", "table"] = "auto"
    journal: Folder = ""
    flush: PositiveDuration = timedelta(milliseconds=500)
    journal_max: Annotated[Size, Field(ge=1 << 20, le=1 << 40)] = 256 << 20
    linger: DurationFromZero = timedelta(milliseconds=30)
    dedup_window: PositiveDuration = timedelta(minutes=10)
    dedup_max: Count = 1_000_000
    max_waiting: Count = 20_000
    max_body: Annotated[Size, Field(ge=1024, le=1 << 30)] = 16 << 20
    max_receiving: Annotated[Size, Field(ge=1024, le=1 << 40)] = 256 << 20
    max_headers: Annotated[Size, Field(ge=1024, le=1 << 20)] = 32 << 10
    max_connections: Count = 2000
    timeout: PositiveDuration = timedelta(seconds=10)
    reject_transactions: StrictBool = False
    rocketmq: RocketMQ = RocketMQ()

    @model_validator(mode="after")
    def _queues_differ(self) -> Self:
        if len(set(self.queues)) != len(self.queues):
            refuse("gateway.queues names a queue twice", "name each once")
        return self

    @model_validator(mode="after")
    def _largest_body_is_received(self) -> Self:
        if self.max_receiving < self.max_body:
            refuse("gateway.max_receiving is less than gateway.max_body", "a body must fit into what is received")
        return self


class Kafka(_Section):
    """Input of `land --kafka`. The values of ``options`` are always masked."""

    queue_base: QueueId = 1000
    max_records: Count = 100_000
    groups: dict[Text, Annotated[list[GroupName], Field(min_length=1)]] = {}
    options: dict[Text, SecretConf] = {}


class Operator(_Section):
    """Operator actions."""

    queue: QueueId = 2_000_000_000


class Log(_Section):
    """Logging to stderr."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] | None = None


class Metrics(_Section):
    """Prometheus metrics of `reconcile`."""

    host: Text = "127.0.0.1"
    port: Port | None = None


class Maintain(_Section):
    """Compaction and retention by `maintain`."""

    retention: Lasting = timedelta(days=7)
    log_retention: Lasting = timedelta(days=7)
    target_file_size: Annotated[Size, Field(ge=1 << 20, le=1 << 30)] = 128 << 20
    min_files: Annotated[StrictInt, Field(ge=2, le=INT_MAX)] = 10

    @model_validator(mode="after")
    def _log_is_kept_longer(self) -> Self:
        if self.retention > self.log_retention:
            refuse("maintain.retention is longer than log_retention", "a state is read by the log: set both alike")
        return self


class Retention(_Section):
    """How long rows are kept; null = for ever. ``topic``: by topic, instead of ``topics``."""

    history: Lasting | None = timedelta(days=30)
    bodies: Lasting | None = None
    topics: Lasting | None = None
    topic: dict[Text, Lasting | None] = {}
    given_up: Lasting | None = None

    def of_topic(self, topic: str) -> timedelta | None:
        """How long a topic's messages are kept."""
        return self.topic.get(topic, self.topics)


class Consumer(_Section):
    """Consumer groups."""

    session_timeout: PositiveDuration = timedelta(seconds=10)
    commit_interval: PositiveDuration = timedelta(seconds=1)


class Producer(_Section):
    """A producer group: its check endpoints, and the token that it authenticates with.

    ``checks_per_second``: rate limit of its checks, with bursts of up to ``checks_burst``; null = no limit.
    """

    endpoints: list[Endpoint] = []
    secret: Secret = None
    token: Token = None
    access_key: Text | None = None
    include_body: StrictBool = False
    checks_per_second: Annotated[float, Field(ge=0.001, le=1_000_000, allow_inf_nan=False, strict=True)] | None = None
    checks_burst: Count = 1

    @model_validator(mode="after")
    def _clients_get_the_message(self) -> Self:
        if not self.include_body and any(url.endswith(CHECKS_OF_CLIENTS) for url in self.endpoints):
            refuse(f"checks at {CHECKS_OF_CLIENTS} ask RocketMQ's clients, which need the message", "set include_body")
        return self


class Push(_Section):
    """A consumer group of `checkback push`: a topic whose messages are posted to a URL.

    ``requests_per_second``: rate limit, with bursts of up to ``requests_burst``; null = no limit.
    """

    topic: TopicName
    url: Endpoint
    mode: Literal["binary", "structured"] = "binary"
    batch: Annotated[StrictInt, Field(ge=1, le=BATCH_MAX)] | None = None
    content_type: MediaType = "application/octet-stream"
    secret: Secret = None
    token: Token = None
    tag: Text | None = None
    sql: Text | None = None
    start_from: Text = "first"
    orderly: StrictBool = False
    concurrency: Annotated[StrictInt, Field(ge=1, le=1000)] = 32
    requests_per_second: Annotated[float, Field(ge=0.001, le=1_000_000, allow_inf_nan=False, strict=True)] | None = None
    requests_burst: Count = 1
    timeout: PositiveDuration = timedelta(seconds=5)
    max_retries: Annotated[StrictInt, Field(ge=0, le=INT_MAX)] | None = None

    @model_validator(mode="after")
    def _selected_once(self) -> Self:
        if self.tag is not None and self.sql is not None:
            refuse("tag and sql exclude each other", "give one of them")
        return self


class TopicBody(_Section):
    """How a topic's bodies are read as values (docs/queries.md).

    ``schema``, or that of ``schema_file``: JSON Schema, Avro, or a FileDescriptorSet of protobuf.
    """

    body: Literal["json", "avro", "protobuf", "text", "binary"] = "binary"
    schema_: dict[str, Any] | list[Any] | Text | None = Field(default=None, alias="schema")
    schema_file: Text | None = None
    message: Text | None = None
    schema_registry: Registry | None = None
    subject: Text | None = None
    user: Text | None = None
    password: Password = None
    token: Token = None

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.schema_ is not None and self.schema_file is not None:
            refuse("schema and schema_file exclude each other", "set one of them")
        schemas = {"schema": self.schema_, "schema_file": self.schema_file, "schema_registry": self.schema_registry}
        given = [key for key, value in schemas.items() if value is not None]
        if given and self.body in ("text", "binary"):
            refuse(f"{self.body} bodies have no {given[0]}", "set body: json, avro or protobuf")
        if self.body in ("avro", "protobuf") and not given:
            refuse(f"{self.body} bodies need a schema", "set schema_file or schema_registry")
        if self.body == "protobuf" and self.schema_ is not None:
            refuse(
                "protobuf has no schema within settings", "set schema_file, as `protoc --descriptor_set_out` writes it"
            )
        if self.body == "protobuf" and self.schema_file is not None and self.message is None:
            refuse("a file of descriptors has several messages", "set message: package.Name")
        if self.message is not None and self.body != "protobuf":
            refuse(f"{self.body} bodies have no message", "leave it out")
        if self.schema_registry is None:
            for key in ("subject", "user", "password", "token"):
                if getattr(self, key) is not None:
                    refuse(f"{key} goes with schema_registry", "set it, too")
        # A password whose variable is not set is left out where it is not needed.
        if (self.password is not None and self.user is None) or (self.user is not None and self.token is not None):
            refuse("a registry takes a user and a password, or a token", "set these two, or the token")
        return self


class Dashboard(_Section):
    """The pages of `checkback dashboard`."""

    host: Text = "127.0.0.1"
    port: Port = 8902
    token: Token = None
    actions: StrictBool = False
    bodies: StrictBool = False
    trace_url: Annotated[str, Field(pattern=r"^https?://[^\s]*\{trace_id\}[^\s]*$")] | None = None


class Delay(_Section):
    """Delayed messages. A message with a longer delay is refused."""

    max: PositiveDuration = timedelta(days=40)


class Settings(_Section):
    """All settings. The constructor takes plain values only; ``load`` reads the layers."""

    storage: Storage = Storage()
    transaction: Transaction = Transaction()
    reconcile: Reconcile = Reconcile()
    check: Check = Check()
    delay: Delay = Delay()
    gateway: Gateway = Gateway()
    kafka: Kafka = Kafka()
    operator: Operator = Operator()
    log: Log = Log()
    metrics: Metrics = Metrics()
    consumer: Consumer = Consumer()
    maintain: Maintain = Maintain()
    retention: Retention = Retention()
    dashboard: Dashboard = Dashboard()
    producers: dict[GroupName, Producer] = {}
    push: dict[ConsumerGroupName, Push] = {}
    topics: dict[TopicName, TopicBody] = {}
    spark: dict[ConfKey, ConfValue] = {}

    def history(self) -> timedelta | None:
        """How long the history is kept: by it retries, and ops that come before their half messages, are recognised."""
        return self._recognising(self.retention.history)

    def bodies(self) -> timedelta | None:
        """How long `half` keeps the bodies of what has ended: by them a retry is compared. None: as its rows."""
        return self._recognising(self.retention.bodies)

    def _recognising(self, lasting: timedelta | None) -> timedelta | None:
        return None if lasting is None else max(lasting, self.transaction.max_age, self.gateway.dedup_window)

    @model_validator(mode="after")
    def _queues_are_apart(self) -> Self:
        """Check the queue of a topic's first partition only; `land` checks the others."""
        queues = {
            "gateway.queues": self.gateway.queues,
            "kafka.queue_base": [self.kafka.queue_base],
            "operator.queue": [self.operator.queue],
        }
        for (key, mine), (other, theirs) in combinations(reversed(queues.items()), 2):
            for queue in mine:
                if queue in theirs:
                    refuse(f"{key} {queue} is also in {other}", "give each a queue of its own")
        return self


def flatten(settings: Settings) -> dict[str, Any]:
    """Dotted key -> JSON value: durations and sizes as text, secrets as ``****``, unset keys as None."""
    flat: dict[str, Any] = {}
    for section, fields in settings.model_dump(mode="json", by_alias=True).items():
        if section == "spark":
            flat |= {key: shown_value(key, value) for key, value in fields.items()}
        elif section == "kafka":
            options = fields.pop("options")
            flat |= _with_groups("kafka", fields)
            flat |= {f"kafka.options.{key}": MASK for key in options}
            if not options:
                flat["kafka.options"] = {}
        elif section == "gateway":
            flat |= _with_groups("gateway.rocketmq", fields.pop("rocketmq"))
            flat |= {f"gateway.{key}": value for key, value in fields.items()}
        elif section == "producers":
            for group, values in fields.items():
                flat |= _of_group(f"producers.{group}", values | {"endpoints": masked_each(values["endpoints"])})
        elif section in ("push", "topics"):
            for name, values in fields.items():
                url = {"url": host_only(values["url"])} if "url" in values else {}
                flat |= _of_group(f"{section}.{name}", values | url)
        elif section == "storage":
            options = fields.pop("options")
            flat |= {f"storage.{key}": value for key, value in fields.items()}
            flat |= {f"storage.options.{key}": MASK for key in options}
            if not options:
                flat["storage.options"] = {}
        else:
            flat |= {f"{section}.{key}": value for key, value in fields.items()}
    return flat


def _of_group(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """Dotted key -> value of a group's settings, without its secrets."""
    masks = {key: MASK for key in SECRETS if values.get(key) is not None}
    return {f"{name}.{key}": value for key, value in (values | masks).items()}


def _with_groups(section: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Dotted key -> value of a section with ``groups``, a map by topic; an empty map is a key, too."""
    groups = fields.pop("groups")
    flat = {f"{section}.{key}": value for key, value in fields.items()}
    return flat | ({f"{section}.groups.{key}": value for key, value in groups.items()} or {f"{section}.groups": {}})
