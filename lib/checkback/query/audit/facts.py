"""What the tables say about each transaction: one row per (queue_id, queue_offset) that appears in any of them. SQL.

Every table is projected to a few integers, with hashes for strings, and all are grouped once. Bodies are hashed where
they are read. The only join between tables is that of `op` with the owners of its offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from checkback.messages.limits import MS_MAX
from checkback.query.audit.check_intervals import timed
from checkback.query.versions.published_notes import with_noted
from checkback.reconcile.records.segment_records import LONGEST_DELAY, REJECTION, Reason, Source

if TYPE_CHECKING:
    from collections.abc import Collection


#: Bits of op_states and decision_states: COMMIT by source, ROLLBACK by source, DISCARD; SCHEDULED: COMMIT for later;
#: EXPIRED: it was published before the horizon of its topic.
COMMITS, ROLLBACKS, DISCARD, SCHEDULED, EXPIRED = 0x0F, 0xF0, 0x100, 0x200, 0x400
#: Bits of rejected.
REJECTED_HALF, REJECTED_OP, REJECTED_EARLY, REJECTED_CANCEL = 1, 2, 4, 8

#: Bits of a check: its number exceeds check_max; its number was used before.
OVER, AGAIN = 1, 2

(
    _HALF,
    _OP,
    _ALIEN_OP,
    _COUNTED,
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
) = range(15)
#: The columns by kind of row; null if not applicable.
#: begin, until: ms. Half: born, its own immunity (a duration); check: when it was requested, how long after it was due;
#: discard (given up): from which landing on a half is too young for it, how long after it was due.
#: Delivery: begin, and until: when it was due. Topic and `unpublished`: begin. Decision SCHEDULED: until: when due.
#: Op: begin: 1 = it is a message without a transaction, its own COMMIT.
#: store: half or op: when it landed, us; check: when the next one is due; decision, topic, `unpublished`: its turn.
#: number: bits; half: its delay, as in an event; check: its turn; discard: the number of checks it lacks; counted
#: check: its number; `unpublished`: 1 if it is not noted as published. `begin` of a decision: its check_times. who,
#: content: hashes; check: check_times, bits. content of a decision: when it was made (ms); of a discard: its
#: check_times if only received checks counted. batch: `batch_of`. why: of a discard or cancel, and in `discarded`: a
#: hash of reason and check_times.
_COLUMNS = ("begin", "until", "store", "number", "who", "content", "batch", "why")
#: in place of null, where an aggregate would skip a null
_NONE = -(1 << 62)

_STORE = "coalesce(unix_micros(store_timestamp), CAST(0 AS BIGINT))"
#: a hash of (producer_group, transaction_id), resistant to second preimages
WHO = "hash64(coalesce(sha1(producer_group), ''), coalesce(sha1(transaction_id), ''))"
#: topic, queue and landing of a message, as `content` takes them: in `half` and `discarded`, in a topic, `unpublished`
OF_HALF = ("real_topic", "real_queue_id", "store_timestamp")
OF_TOPIC = ("topic", "queue_id", "half_store_timestamp")
_OF_UNPUBLISHED = ("real_topic", *OF_TOPIC[1:])
#: 1: producer, 2: check, 4: operator, as `event_columns` maps them; 8: none of these
_SOURCE_BIT = "CASE " + " ".join(
    f"WHEN source = '{source.name.lower()}' THEN {1 << source}"
    for source in (Source.CHECKBACK, Source.OPERATOR, Source.CHECK)
)
_SOURCE_BIT += f" ELSE {1 << Source.PRODUCER} END"
#: the field delay of an EVENT, as `event_columns.delay_column`: rounded up to ms, within limits
_DELAY = f"""CASE WHEN deliver_at IS NOT NULL
    THEN greatest(unix_millis(timestamp_micros(least(unix_micros(deliver_at), {MS_MAX * 1000}) + 999)), 1)
    ELSE -least(greatest(delay_ms, 0), {LONGEST_DELAY}) END"""
#: of a row of `op` or `decisions`
STATE_BITS = f"""CASE
    WHEN state = 'COMMIT' THEN {_SOURCE_BIT}
    WHEN state = 'ROLLBACK' THEN ({_SOURCE_BIT}) * 16
    WHEN state = 'DISCARD' THEN {DISCARD} ELSE 0 END"""


def facts(
    uncounted: bool,
    *,
    ignore_case: bool,
    bodies_since: int | None = None,
    expiring: bool = False,
    absent: Collection[str] = (),
) -> str:
    """CTE `facts`: those of each transaction. It reads tables, `topics`, the `published_notes`, and the CTE `rules`.

    ``uncounted``: as `timed`. ``expiring``: also a table `topic_horizons` (topic, since: ms). ``bodies_since``: as
    `content`. ``absent``: tables, and `topics`, that have no row of these transactions: they are not read, and what
    only their rows could tell is not computed.

    Columns, integers, null if there is no such row or the value is unknown: queue_id, queue_offset; of the first half
    message at the offset: born, own_immunity (ms), landed (us), who, content; halves, messages (without a transaction),
    published, unpublished, outstanding (of these: not noted as published), decisions, discarded (rows); the least and
    the greatest (_min, _max) half_content, half_owner, delay (as in an event), topic_content, unpublished_content,
    discarded_content, decision_owner (also of cancels and deliveries): all values, if there are at most two distinct
    ones; ops, alien_ops, counted (highest number), op_states, op_landed (us, first), alien_landed
    (us, last); decision_states, decided_checks (max), decided_turn (first); checks (rows), repeated_checks, over_limit
    (rows), last_check, last_turn, first_check_at (ms), next_check_at (ms, by the last check), least_slack (ms); of
    discards: least_end_slack, too_young (ms: halves that landed then or later), lacking (checks), unreceived
    (check_times, if all had to be received); rejected (bits); decided_at (ms), committed_at (ms, of the COMMIT),
    deliver_at (ms, by it), due_at (ms, the latest by it or a delivery), delivered_at, published_at, unpublished_at (ms,
    first), published_turn, unpublished_turn (first); deliveries, cancels, cancelled, cancel_ops (rows), cancel_landed
    (us, first); published_batch, unpublished_batch, kept_batch (of `discarded`), decided_batch, delivered_batch,
    cancelled_batch: hashes; decided_why, kept_why: of a discard or cancel, hashes.
    """
    known = (*_sources(ignore_case, bodies_since, expiring), _TIMED)
    sources = [source for source in known if source.table not in absent]
    rows = " UNION ALL ".join(source.rows for source in sources)
    kinds = {kind for source in sources for kind in source.kinds}
    aggregates = ", ".join(
        f"{one.sql if kinds & set(one.kinds) else f'CAST({one.none} AS BIGINT)'} AS {name}"
        for name, one in _AGGREGATES.items()
    )
    return f"""{timed(uncounted)},
owners AS (
    SELECT queue_id, queue_offset, min_by(coalesce(producer_group, ''), {_STORE}) AS own_group,
        min_by(coalesce(transaction_id, ''), {_STORE}) AS own_transaction
    FROM {{half}} GROUP BY queue_id, queue_offset),
ops AS (
    SELECT o.*, coalesce(o.producer_group = w.own_group
        AND (o.transaction_id IS NULL OR o.transaction_id = w.own_transaction), FALSE) AS own
    FROM {{op}} AS o LEFT JOIN owners AS w ON w.queue_id = o.queue_id AND w.queue_offset = o.queue_offset),
all_rows AS ({rows}),
facts AS (SELECT queue_id, queue_offset, {aggregates} FROM all_rows GROUP BY queue_id, queue_offset)"""


class _Source(NamedTuple):
    """Rows of a table, of these kinds. SQL."""

    table: str
    kinds: tuple[int, ...]
    rows: str


def _rows(table: str, kind: int | str, key: tuple[str, str] = ("queue_id", "queue_offset"), **columns: str) -> str:
    values = ", ".join(f"CAST({columns.get(name, 'NULL')} AS BIGINT) AS {name}" for name in _COLUMNS)
    return f"SELECT {key[0]} AS queue_id, {key[1]} AS queue_offset, {kind} AS kind, {values} FROM {table}"


def content(topic: str, queue: str, landed: str, *, ignore_case: bool, bodies_since: int | None = None) -> str:
    """Hash of a message and its destination. Nulls are distinguished explicitly: Spark's hash skips them.

    Null for an erased message. ``bodies_since``: of what landed before it `half` may have no body (ms), None = it has
    all: it is left out then.
    """
    body = "body"
    if bodies_since is not None:
        body = f"CASE WHEN {landed} < timestamp_millis({bodies_since}) THEN NULL ELSE body END"
    topic = topic_of(topic, ignore_case=ignore_case)
    names = ("transaction_id", "producer_group", queue, "tags", "keys", "born_timestamp", landed)
    nulls = " + ".join(
        f"CASE WHEN {name} IS NULL THEN {1 << bit} ELSE 0 END" for bit, name in enumerate((*names, "properties", body))
    )
    # Maps have no order.
    of_all = f"hash64({topic}, {', '.join(names)}, sort_array(map_entries(properties)), {body}, {nulls})"
    return f"CASE WHEN erased_at IS NULL THEN {of_all} END"


def topic_of(column: str, *, ignore_case: bool) -> str:
    """A topic's name, to compare it with others: a catalog may have lower-cased the one that a table has."""
    return f"lower({column})" if ignore_case else column


def batch_of(time: str) -> str:
    """Hash of the batch that wrote a row; ``time``: the column with its time."""
    return f"hash64(coalesce(batch_id, CAST(-1 AS BIGINT)), coalesce(unix_micros({time}), CAST(0 AS BIGINT)))"


def _expiring(table: str, time: str) -> tuple[str, str]:
    """SQL: the rows with the horizon of their topic, and the bit of those from before it."""
    joined = f"(SELECT d.*, h.since FROM {table} AS d LEFT JOIN {{topic_horizons}} AS h ON h.topic = d.real_topic)"
    return joined, f"CASE WHEN unix_millis({time}) < since THEN {EXPIRED} ELSE 0 END"


def _sources(ignore_case: bool, bodies_since: int | None, expiring: bool) -> list[_Source]:
    of_half, of_topic, of_unpublished = (
        content(*columns, ignore_case=ignore_case, bodies_since=bodies_since)
        for columns in (OF_HALF, OF_TOPIC, _OF_UNPUBLISHED)
    )
    named = f"hash64({WHO}, coalesce(sha1({topic_of('real_topic', ignore_case=ignore_case)}), ''))"
    half = _rows(
        "{half}",
        _HALF,
        begin="unix_millis(least(born_timestamp, store_timestamp))",
        until="CASE WHEN check_immunity_s >= 0 THEN CAST(check_immunity_s AS BIGINT) * 1000 END",
        store=_STORE,
        who=named,
        number=_DELAY,
        content=of_half,
    )
    # A message without a transaction is its own COMMIT.
    committed = _rows("{half} WHERE committed", _OP, begin="1", store=_STORE, number=str(1 << Source.PRODUCER))
    # COUNTED says that a check counts, not the transaction's state. Alien ops have another group or transaction id
    # than the first half message at the offset.
    ops = _rows(
        "ops",
        f"""CASE WHEN state = 'COUNTED' AND source = 'check' THEN {_COUNTED}
            WHEN own AND state = 'CANCEL' AND source IN ('operator', 'producer') THEN {_CANCEL_OP}
            WHEN own THEN {_OP} ELSE {_ALIEN_OP} END""",
        ("queue_id", "queue_offset"),
        store=_STORE,
        number=f"""CASE WHEN state = 'COUNTED' AND source = 'check'
            THEN TRY_CAST(regexp_extract(remark, '^check ([0-9]{{{{1,9}}}})$', 1) AS BIGINT)
            ELSE {STATE_BITS} END""",
    )
    decided, delivered, decided_before, delivered_before = "{decisions}", "{deliveries}", "0", "0"
    if expiring:
        decided, decided_before = _expiring(decided, "decided_at")
        delivered, delivered_before = _expiring(delivered, "delivered_at")
    deliveries = _rows(
        f"{delivered} AS delivered",
        _DELIVERY,
        number=delivered_before,
        begin="unix_millis(delivered_at)",
        until="unix_millis(deliver_at)",
        who=named,
        batch=batch_of("delivered_at"),
    )
    decisions = _rows(
        _with_turn(decided, "decided_at"),
        f"CASE WHEN state = 'CANCEL' THEN {_CANCEL} ELSE {_DECISION} END",
        begin="check_times",
        until="unix_millis(deliver_at)",
        number=f"{STATE_BITS} + CASE WHEN deliver_at IS NOT NULL THEN {SCHEDULED} ELSE {decided_before} END",
        who=named,
        store="turn",
        content="unix_millis(decided_at)",
        batch=batch_of("decided_at"),
        why=_why("CASE WHEN state = 'CANCEL' THEN 'CANCELLED' ELSE reason END", "state IN ('CANCEL', 'DISCARD')"),
    )
    discarded = _rows(
        "{discarded}",
        f"CASE WHEN reason = 'CANCELLED' THEN {_CANCELLED} ELSE {_DISCARDED} END",
        content=of_half,
        batch=batch_of("discarded_at"),
        why=_why("reason"),
    )
    return [
        _Source("half", (_HALF,), half),
        _Source("half", (_OP,), committed),
        _Source("op", (_COUNTED, _CANCEL_OP, _OP, _ALIEN_OP), ops),
        _Source("deliveries", (_DELIVERY,), deliveries),
        _Source("decisions", (_CANCEL, _DECISION), decisions),
        _Source("discarded", (_CANCELLED, _DISCARDED), discarded),
        _Source("rejected", (_REJECTED,), _rows(REJECTED_ROWS, _REJECTED, number="bits")),
        _messages(
            *("unpublished", _UNPUBLISHED, with_noted("{unpublished}"), "unpublished_at", of_unpublished),
            number="CASE WHEN NOT noted THEN 1 END",
        ),
        _messages("topics", _TOPIC, "{topics}", "published_at", of_topic),
    ]


def _messages(table: str, kind: int, written: str, time: str, of_message: str, **columns: str) -> _Source:
    """Rows of a table that keeps each message with the place of its half message; ``written``: SQL of the table."""
    rows = _rows(
        _with_turn(written, time),
        kind,
        ("half_queue_id", "half_queue_offset"),
        begin=f"unix_millis({time})",
        store="turn",
        content=of_message,
        batch=batch_of(time),
        **columns,
    )
    return _Source(table, (kind,), rows)


def _with_turn(table: str, time: str) -> str:
    """SQL: the rows of a table with the turn of their batch, null = not known."""
    same = f"r.batch_id = w.batch_id AND r.ms = unix_millis(w.{time})"
    return f"(SELECT w.*, r.turn FROM {table} AS w LEFT JOIN rules AS r ON {same}) AS written"


def _why(reason: str, where: str = "TRUE") -> str:
    return f"CASE WHEN {where} THEN hash64(coalesce({reason}, ''), coalesce(check_times, CAST(-1 AS INT))) END"


#: rows of the CTE `timed`: checks and discards
_TIMED = _Source(
    "timed",
    (_CHECK, _GIVEN_UP),
    _rows(
        "timed",
        f"CASE WHEN discard THEN {_GIVEN_UP} ELSE {_CHECK} END",
        begin="CASE WHEN discard THEN landed_before ELSE ms END",
        until="slack",
        store="due",
        number="""CASE WHEN NOT discard THEN turn
        WHEN reason = 'EXPIRED' THEN needed - requested ELSE needed - number END""",
        who="CASE WHEN NOT discard THEN number END",
        content=f"""CASE WHEN NOT discard
        THEN CASE WHEN over THEN {OVER} ELSE 0 END + CASE WHEN again THEN {AGAIN} ELSE 0 END
        WHEN all_uncounted THEN number END""",
    ),
)


def _named(name: str, group: int) -> str:
    """SQL: a part of the offset that a row of `rejected` is about: from its reason, or from the input."""
    place = "'^repeated .queue_id, queue_offset. ([0-9]+)/([0-9]+)$'"
    raw = f"regexp_extract(get_json_object(raw, '$.{name}'), '^(-?[0-9]+)$', 1)"
    return f"CASE WHEN source = 'half' THEN regexp_extract(reason, {place}, {group}) ELSE {raw} END"


#: rows of inputs that `reconcile` rejected: queue_id, queue_offset, bits
REJECTED_ROWS = f"""(
    SELECT * FROM (
        SELECT TRY_CAST({_named("queue_id", 1)} AS INT) AS queue_id,
            TRY_CAST({_named("queue_offset", 2)} AS BIGINT) AS queue_offset,
            CASE WHEN source = 'half' THEN {REJECTED_HALF}
                WHEN reason IN ('{REJECTION[Reason.WRONG_GROUP]}', '{REJECTION[Reason.WRONG_TRANSACTION_ID]}')
                    THEN {REJECTED_OP}
                WHEN reason = '{REJECTION[Reason.NOT_SCHEDULED]}' THEN {REJECTED_CANCEL}
                WHEN reason = '{REJECTION[Reason.NO_HALF]}' THEN {REJECTED_EARLY}
                -- rejected before its owner was compared
                WHEN reason = '{REJECTION[Reason.TOO_MANY]}' THEN {REJECTED_OP | REJECTED_EARLY} END AS bits
        FROM {{rejected}}) AS named
    WHERE queue_id IS NOT NULL AND queue_offset IS NOT NULL AND bits IS NOT NULL) AS rejected_rows"""


# Not by FILTER: DuckDB would cut all rows for each of these, again and again if they come a few at a time.
def _of(kinds: int | tuple[int, ...], column: str = "1") -> str:
    """The column in rows of these kinds, else null."""
    numbers = ", ".join(map(str, kinds if isinstance(kinds, tuple) else (kinds,)))
    return f"CASE WHEN kind IN ({numbers}) THEN {column} END"


class _Aggregate(NamedTuple):
    """A fact, from the rows of these kinds; ``none``: what it is without any. SQL."""

    kinds: tuple[int, ...]
    sql: str
    none: str = "NULL"


def _fold(function: str, column: str, *kinds: int) -> _Aggregate:
    return _Aggregate(kinds, f"{function}({_of(kinds, column)})")


def _count(*kinds: int, column: str = "1") -> _Aggregate:
    return _Aggregate(kinds, f"count({_of(kinds, column)})", "0")


def _first(column: str) -> _Aggregate:
    """A value of the first half message; null stays null."""
    first = f"nullif(min_by(coalesce({column}, {_NONE}), {_of(_HALF, 'store')}), {_NONE})"
    return _Aggregate((_HALF,), first)


def _span(name: str, column: str, *kinds: int) -> dict[str, _Aggregate]:
    return {f"{name}_{which}": _fold(which, column, *kinds) for which in ("min", "max")}


def _bits(*kinds: int) -> _Aggregate:
    return _Aggregate(kinds, f"coalesce(bit_or({_of(kinds, 'number')}), CAST(0 AS BIGINT))", "0")


def _checks_with(bit: int) -> _Aggregate:
    return _Aggregate((_CHECK,), f"count(CASE WHEN kind = {_CHECK} AND (content & {bit}) <> 0 THEN 1 END)", "0")


_AGGREGATES = {
    "born": _first("begin"),
    "own_immunity": _first("until"),
    "who": _first("who"),
    "content": _first("content"),
    "landed": _fold("min", "store", _HALF),
    "halves": _count(_HALF),
    "messages": _count(_OP, column="begin"),
    **_span("delay", "number", _HALF),
    **_span("half_content", "content", _HALF),
    **_span("half_owner", "who", _HALF),
    "ops": _count(_OP, _ALIEN_OP),
    "alien_ops": _count(_ALIEN_OP),
    "counted": _fold("max", "number", _COUNTED),
    "op_states": _bits(_OP),
    "op_landed": _fold("min", "store", _OP),
    "cancel_ops": _count(_CANCEL_OP),
    "cancel_landed": _fold("min", "store", _CANCEL_OP),
    "alien_landed": _fold("max", "store", _ALIEN_OP),
    "published": _count(_TOPIC),
    "published_batch": _fold("min", "batch", _TOPIC),
    "published_turn": _fold("min", "store", _TOPIC),
    "unpublished_batch": _fold("min", "batch", _UNPUBLISHED),
    "unpublished_turn": _fold("min", "store", _UNPUBLISHED),
    "kept_batch": _fold("min", "batch", _DISCARDED, _CANCELLED),
    "decided_batch": _fold("min", "batch", _DECISION),
    "delivered_batch": _fold("min", "batch", _DELIVERY),
    "cancelled_batch": _fold("min", "batch", _CANCEL),
    "decided_why": _fold("min", "why", _DECISION, _CANCEL),
    "kept_why": _fold("min", "why", _DISCARDED, _CANCELLED),
    "unpublished": _count(_UNPUBLISHED),
    "outstanding": _count(_UNPUBLISHED, column="number"),
    **_span("topic_content", "content", _TOPIC),
    **_span("unpublished_content", "content", _UNPUBLISHED),
    "discarded": _count(_DISCARDED),
    **_span("discarded_content", "content", _DISCARDED, _CANCELLED),
    "decisions": _count(_DECISION),
    "decision_states": _bits(_DECISION, _DELIVERY),
    "decided_checks": _fold("max", "begin", _DECISION),
    "decided_turn": _fold("min", "store", _DECISION),
    **_span("decision_owner", "who", _DECISION, _CANCEL, _DELIVERY),
    "decided_at": _fold("max", "content", _DECISION),
    "committed_at": _Aggregate(
        (_DECISION,), f"max(CASE WHEN kind = {_DECISION} AND (number & {COMMITS}) <> 0 THEN content END)"
    ),
    "due_at": _fold("max", "until", _DECISION, _DELIVERY),
    "delivered_at": _fold("min", "begin", _DELIVERY),
    "published_at": _fold("min", "begin", _TOPIC),
    "unpublished_at": _fold("min", "begin", _UNPUBLISHED),
    "rejected": _bits(_REJECTED),
    "deliver_at": _fold("max", "until", _DECISION),
    "deliveries": _count(_DELIVERY),
    "cancels": _count(_CANCEL),
    "cancelled": _count(_CANCELLED),
    "checks": _count(_CHECK),
    "repeated_checks": _checks_with(AGAIN),
    "over_limit": _checks_with(OVER),
    "last_check": _fold("max", "who", _CHECK),
    "last_turn": _fold("max", "number", _CHECK),
    "first_check_at": _fold("min", "begin", _CHECK),
    "next_check_at": _Aggregate(
        (_CHECK,), f"nullif(max_by(coalesce(store, {_NONE}), {_of(_CHECK, 'number')}), {_NONE})"
    ),
    "least_slack": _fold("min", "until", _CHECK),
    "least_end_slack": _fold("min", "until", _GIVEN_UP),
    "too_young": _fold("min", "begin", _GIVEN_UP),
    "lacking": _fold("max", "number", _GIVEN_UP),
    "unreceived": _fold("max", "content", _GIVEN_UP),
}
