"""What the tables say about each transaction: one row per (queue_id, queue_offset) that appears in any of them.

Every table is projected to a few integers, with hashes for strings, and all are grouped once. Bodies are hashed where
they are read, before the shuffle. The only join between tables is that of `op` with the owners of its offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from checkback.inspect.check_intervals import timed
from checkback.inspect.half_rows import born
from checkback.reconcile.event_columns import delay_column, identity_columns, is_cancel, store_us, transaction_key
from checkback.reconcile.records import NOT_STATED, Reason, Source
from checkback.reconcile.rejected import REJECTION
from checkback.storage.dataframes import union

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from checkback.inspect.check_intervals import RulesHistory
    from checkback.inspect.table_versions import FixedTables

KEY = ("queue_id", "queue_offset")
#: names in a topic table and in `unpublished` -> names in `half`, and of the topic's queue
_OF_HALF = {"queue_id": "real_queue_id", "half_queue_id": "queue_id", "half_queue_offset": "queue_offset"}
#: Bits of op_states and decision_states: COMMIT by source, ROLLBACK by source, DISCARD; SCHEDULED: COMMIT for later.
COMMITS, ROLLBACKS, DISCARD, SCHEDULED = 0x0F, 0xF0, 0x100, 0x200
#: Bits of rejected.
REJECTED_HALF, REJECTED_OP, REJECTED_EARLY, REJECTED_CANCEL = 1, 2, 4, 8

#: Bits of a check: its number exceeds check_max; its number was used before.
OVER, AGAIN = 1, 2

(
    _HALF,
    _OP,
    _ALIEN_OP,
    _UNDELIVERED,
    _RECEIVED,
    _TOPIC,
    _DECISION,
    _DISCARDED,
    _CHECK,
    _GIVEN_UP,
    _REJECTED,
    _UNPUBLISHED,
    _DELIVERY,
    _CANCEL,
    _CANCELLED,
    _CANCEL_OP,
) = range(16)
#: The columns by kind of row; null if not applicable.
#: at, until: ms. Half: born, its own immunity (a duration); check: when it was requested, how long after it was due;
#: discard (given up): from which landing on a half is too young for it, how long after it was due.
#: Delivery: at, and until: when it was due. Topic and `unpublished`: at. Decision SCHEDULED: until: when it is due.
#: Op: at: 1 = it is a message without a transaction, its own COMMIT.
#: store: half or op: when it landed, us; check: when the next one is due; decision: its turn.
#: number: bits; half: its delay, as in an event; check: its turn; discard: the number of checks it lacks; received
#: check: its number. `at` of a decision: its check_times. who, content: hashes; check: check_times, bits. content of a
#: decision: when it was made (ms); of a discard: its check_times if only received checks counted.
_COLUMNS = ("at", "until", "store", "number", "who", "content")


def facts(fixed: FixedTables, rules: DataFrame, ever: RulesHistory) -> DataFrame:
    """The facts of each transaction. ``rules``: those of each batch (`batch_audit.rules`).

    Columns, integers, null if there is no such row or the value is unknown: queue_id, queue_offset; of the first half
    message at the offset: born, own_immunity (ms), landed (us), who, content; halves, messages (without a transaction),
    published, unpublished, decisions, discarded (rows), half_contents, half_owners, delays (as in an event),
    topic_contents, discarded_contents, decision_owners (also those of cancels and deliveries; min and max, as an
    array); ops, alien_ops, undelivered (rows), received (highest number), op_states, op_landed (us, first),
    alien_landed (us, last); decision_states, decided_checks (max), decided_turn (first); checks (rows),
    repeated_checks, over_limit (bit), last_check, last_turn, first_check_at (ms), next_check_at (ms, by the last
    check), least_slack (ms); of discards: least_end_slack, too_young (ms: halves that landed then or later), lacking
    (checks), unreceived (check_times, if all had to be received); rejected (bits); committed_at (ms, of the COMMIT),
    deliver_at (ms, by it), due_at (ms, the latest by it or a delivery), delivered_at, published_at, unpublished_at (ms,
    first); deliveries, cancels, cancelled, cancel_ops (rows), cancel_landed (us, first).
    """
    half = fixed.read("half")
    rows = [
        _half_rows(half, fixed.ignores_case),
        _op_rows(fixed.read("op"), half),
        # A message without a transaction is its own COMMIT.
        _rows(half.where("committed"), _OP, at=F.lit(1), store=store_us(), number=F.lit(1 << Source.PRODUCER)),
        _delivery_rows(fixed.read("deliveries")),
        _decision_rows(fixed.read("decisions"), rules),
        _discarded_rows(fixed.read("discarded"), fixed.ignores_case),
        _timed_rows(timed(fixed.read("check_requests"), fixed.read("decisions"), rules, ever)),
        _rejected_rows(fixed.read("rejected")),
        _rows(fixed.read("unpublished").withColumnsRenamed(_OF_HALF), _UNPUBLISHED, at=F.unix_millis("unpublished_at")),
        _topic_rows(fixed.read_topics(), fixed.ignores_case),
    ]
    # Shuffle before aggregating: the rows are narrow, the aggregates wide, and few rows share a key.
    moved = union(rows).repartition(*KEY)
    return moved.groupBy(*KEY).agg(*_half_facts(), *_op_facts(), *_other_facts(), *_timed_facts())


def _half_facts() -> list[Column]:
    store = _of("store", _HALF)
    return [
        *(
            F.min_by(_of(column, _HALF), store).alias(name)
            for column, name in (("at", "born"), ("until", "own_immunity"))
        ),
        *(F.min_by(_of(column, _HALF), store).alias(column) for column in ("who", "content")),
        F.min(_of("store", _HALF)).alias("landed"),
        _count(_HALF).alias("halves"),
        _span("content", _HALF).alias("half_contents"),
        _span("who", _HALF).alias("half_owners"),
        _span("number", _HALF).alias("delays"),
    ]


def _op_facts() -> list[Column]:
    return [
        F.count_if(_is(_OP) | _is(_ALIEN_OP)).alias("ops"),
        _count(_ALIEN_OP).alias("alien_ops"),
        _count(_UNDELIVERED).alias("undelivered"),
        F.max(_of("number", _RECEIVED)).alias("received"),
        _bits(_OP).alias("op_states"),
        F.min(_of("store", _OP)).alias("op_landed"),
        F.count(_of("at", _OP)).alias("messages"),
        _count(_CANCEL_OP).alias("cancel_ops"),
        F.min(_of("store", _CANCEL_OP)).alias("cancel_landed"),
        F.max(_of("store", _ALIEN_OP)).alias("alien_landed"),
    ]


def _other_facts() -> list[Column]:
    return [
        _count(_TOPIC).alias("published"),
        _count(_UNPUBLISHED).alias("unpublished"),
        _span("content", _TOPIC).alias("topic_contents"),
        _count(_DISCARDED).alias("discarded"),
        F.array(
            *(pick(F.coalesce(_of("content", _DISCARDED), _of("content", _CANCELLED))) for pick in (F.min, F.max))
        ).alias("discarded_contents"),
        _count(_DECISION).alias("decisions"),
        _bits(_DECISION).alias("decision_states"),
        F.max(_of("at", _DECISION)).alias("decided_checks"),
        F.min(_of("store", _DECISION)).alias("decided_turn"),
        _span("who", _DECISION, _CANCEL, _DELIVERY).alias("decision_owners"),
        _bits(_REJECTED).alias("rejected"),
        F.max(F.when(F.col("number").bitwiseAND(COMMITS) != 0, _of("content", _DECISION))).alias("committed_at"),
        F.max(_of("until", _DECISION)).alias("deliver_at"),
        F.max(_of("until", _DECISION, _DELIVERY)).alias("due_at"),
        F.min(_of("at", _DELIVERY)).alias("delivered_at"),
        F.min(_of("at", _TOPIC)).alias("published_at"),
        F.min(_of("at", _UNPUBLISHED)).alias("unpublished_at"),
        _count(_DELIVERY).alias("deliveries"),
        _count(_CANCEL).alias("cancels"),
        _count(_CANCELLED).alias("cancelled"),
    ]


def _timed_facts() -> list[Column]:
    bits = F.col("content")
    return [
        _count(_CHECK).alias("checks"),
        F.count_if(_is(_CHECK) & (bits.bitwiseAND(AGAIN) != 0)).alias("repeated_checks"),
        F.count_if(_is(_CHECK) & (bits.bitwiseAND(OVER) != 0)).alias("over_limit"),
        F.max(_of("who", _CHECK)).alias("last_check"),
        F.max(_of("number", _CHECK)).alias("last_turn"),
        F.min(_of("at", _CHECK)).alias("first_check_at"),
        F.max_by(_of("store", _CHECK), _of("number", _CHECK)).alias("next_check_at"),
        F.min(_of("until", _CHECK)).alias("least_slack"),
        F.min(_of("until", _GIVEN_UP)).alias("least_end_slack"),
        F.min(_of("at", _GIVEN_UP)).alias("too_young"),
        F.max(_of("number", _GIVEN_UP)).alias("lacking"),
        F.max(_of("content", _GIVEN_UP)).alias("unreceived"),
    ]


def _is(kind: int) -> Column:
    return F.col("kind") == kind


def _of(column: str, *kinds: int) -> Column:
    return F.when(F.col("kind").isin(*kinds), F.col(column))


def _count(kind: int) -> Column:
    return F.count_if(_is(kind))


def _span(column: str, *kinds: int) -> Column:
    """Min and max: all values, if there are at most two distinct ones."""
    return F.array(F.min(_of(column, *kinds)), F.max(_of(column, *kinds)))


def _bits(kind: int) -> Column:
    return F.coalesce(F.bit_or(_of("number", kind)), F.lit(0))


def _rows(table: DataFrame, kind: int | Column, **columns: Column) -> DataFrame:
    values = (columns.get(name, F.lit(None)).cast("bigint").alias(name) for name in _COLUMNS)
    return table.select(*KEY, F.lit(kind).cast("tinyint").alias("kind"), *values)


def _content(topic: Column, queue: str, landed: str, ignore_case: bool) -> Column:
    """Hash of a message and its destination. Nulls are distinguished explicitly: xxhash64 skips them."""
    # A catalog may have lower-cased the table's name.
    topic = F.lower(topic) if ignore_case else topic
    names = ("transaction_id", "producer_group", queue, "tags", "keys", "born_timestamp", landed)
    # Maps have no order and cannot be hashed.
    properties = F.sort_array(F.map_entries("properties"))
    nulls = F.concat(*(F.isnull(name).cast("string") for name in (*names, "properties", "body")))
    return F.xxhash64(topic, *names, properties, "body", nulls)


def _half_rows(half: DataFrame, ignore_case: bool) -> DataFrame:
    own = F.col("check_immunity_s").cast("bigint")
    return _rows(
        half,
        _HALF,
        at=F.unix_millis(born()),
        until=F.when(own >= 0, own * 1000),
        store=store_us(),
        number=delay_column(),
        who=transaction_key(),
        content=_content(F.col("real_topic"), "real_queue_id", "store_timestamp", ignore_case),
    )


def _delivery_rows(deliveries: DataFrame) -> DataFrame:
    at, due = F.unix_millis("delivered_at"), F.unix_millis("deliver_at")
    return _rows(deliveries, _DELIVERY, at=at, until=due, who=transaction_key())


def _discarded_rows(discarded: DataFrame, ignore_case: bool) -> DataFrame:
    content = _content(F.col("real_topic"), "real_queue_id", "store_timestamp", ignore_case)
    kind = F.when(F.col("reason") == "CANCELLED", _CANCELLED).otherwise(_DISCARDED)
    return _rows(discarded, kind, content=content)


def _topic_rows(topics: DataFrame, ignore_case: bool) -> DataFrame:
    named = topics.withColumnsRenamed(_OF_HALF)
    content = _content(F.col("topic"), "real_queue_id", "half_store_timestamp", ignore_case)
    return _rows(named, _TOPIC, at=F.unix_millis("committed_at"), content=content)


def _source_bit() -> Column:
    """1: producer, 2: check, 4: operator, as `reconcile.event_columns` maps them; 8: none of these."""
    bit = F.lit(1 << Source.PRODUCER)
    for source in (Source.CHECK, Source.OPERATOR, Source.CHECKBACK):
        bit = F.when(F.col("source") == source.name.lower(), 1 << source).otherwise(bit)
    return bit


def _state_bits() -> Column:
    state = F.col("state")
    return (
        F.when(state == "COMMIT", _source_bit())
        .when(state == "ROLLBACK", _source_bit() * 16)
        .when(state == "DISCARD", F.lit(DISCARD))
        .otherwise(F.lit(0))
    )


def _op_rows(op: DataFrame, half: DataFrame) -> DataFrame:
    """Ops; alien ones have another group or transaction id than the first half message at the offset.

    UNDELIVERED and DELIVERED report the delivery of a check, not the transaction's state (UNDELIVERED, written by a
    previous release: no endpoint received it).
    """
    group, transaction = identity_columns()
    ops = op.withColumnRenamed("half_offset", "queue_offset").select(
        *KEY, group, transaction, store_us(), _state_bits().alias("bits"), "state", "source", "remark"
    )
    owners = half.groupBy(*KEY).agg(
        F.min_by(group, store_us()).alias("own_group"), F.min_by(transaction, store_us()).alias("own_transaction")
    )
    judged = ops.join(owners, on=list(KEY), how="left")
    own_group = F.col("group_hash") == F.col("own_group")
    own_id = (F.col("transaction_hash") == NOT_STATED) | (F.col("transaction_hash") == F.col("own_transaction"))
    received, by_check = F.col("state") == "DELIVERED", F.col("source") == "check"
    kind = F.when(F.col("state") == "UNDELIVERED", _UNDELIVERED).when(received & by_check, _RECEIVED)
    kind = kind.when(own_group & own_id & is_cancel(), _CANCEL_OP).when(own_group & own_id, _OP).otherwise(_ALIEN_OP)
    number = F.regexp_extract("remark", "^check ([0-9]{1,9})$", 1).try_cast("bigint")
    number = F.when(kind == _RECEIVED, number).otherwise(F.col("bits"))
    return _rows(judged, kind, store=F.col("store_us"), number=number)


def _decision_rows(decisions: DataFrame, rules: DataFrame) -> DataFrame:
    of_batch = decisions.withColumn("ms", F.unix_millis("decided_at"))
    of_batch = of_batch.join(rules.select("batch_id", "ms", "turn"), on=["batch_id", "ms"], how="left")
    scheduled = F.when(F.col("deliver_at").isNotNull(), SCHEDULED).otherwise(0)
    return _rows(
        of_batch,
        F.when(F.col("state") == "CANCEL", _CANCEL).otherwise(_DECISION),
        at=F.col("check_times"),
        until=F.unix_millis("deliver_at"),
        number=_state_bits().bitwiseOR(scheduled),
        who=transaction_key(),
        content=F.col("ms"),
        store=F.col("turn"),
    )


def _timed_rows(rows: DataFrame) -> DataFrame:
    """Rows of `check_intervals.timed`: checks and discards."""
    lacking = F.col("needed") - F.when(F.col("reason") == "EXPIRED", F.col("asked")).otherwise(F.col("number"))
    bits = F.when(F.col("over"), OVER).otherwise(0) + F.when(F.col("again"), AGAIN).otherwise(0)
    check = ~F.col("discard")
    return _rows(
        rows,
        F.when(check, _CHECK).otherwise(_GIVEN_UP),
        at=F.when(check, F.col("ms")).otherwise(F.col("landed_before")),
        until=F.col("slack"),
        store=F.col("due"),
        number=F.when(check, F.col("turn")).otherwise(lacking),
        who=F.when(check, F.col("number")),
        content=F.when(check, bits).when(F.col("all_uncounted"), F.col("number")),
    )


def _rejected_rows(rejected: DataFrame) -> DataFrame:
    """Inputs that `reconcile` rejected: the offset is parsed from reason or raw."""
    half, early = F.col("source") == "half", F.col("reason") == REJECTION[Reason.NO_HALF]
    alien = F.col("reason").isin(REJECTION[Reason.WRONG_GROUP], REJECTION[Reason.WRONG_TRANSACTION_ID])
    place = r"^repeated \(queue_id, queue_offset\) (\d+)/(\d+)$"
    queue_id, offset = (
        F.when(half, F.regexp_extract("reason", place, group)).otherwise(F.get_json_object("raw", f"$.{name}"))
        for group, name in ((1, "queue_id"), (2, "half_offset"))
    )
    too_many = F.col("reason") == REJECTION[Reason.TOO_MANY]  # rejected before its owner was compared
    bits = F.when(half, REJECTED_HALF).when(alien, REJECTED_OP).when(early, REJECTED_EARLY)
    bits = bits.when(too_many, REJECTED_OP | REJECTED_EARLY)
    bits = bits.when(F.col("reason") == REJECTION[Reason.NOT_SCHEDULED], REJECTED_CANCEL)
    named = rejected.select(
        queue_id.try_cast("int").alias("queue_id"), offset.try_cast("bigint").alias("queue_offset"), bits.alias("bits")
    ).where(F.col("queue_id").isNotNull() & F.col("queue_offset").isNotNull() & F.col("bits").isNotNull())
    return _rows(named, _REJECTED, number=F.col("bits"))
