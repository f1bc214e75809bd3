"""Schemas and table properties of Checkback's Delta tables.

Names and columns are a contract with every reader of the tables. All timestamps are UTC. Importing this needs no Spark.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)

_INT, _LONG, _STRING, _BINARY, _BOOLEAN = pa.int32(), pa.int64(), pa.string(), pa.binary(), pa.bool_()
_TIME = pa.timestamp("us", "UTC")
_PROPERTIES = pa.map_(_STRING, _STRING)
#: Delta's names of the primitive types (PROTOCOL.md of delta-io/delta, Schema Serialization Format)
_PRIMITIVE: dict[pa.DataType, str] = {
    _INT: "integer",
    _LONG: "long",
    _STRING: "string",
    _BINARY: "binary",
    _BOOLEAN: "boolean",
    _TIME: "timestamp",
}


@dataclass(frozen=True)
class Column:
    """A column of a table: its name, Arrow type and meaning. Every column is nullable."""

    name: str
    kind: pa.DataType
    comment: str


Columns = tuple[Column, ...]


def _column(name: str, kind: pa.DataType, comment: str) -> Column:
    return Column(name, kind, comment)


_QUEUE_ID = _column("queue_id", _INT, "half queue")
_QUEUE_OFFSET = _column("queue_offset", _LONG, "offset in the half queue; with queue_id it identifies the transaction")
_TRANSACTION_ID = _column("transaction_id", _STRING, "id that the producer gave the transaction")
_GROUP = _column("producer_group", _STRING, "group that sent the half message and answers its checks")
_REAL_TOPIC = _column("real_topic", _STRING, "topic of the message")
_CHECK_TIMES = _column("check_times", _INT, "number of the check")
_BORN = _column("born_timestamp", _TIME, "creation time, by the producer's clock")
_BATCH_ID = _column("batch_id", _LONG, "batch that wrote the row")

HALF: Columns = (
    _QUEUE_ID,
    _QUEUE_OFFSET,
    _TRANSACTION_ID,
    _GROUP,
    _REAL_TOPIC,
    _column("real_queue_id", _INT, "queue of the real topic"),
    _column("tags", _STRING, "RocketMQ's TAGS"),
    _column("keys", _STRING, "RocketMQ's KEYS"),
    _column("properties", _PROPERTIES, "other properties"),
    _column("body", _BINARY, "body of the message"),
    _column("erased_at", _TIME, "when tags, keys, properties and body were erased; null = they were not"),
    _BORN,
    _column("store_timestamp", _TIME, "when it landed"),
    _column("check_immunity_s", _INT, "seconds without checks after birth; null = transaction.timeout"),
    _column("delay_ms", _LONG, "ms from COMMIT to delivery; null = none"),
    _column("deliver_at", _TIME, "earliest time of delivery; null = none"),
    _column("committed", _BOOLEAN, "true = message without a transaction; null = an op decides"),
)
OP: Columns = (
    _QUEUE_ID,
    _column("queue_offset", _LONG, "queue_offset of the half message"),
    _column("transaction_id", _STRING, "transaction_id of the half message; null = omitted (batched form)"),
    _column("producer_group", _STRING, "producer_group of the half message"),
    _column(
        "state",
        _STRING,
        "COMMIT, ROLLBACK, CANCEL (by an operator, or a producer's recall), or COUNTED (no op: a check that counts)",
    ),
    _column("source", _STRING, "producer, check or operator"),
    _column("remark", _STRING, "free text; without one the traceparent of the op's request; `check N` if COUNTED"),
    _BORN,
    _column("store_timestamp", _TIME, "when it landed"),
)
TOPIC: Columns = (
    _column("half_queue_id", _INT, "queue_id of the half message"),
    _column("half_queue_offset", _LONG, "queue_offset of the half message"),
    _column("queue_id", _INT, "real_queue_id of the half message"),
    _TRANSACTION_ID,
    _GROUP,
    *HALF[6:11],
    _BORN,
    _column("half_store_timestamp", _TIME, "when the half message landed"),
    _column("published_at", _TIME, "time of the batch that published it"),
    _BATCH_ID,
)
DECISIONS: Columns = (
    _QUEUE_ID,
    _QUEUE_OFFSET,
    _TRANSACTION_ID,
    _GROUP,
    _REAL_TOPIC,
    _column("state", _STRING, "COMMIT, ROLLBACK or DISCARD; CANCEL = cancelled after its COMMIT"),
    _column("source", _STRING, "source of the deciding op: producer, check, operator; checkback = no op"),
    _column("reason", _STRING, "CHECK_MAX or EXPIRED for a DISCARD, else null"),
    _column("check_times", _INT, "checks that counted before the decision"),
    _column("decided_at", _TIME, "time of the batch that decided"),
    _BATCH_ID,
    _column("deliver_at", _TIME, "scheduled time of a COMMIT; null = published at once"),
)
DELIVERIES: Columns = (
    *DECISIONS[:5],
    _column("deliver_at", _TIME, "scheduled time"),
    _column("delivered_at", _TIME, "time of the batch that published it"),
    _BATCH_ID,
)
DISCARDED: Columns = (
    *HALF,
    _column("check_times", _INT, "checks that counted before the discard"),
    _column("reason", _STRING, "CHECK_MAX, EXPIRED or CANCELLED"),
    _column("discarded_at", _TIME, "time of the batch that discarded it"),
    _BATCH_ID,
)
CHECK_REQUESTS: Columns = (
    _QUEUE_ID,
    _QUEUE_OFFSET,
    _TRANSACTION_ID,
    _GROUP,
    _REAL_TOPIC,
    _CHECK_TIMES,
    _BORN,
    _column("requested_at", _TIME, "time of the batch that requested it"),
    _BATCH_ID,
)
CHECK_ANSWERS: Columns = (
    *CHECK_REQUESTS[:6],
    _column("endpoint", _STRING, "endpoint that answered, or the last attempted one; null = the group has none"),
    _column("outcome", _STRING, "COMMIT, ROLLBACK, UNKNOWN, NO_ANSWER or SKIPPED"),
    _column("error", _STRING, "why there is no answer; for UNKNOWN the reason in the answer, if any"),
    _column("latency_ms", _INT, "milliseconds from the first attempt to the outcome"),
    _column("answered_at", _TIME, "when the outcome was known"),
    _column(
        "failed_tries",
        pa.list_(pa.field("element", pa.struct([("endpoint", _STRING), ("error", _STRING)]), nullable=False)),
        "endpoints that failed before `endpoint`",
    ),
    _column("batch_id", _LONG, "batch of the check query"),
    _column("delivered", _BOOLEAN, "at least one endpoint received the request; null = yes"),
)
REJECTED: Columns = (
    _column("source", _STRING, "kind of input: half or op"),
    _column("raw", _STRING, "the input, at most its first 8 MiB; null = a file's error, a count of lines, or erased"),
    _column("reason", _STRING, "why it was rejected"),
    _column("file", _STRING, "source file; null = from the tables"),
    _column("rejected_at", _TIME, "when it was rejected"),
    _column("erased_at", _TIME, "when `raw` was erased; null = it was not"),
)
OPERATIONS: Columns = (
    _column("at", _TIME, "when the op or half message landed, or the dead letter was resumed"),
    _column(
        "action",
        _STRING,
        "RESOLVE_COMMIT, RESOLVE_ROLLBACK, CANCEL, RESUME, RESUME_DEAD_LETTER, ERASE; for a consumer group "
        "RESET_POSITION, REMOVE_TOPIC, REMOVE_GROUP",
    ),
    _column("actor", _STRING, "value of --actor"),
    _column("reason", _STRING, "value of --reason; for dead letters and consumer groups after the group's name"),
    *DECISIONS[:5],
    _column("new_queue_id", _INT, "half queue of the resumed message; null = not a RESUME"),
    _column("new_queue_offset", _LONG, "its offset there"),
    _column("checkback_version", _STRING, "release that wrote the row"),
)
UNPUBLISHED: Columns = (
    *TOPIC[:-2],
    _REAL_TOPIC,
    _column("reason", _STRING, "why its topic's table could not be written"),
    _column("application", _STRING, "query id of the checkpoint that ran the batch, or of the rebuild that found it"),
    _column("unpublished_at", _TIME, "time of the batch that decided it"),
    _BATCH_ID,
)
DEAD_LETTERS: Columns = (
    _column("consumer_group", _STRING, "group that could not consume the message"),
    _column("topic", _STRING, "topic of the message"),
    *TOPIC,
    _column("reconsume_times", _INT, "retries before the message was given up"),
    _column("reason", _STRING, "type and line of the last error"),
    _column("dead_at", _TIME, "when the message was given up"),
)
CONSUMER_GROUP: Columns = (
    _column(
        "kind",
        _STRING,
        "MEMBER, SUBSCRIPTION (of a member to a topic), QUEUE, RETRY, DEAD_LETTER, or RESUMED (a resumed dead letter, "
        "until `operations` records it)",
    ),
    _column("member", _STRING, "name of the member; QUEUE: its owner, null = none"),
    _column("topic", _STRING, "topic of the queue or message"),
    _column("selector", _STRING, "SUBSCRIPTION: TAG a || b or SQL92 a > 5; null = all messages"),
    _column("queue_id", _INT, "consume queue: real_queue_id modulo 64"),
    _column("consumed", pa.map_(_STRING, _LONG), "QUEUE: last completely consumed batch, by application"),
    _column("consumed_times", pa.map_(_STRING, _TIME), "QUEUE: latest time of these batches"),
    _column("application", _STRING, "application of batch_id"),
    _column("batch_id", _LONG, "QUEUE: partly consumed batch, null = none; RETRY: batch of the message"),
    _column("batch_time", _TIME, "time of batch_id"),
    _column("half_queue_id", _INT, "QUEUE: last message consumed in batch_id; RETRY: the message"),
    _column("half_queue_offset", _LONG, "likewise"),
    _column("reconsume_times", _INT, "RETRY: its number, from 1"),
    _column("due_at", _TIME, "RETRY: when it is due; DEAD_LETTER: when it was given up"),
    _column("held_since", _TIME, "RETRY: since when it blocks its queue, in order; null = it does not"),
    _column("reason", _STRING, "RETRY: last error, or who resumed it; MEMBER: last error"),
    _column("counter", _LONG, "MEMBER: heartbeats; QUEUE: changes of its owner; DEAD_LETTER: its number"),
    _column("dead_letters", _LONG, "QUEUE: messages given up so far"),
    _column(
        "kept_by",
        _STRING,
        "QUEUE: `state_id` of its SqlPositions row; MEMBER: SqlPositions; null = positions are stored here",
    ),
    _column("reset_id", _STRING, "QUEUE: id of a position set by an operator, until the owner has stored it"),
    _column("session_timeout_ms", _LONG, "MEMBER: its consumer.session_timeout"),
    _column("settled_at", _TIME, "QUEUE: batch time up to which all is consumed; MEMBER: when it joined"),
)
READ_RANGE = pa.struct([(name, _LONG) for name in ("from_version", "from_index", "to_version", "to_index")])
BATCHES: Columns = (
    _column(
        "application",
        _STRING,
        "query id of the checkpoint that ran the batch; changes with a rebuild; null = unknown",
    ),
    _BATCH_ID,
    _column("batch_time", _TIME, "time of the batch, and of its decisions, checks and messages"),
    _column("finished_at", _TIME, "when its other tables were committed"),
    _column("checkback_version", _STRING, "release that decided it; null = unknown"),
    _column("timeout_ms", _LONG, "transaction.timeout of the batch; null = unknown, as are all rules"),
    _column("check_interval_ms", _LONG, "transaction.check_interval"),
    _column("check_max", _INT, "transaction.check_max"),
    _column("max_age_ms", _LONG, "transaction.max_age"),
    _column("check_jitter_ms", _LONG, "transaction.check_jitter"),
    _column("count_undelivered", _BOOLEAN, "transaction.count_undelivered"),
    _column("committed", _LONG, "decisions COMMIT; null = unknown, as are all counts"),
    _column("rolled_back", _LONG, "decisions ROLLBACK"),
    _column("discarded", _LONG, "decisions DISCARD"),
    _column("scheduled", _LONG, "COMMIT decisions whose message is published later"),
    _column("delivered", _LONG, "scheduled messages published; null = none"),
    _column("cancelled", _LONG, "decisions CANCEL; null = none"),
    _column("checks", _LONG, "rows of check_requests"),
    _column("rejected", _LONG, "rejected half messages and ops"),
    _column("unpublished", _LONG, "committed messages whose topic's table could not be written"),
    _column(
        "table_versions",
        pa.map_(_STRING, pa.field("value", _LONG, nullable=False)),
        "Delta version of each table that the batch wrote; -1 = a topic's table that failed, maybe with some rows",
    ),
    _column(
        "read_ranges",
        pa.map_(_STRING, pa.field("value", READ_RANGE, nullable=False)),
        "files read, by source (half, op): after file from_index of Delta version from_version, up to file to_index of "
        "to_version; index -1 = none of the version; null = unknown",
    ),
    _column(
        "restored_at",
        pa.map_(_STRING, pa.field("value", _LONG, nullable=False)),
        "first batch of a rebuild: by source, the first Delta version that it did not restore",
    ),
    _column(
        "first_batch_id",
        _LONG,
        "first of the consecutive batches that retention merged into this row; null = one batch. Times are of the last "
        "batch, counts are sums",
    ),
    _column("first_batch_time", _TIME, "batch_time of first_batch_id"),
)
TICKS: Columns = (_column("tick_at", _TIME, "when a batch was requested"),)

SCHEMAS: Mapping[str, Columns] = {
    "half": HALF,
    "op": OP,
    "decisions": DECISIONS,
    "deliveries": DELIVERIES,
    "discarded": DISCARDED,
    "check_requests": CHECK_REQUESTS,
    "check_answers": CHECK_ANSWERS,
    "rejected": REJECTED,
    "operations": OPERATIONS,
    "unpublished": UNPUBLISHED,
    "dead_letters": DEAD_LETTERS,
    "batches": BATCHES,
    "ticks": TICKS,
}
TOPIC_PREFIX = "topics/"
GROUP_PREFIX = "consumer_groups/"
_BY_PREFIX: Mapping[str, Columns] = {TOPIC_PREFIX: TOPIC, GROUP_PREFIX: CONSUMER_GROUP}
#: by table, the column with the time of the batch that wrote the row; in topic tables it is published_at
BATCH_TIMES: Mapping[str, str] = {
    "decisions": "decided_at",
    "deliveries": "delivered_at",
    "discarded": "discarded_at",
    "check_requests": "requested_at",
    "unpublished": "unpublished_at",
}
#: by table, the column with a row's time; in topic tables it is published_at
ROW_TIMES: Mapping[str, str] = {
    **BATCH_TIMES,
    **dict.fromkeys(("half", "op"), "store_timestamp"),
    "batches": "finished_at",
    "check_answers": "answered_at",
    "rejected": "rejected_at",
    "ticks": "tick_at",
    "dead_letters": "dead_at",
    "operations": "at",
}
#: the columns of a message that an erasure empties
CONTENT = ("tags", "keys", "properties", "body")
#: when; only an erasure sets it
ERASED = "erased_at"
#: each query's source tables, in the order of its union, which is their order in Spark's offset log and progress
SOURCES: Mapping[str, tuple[str, ...]] = {"reconcile": ("half", "op", "ticks"), "check": ("check_requests",)}

#: Columns with min/max statistics in each file, for data skipping. They cost time in every write.
STATISTICS: Mapping[str, tuple[str, ...]] = {
    "half": ("queue_id", "queue_offset", "store_timestamp"),
    "op": ("queue_id", "queue_offset", "store_timestamp"),
    "decisions": ("queue_id", "queue_offset", "decided_at"),
    "deliveries": ("queue_id", "queue_offset", "delivered_at"),
    "discarded": ("queue_id", "queue_offset", "discarded_at"),
    "check_requests": ("queue_id", "queue_offset", "requested_at"),
    "check_answers": ("queue_id", "queue_offset", "batch_id", "answered_at"),
    "operations": ("queue_id", "queue_offset", "at"),
    "unpublished": ("half_queue_id", "half_queue_offset", "unpublished_at", "batch_id"),
    "dead_letters": ("half_queue_id", "half_queue_offset", "dead_at"),
    "batches": ("application", "batch_id", "batch_time"),
    "rejected": ("rejected_at",),
    "ticks": ("tick_at",),
    TOPIC_PREFIX: ("half_queue_id", "half_queue_offset", "published_at"),
}
#: Table property with the format of Checkback's tables, and that of this release. Another one is refused (`DeltaLog`).
FORMAT_PROPERTY, FORMAT = "checkback.format", "1"
_APPEND_ONLY = ("half", "op", "decisions", "deliveries", "operations", "batches")


def kind_of(name: str) -> str:
    """The table's name, or the prefix that it shares with all tables of its schema."""
    return next((prefix for prefix in _BY_PREFIX if name.startswith(prefix)), name)


def columns_of(name: str) -> Columns:
    """A table's columns by name: one of SCHEMAS, ``topics/<topic>`` or ``consumer_groups/<group>``."""
    kind = kind_of(name)
    return _BY_PREFIX[kind] if kind in _BY_PREFIX else SCHEMAS[kind]


def arrow_schema(name: str) -> pa.Schema:
    """A table's Arrow schema: timestamps are microseconds, UTC."""
    return _arrow_schema(kind_of(name))


@cache
def _arrow_schema(kind: str) -> pa.Schema:
    """Cached by kind, with one entry for all topics, whose number is unbounded."""
    return pa.schema([(column.name, column.kind) for column in columns_of(kind)])


def delta_schema(name: str) -> str:
    """A table's schema in JSON, as in its log (PROTOCOL.md of delta-io/delta, Schema Serialization Format)."""
    fields = [
        {"name": each.name, "type": _delta_type(each.kind), "nullable": True, "metadata": {"comment": each.comment}}
        for each in columns_of(name)
    ]
    return json.dumps({"type": "struct", "fields": fields})


def _delta_type(kind: pa.DataType) -> object:
    if pa.types.is_map(kind):
        parts = {"keyType": _delta_type(kind.key_type), "valueType": _delta_type(kind.item_type)}
        return {"type": "map", **parts, "valueContainsNull": kind.item_field.nullable}
    if pa.types.is_list(kind):
        contained = kind.value_field
        return {"type": "array", "elementType": _delta_type(contained.type), "containsNull": contained.nullable}
    if pa.types.is_struct(kind):
        fields = [
            {"name": part.name, "type": _delta_type(part.type), "nullable": part.nullable, "metadata": {}}
            for part in kind
        ]
        return {"type": "struct", "fields": fields}
    return _PRIMITIVE[kind]


def statistics_of(name: str) -> tuple[str, ...]:
    """The columns with min/max statistics in the table's files."""
    return STATISTICS.get(kind_of(name), ())


def properties_of(name: str) -> dict[str, str]:
    """The table's Delta properties (https://docs.delta.io/latest/table-properties.html)."""
    properties = {"delta.dataSkippingStatsColumns": ",".join(statistics_of(name))} if statistics_of(name) else {}
    if name in _APPEND_ONLY:
        properties["delta.appendOnly"] = "true"
    if name.startswith(GROUP_PREFIX):  # one commit a heartbeat and a position: the history is of no use
        properties["delta.logRetentionDuration"] = "interval 1 hours"
    # The log is read from its last checkpoint on: this bounds the commits to replay.
    return properties | {"delta.checkpointInterval": "20", FORMAT_PROPERTY: FORMAT}


def in_schema(rows: Rows, schema: pa.Schema) -> Rows:
    """The rows in these columns and types, whichever another writer has used for the same values.

    Columns that a file lacks are null; times are cut to microseconds.
    """
    there = set(rows.schema.names)
    columns = [
        rows.column(field.name).cast(field.type, safe=not pa.types.is_timestamp(field.type))
        if field.name in there
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return type(rows).from_arrays(columns, schema=schema)
