"""What the tables say of each transaction: one row for each (queue_id, queue_offset) that any of them names.

All tables become rows of a few whole numbers, hashes for strings, which are grouped once: bodies are read and hashed
where they lie, and no table is joined with another but `op` with the owners of its offsets.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from checkback.inspect.undecided import born, immunity_s
from checkback.reconcile.columns import identity_columns, store_us
from checkback.reconcile.rejected import REJECTION
from checkback.reconcile.segment import NOT_STATED, Reason, Source
from checkback.schemas import TOPIC_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import Column

    from checkback.inspect.snapshot import Snapshot
    from checkback.settings import Settings

KEY = ("queue_id", "queue_offset")
#: as a topic's table and `unpublished` name the half message, and the queue of the topic
_OF_HALF = {"queue_id": "real_queue_id", "half_queue_id": "queue_id", "half_queue_offset": "queue_offset"}
#: Bits of op_states and decision_states: COMMIT by each source, ROLLBACK by each source, DISCARD.
COMMITS, ROLLBACKS, DISCARD = 0x0F, 0xF0, 0x100
#: Bits of rejected.
REJECTED_HALF, REJECTED_OP, REJECTED_EARLY = 1, 2, 4

_HALF, _OP, _ALIEN_OP, _UNDELIVERED, _TOPIC, _DECISION, _DISCARDED, _CHECK, _REJECTED, _UNPUBLISHED = range(10)
#: What a row says, by its kind; null where it says nothing.
#: at, until: ms. Of half: birth, end of the immunity; of a check: when it was requested, ms since the one before.
#: store: of half and op: when it landed, us; of a check: 1 = its check_times was there before, else 0.
#: number: bits, of a check its check_times; `at` of a decision: its check_times. who, content: hashes.
_COLUMNS = ("at", "until", "store", "number", "who", "content")


def facts(snapshot: Snapshot, settings: Settings) -> DataFrame:
    """The facts of each transaction.

    Columns, whole numbers, null where there is no such row: queue_id, queue_offset; of the first half message that
    took the offset: born, immune_until (ms), landed (us), who, content; halves, published, unpublished, decisions,
    discarded (rows), half_contents, half_owners, topic_contents, discarded_contents, decision_owners (least and
    greatest, as an array); ops, alien_ops, undelivered (rows), op_states, op_landed (us, first), alien_landed (us,
    last); decision_states, decided_checks (most); checks (rows), repeated_checks, last_check, first_check_at, least_gap
    (ms); rejected (bits).
    """
    half = snapshot.read("half")
    rows = [
        _half_rows(half, settings, snapshot.ignores_case),
        _op_rows(snapshot.read("op"), half),
        _decision_rows(snapshot.read("decisions")),
        _discarded_rows(snapshot.read("discarded"), snapshot.ignores_case),
        _check_rows(snapshot.read("check_requests")),
        _rejected_rows(snapshot.read("rejected")),
        _rows(snapshot.read("unpublished").withColumnsRenamed(_OF_HALF), _UNPUBLISHED),
        *(_topic_rows(snapshot.read(name), name, snapshot.ignores_case) for name in snapshot.topics),
    ]
    # Moved first, then grouped: the rows are narrow, what they are grouped to is wide, and few of them share a key.
    moved = reduce(DataFrame.unionByName, rows).repartition(*KEY)
    return moved.groupBy(*KEY).agg(*_half_facts(), *_op_facts(), *_other_facts())


def _half_facts() -> list[Column]:
    store = _of("store", _HALF)
    return [
        *(
            F.min_by(_of(column, _HALF), store).alias(name)
            for column, name in (("at", "born"), ("until", "immune_until"))
        ),
        *(F.min_by(_of(column, _HALF), store).alias(column) for column in ("who", "content")),
        F.min(_of("store", _HALF)).alias("landed"),
        _count(_HALF).alias("halves"),
        _span("content", _HALF).alias("half_contents"),
        _span("who", _HALF).alias("half_owners"),
    ]


def _op_facts() -> list[Column]:
    return [
        F.count_if(_is(_OP) | _is(_ALIEN_OP)).alias("ops"),
        _count(_ALIEN_OP).alias("alien_ops"),
        _count(_UNDELIVERED).alias("undelivered"),
        _bits(_OP).alias("op_states"),
        F.min(_of("store", _OP)).alias("op_landed"),
        F.max(_of("store", _ALIEN_OP)).alias("alien_landed"),
    ]


def _other_facts() -> list[Column]:
    return [
        _count(_TOPIC).alias("published"),
        _count(_UNPUBLISHED).alias("unpublished"),
        _span("content", _TOPIC).alias("topic_contents"),
        _count(_DISCARDED).alias("discarded"),
        _span("content", _DISCARDED).alias("discarded_contents"),
        _count(_DECISION).alias("decisions"),
        _bits(_DECISION).alias("decision_states"),
        F.max(_of("at", _DECISION)).alias("decided_checks"),
        _span("who", _DECISION).alias("decision_owners"),
        _count(_CHECK).alias("checks"),
        F.coalesce(F.sum(_of("store", _CHECK)), F.lit(0)).alias("repeated_checks"),
        F.max(_of("number", _CHECK)).alias("last_check"),
        F.min(_of("at", _CHECK)).alias("first_check_at"),
        F.min(_of("until", _CHECK)).alias("least_gap"),
        _bits(_REJECTED).alias("rejected"),
    ]


def _is(kind: int) -> Column:
    return F.col("kind") == kind


def _of(column: str, kind: int) -> Column:
    return F.when(_is(kind), F.col(column))


def _count(kind: int) -> Column:
    return F.count_if(_is(kind))


def _span(column: str, kind: int) -> Column:
    """Least and greatest: with one of a kind, or two, that is all of them."""
    return F.array(F.min(_of(column, kind)), F.max(_of(column, kind)))


def _bits(kind: int) -> Column:
    return F.coalesce(F.bit_or(_of("number", kind)), F.lit(0))


def _rows(table: DataFrame, kind: int | Column, **columns: Column) -> DataFrame:
    values = (columns.get(name, F.lit(None)).cast("bigint").alias(name) for name in _COLUMNS)
    return table.select(*KEY, F.lit(kind).cast("tinyint").alias("kind"), *values)


def _who() -> Column:
    return F.xxhash64("producer_group", "transaction_id")


def _content(topic: Column, queue: str, landed: str, ignore_case: bool) -> Column:
    """Hash of a message and of where it belongs. Nulls are told from each other: xxhash64 passes over them."""
    # A catalog may have made a table's name lower case.
    topic = F.lower(topic) if ignore_case else topic
    names = ("transaction_id", "producer_group", queue, "tags", "keys", "born_timestamp", landed)
    # Maps have no order, and no hash.
    properties = F.sort_array(F.map_entries("properties"))
    nulls = F.concat(*(F.isnull(name).cast("string") for name in (*names, "properties", "body")))
    return F.xxhash64(topic, *names, properties, "body", nulls)


def _half_rows(half: DataFrame, settings: Settings, ignore_case: bool) -> DataFrame:
    birth = F.unix_millis(born())
    return _rows(
        half,
        _HALF,
        at=birth,
        until=birth + (immunity_s(settings) * 1000).cast("bigint"),
        store=store_us(),
        who=_who(),
        content=_content(F.col("real_topic"), "real_queue_id", "store_timestamp", ignore_case),
    )


def _discarded_rows(discarded: DataFrame, ignore_case: bool) -> DataFrame:
    content = _content(F.col("real_topic"), "real_queue_id", "store_timestamp", ignore_case)
    return _rows(discarded, _DISCARDED, content=content)


def _topic_rows(topic: DataFrame, name: str, ignore_case: bool) -> DataFrame:
    named = topic.withColumnsRenamed(_OF_HALF)
    real_topic = F.lit(name.removeprefix(TOPIC_PREFIX))
    content = _content(real_topic, "real_queue_id", "half_store_timestamp", ignore_case)
    return _rows(named, _TOPIC, content=content)


def _source_bit() -> Column:
    """1 for a producer's, 2 for a check's, 4 for an operator's, as `reconcile.columns` reads them; 8 for nobody's."""
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
    """Ops; alien are those of another group or transaction than the half message that took the offset first.

    DELIVERED is not about the transaction: it says that a check was received (UNDELIVERED, of a release before, that
    one was not).
    """
    group, transaction = identity_columns()
    ops = op.withColumnRenamed("half_offset", "queue_offset").select(
        *KEY, group, transaction, store_us(), _state_bits().alias("bits"), "state"
    )
    owners = half.groupBy(*KEY).agg(
        F.min_by(group, store_us()).alias("own_group"), F.min_by(transaction, store_us()).alias("own_transaction")
    )
    judged = ops.join(owners, on=list(KEY), how="left")
    own_group = F.col("group_hash") == F.col("own_group")
    own_id = (F.col("transaction_hash") == NOT_STATED) | (F.col("transaction_hash") == F.col("own_transaction"))
    of_check = F.col("state").isin("DELIVERED", "UNDELIVERED")
    kind = F.when(of_check, _UNDELIVERED).when(own_group & own_id, _OP).otherwise(_ALIEN_OP)
    return _rows(judged, kind, store=F.col("store_us"), number=F.col("bits"))


def _decision_rows(decisions: DataFrame) -> DataFrame:
    return _rows(decisions, _DECISION, at=F.col("check_times"), number=_state_bits(), who=_who())


def _check_rows(requests: DataFrame) -> DataFrame:
    at = F.unix_millis("requested_at")
    order = Window.partitionBy(*KEY).orderBy("check_times", "requested_at")
    again = F.lag("check_times").over(order) == F.col("check_times")
    narrow = requests.select(
        *KEY, "check_times", at.alias("at"), (at - F.lag(at).over(order)).alias("gap"), again.alias("again")
    )
    again = F.coalesce(F.col("again").cast("int"), F.lit(0))
    return _rows(narrow, _CHECK, at=F.col("at"), until=F.col("gap"), store=again, number=F.col("check_times"))


def _rejected_rows(rejected: DataFrame) -> DataFrame:
    """What `reconcile` did not take: its own words say of which offset it is."""
    half, early = F.col("source") == "half", F.col("reason") == REJECTION[Reason.NO_HALF]
    alien = F.col("reason").isin(REJECTION[Reason.WRONG_GROUP], REJECTION[Reason.WRONG_TRANSACTION_ID])
    place = r"^repeated \(queue_id, queue_offset\) (\d+)/(\d+)$"
    queue_id, offset = (
        F.when(half, F.regexp_extract("reason", place, group)).otherwise(F.get_json_object("raw", f"$.{name}"))
        for group, name in ((1, "queue_id"), (2, "half_offset"))
    )
    too_many = F.col("reason") == REJECTION[Reason.TOO_MANY]  # whose it was nobody has looked at
    bits = F.when(half, REJECTED_HALF).when(alien, REJECTED_OP).when(early, REJECTED_EARLY)
    bits = bits.when(too_many, REJECTED_OP | REJECTED_EARLY)
    named = rejected.select(
        queue_id.try_cast("int").alias("queue_id"), offset.try_cast("bigint").alias("queue_offset"), bits.alias("bits")
    ).where(F.col("queue_id").isNotNull() & F.col("queue_offset").isNotNull() & F.col("bits").isNotNull())
    return _rows(named, _REJECTED, number=F.col("bits"))
