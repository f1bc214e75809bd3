"""The lineage of a transaction: everything that the tables record of it, in chronological order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.query.engines.question import Question
from checkback.query.engines.rejected_names import REJECTED_NAMES, escape_in
from checkback.query.unreadable_topics import beside_unreadable
from checkback.query.versions.published_notes import NAME, WRITERS, no_notes, notes_about, with_noted
from checkback.query.versions.table_versions import TOPICS
from checkback.reconcile.publish.unpublished import TABLE
from checkback.storage.files.object_store import concurrently
from checkback.storage.horizon import horizon
from checkback.storage.schemas import TOPIC_PREFIX, columns_of
from checkback.storage.timestamps import iso, time_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from checkback.query.engines.engine import Value
    from checkback.query.versions.view import View
    from checkback.storage.log.commit_reader import Added

COLUMNS = (
    "at",
    "event",
    "table",
    "table_version",
    "version_exact",
    "committed_at",
    "batch_id",
    "queue_id",
    "queue_offset",
    "producer_group",
    "detail",
)
#: what stands for a topic's table that cannot be read: the others are told all the same
UNREADABLE = "UNREADABLE"
#: its half message, and what stands for all that retention has removed with it
HALF, REMOVED = "HALF", "REMOVED"
#: events with equal times, in causal order
_ORDER = (
    *(HALF, "RESUMED", "OP", "CHECK", "ANSWER"),
    *("DECISION", "DELIVERED", "UNPUBLISHED", "PUBLISHED", "DEAD_LETTER", "DISCARDED", "REJECTED", "OPERATION"),
)

_TURN = f"answer.at, array_position(split('{','.join(_ORDER)}', ','), event), queue_id, queue_offset"
#: topics that are asked at a time: in an object store DuckDB's plan takes 0.7 MiB for each
_AT_ONCE = 250


def lineage_rows(view: View, transaction_id: str, group: str | None = None) -> pa.Table:
    """Everything that the tables record of a transaction id, in chronological order, of one group or of all.

    Columns: at TIMESTAMP; event (HALF; RESUMED: a half message that an operator created from a discarded one; OP,
    CHECK, ANSWER, DECISION; DELIVERED: a scheduled message; UNPUBLISHED: it waits for its topic's table, or was
    published late; PUBLISHED; DEAD_LETTER: a consumer group gave it up; DISCARDED, REJECTED, OPERATION; at the end
    REMOVED: retention has removed its half message and the rest, at the horizon's time; UNREADABLE, without a time: a
    topic's table that cannot be read); table; table_version BIGINT (Delta version that
    added the row, null = not in the log), version_exact BOOLEAN (false: OPTIMIZE has rewritten the file, the row was
    added in that version or an earlier one), committed_at (of that version); batch_id; queue_id, queue_offset,
    producer_group; detail (a text, without body, properties and keys).

    Scans every table for the id, topics included: there are no file statistics for it; the events are collected, and
    looked up in the tables' logs.
    """
    own, topics = [name for name in _EVENTS if name != TOPIC_PREFIX], view.topics()
    view.look(*own, *topics, "batches")
    found, faults = beside_unreadable(
        topics,
        lambda faults: _lineage(view, [*own, *(n for n in topics if n not in faults)], transaction_id, group),
        lambda some: _lineage(view, ["half", *some], transaction_id, group),
    )
    more: list[dict[str, object]] = [
        {"event": UNREADABLE, "table": name, "detail": fault} for name, fault in faults.items()
    ]
    since = horizon(view.engine.session, view.tables)
    if since is not None and found.num_rows and HALF not in found.column("event").to_pylist():
        detail = f"what ended before {iso(since)} was removed by retention"
        more.insert(0, {"at": time_of(since), "event": REMOVED, "table": "half", "detail": detail})
    return pa.concat_tables([found, pa.Table.from_pylist(more, schema=found.schema)]) if more else found


def _lineage(view: View, known: Sequence[str], transaction_id: str, group: str | None) -> pa.Table:
    """The events that these tables record."""
    names = [name for name in known if view.version(name) is not None] or ["half"]  # empty: there was no table yet
    topics = [name for name in names if name.startswith(TOPIC_PREFIX)]
    own = [name for name in names if not name.startswith(TOPIC_PREFIX)]
    parts = [topics[first : first + _AT_ONCE] for first in range(0, len(topics), _AT_ONCE)] or [[]]
    found = [_part(view, own if not number else [], part, transaction_id, group) for number, part in enumerate(parts)]
    if len(found) > 1:
        events = {"events": view.engine.keep("lineage_events", pa.concat_tables(found))}
        found = [view.engine.arrow(view.ask(Question("SELECT * FROM {events}", _TURN), events))]
    return _with_versions(view, found[0])


def _part(view: View, names: Sequence[str], topics: Sequence[str], transaction_id: str, group: str | None) -> pa.Table:
    """The events that these tables record, without the versions that added them."""
    places = {f"table_{number}": name for number, name in enumerate(names)}
    named = "transaction_id = :transaction_id" + ("" if group is None else " AND producer_group = :producer_group")
    words = {
        "NAMED": named,
        "OPERATORS": _resumed_queues(places),
        "RULES": _rules(view.version("batches") is not None),
    }
    tables = {**places, **({TOPICS: TOPIC_PREFIX} if topics else {})}
    sql = f"SELECT * FROM ({' UNION ALL '.join(_events(place, name, words) for place, name in tables.items())})"
    if "half" in names:
        sql = f"WITH places AS (SELECT DISTINCT queue_id, queue_offset FROM {{half}} WHERE {named}) {sql}"
    values: dict[str, Value] = {"transaction_id": transaction_id, "producer_group": group}
    values["escape"] = escape_in(transaction_id)
    files = {place: view.read(name, file=True) for place, name in places.items()}
    files |= {TOPICS: view.read_topics(topics, file=True)} if topics else {}
    if TABLE in names:
        files[NAME] = view.engine.keep(NAME, _notes(view, named, values))
    return view.engine.arrow(view.ask(Question(sql, _TURN, values), files))


def _notes(view: View, named: str, values: Mapping[str, Value]) -> pa.Table:
    """The notes about the transaction's messages; those are of now. A table that was never written has none."""
    if view.at is not None or not view.version(TABLE):
        return no_notes()
    mine = Question(f"{WRITERS.sql} WHERE {named}", WRITERS.order, values)
    return notes_about(view.engine, view.engine.arrow(view.ask(mine)).to_pylist())


def transactions_question(
    transaction_id: str | None = None,
    key: str | None = None,
    topic: str | None = None,
    place: tuple[int, int] | None = None,
    *,
    bodies: bool = False,
) -> Question:
    """Half messages with an id, a key, in a topic, at a place; their columns, their last decision's, and `taken`.

    A CANCEL comes after its COMMIT. Of two half messages that landed at one place one is not taken: it has no decision.
    """
    names = [column.name for column in columns_of("half") if bodies or column.name != "body"]
    sql = f"""
        WITH decided AS (
            SELECT queue_id, queue_offset, transaction_id, producer_group, state, source, reason, decided_at,
                deliver_at AS scheduled_for, row_number() OVER (
                    PARTITION BY queue_id, queue_offset, transaction_id, producer_group
                    ORDER BY CASE WHEN state = 'CANCEL' THEN 0 ELSE 1 END, decided_at, batch_id, state) AS turn
            FROM {{decisions}} AS d WHERE EXISTS (
                SELECT 1 FROM {{half}} AS h
                WHERE h.queue_id = d.queue_id AND h.queue_offset = d.queue_offset AND (WANTED))),
        landed AS (
            SELECT l.queue_id, l.queue_offset, l.transaction_id, l.producer_group, row_number() OVER (
                PARTITION BY l.queue_id, l.queue_offset
                ORDER BY CASE WHEN d.turn = 1 THEN 0 ELSE 1 END, l.store_timestamp NULLS LAST,
                    l.born_timestamp NULLS LAST, l.transaction_id NULLS LAST, l.producer_group NULLS LAST) AS copy
            FROM {{half}} AS l LEFT JOIN decided AS d ON {_same_half("d", "l")} AND d.turn = 1
            WHERE EXISTS (
                SELECT 1 FROM {{half}} AS h
                WHERE h.queue_id = l.queue_id AND h.queue_offset = l.queue_offset AND (WANTED)))
        SELECT {", ".join(f"h.{name}" for name in names)}, d.state, d.source, d.reason, d.decided_at, d.scheduled_for,
            t.copy IS NOT NULL AS taken
        FROM {{half}} AS h
        LEFT JOIN decided AS d ON {_same_half("d", "h")} AND d.turn = 1
        LEFT JOIN landed AS t ON {_same_half("t", "h")} AND t.copy = 1
        WHERE WANTED"""
    conditions = {
        "h.transaction_id = :transaction_id": transaction_id,
        "contains(' ' || h.keys || ' ', ' ' || :key || ' ')": key,  # RocketMQ's KEYS are separated by spaces
        "h.real_topic = :topic": topic,
        "h.queue_id = :queue_id": None if place is None else place[0],
        "h.queue_offset = :queue_offset": None if place is None else place[1],
    }
    wanted = " AND ".join(condition for condition, value in conditions.items() if value is not None) or "TRUE"
    values: dict[str, Value] = {"transaction_id": transaction_id, "key": key, "topic": topic}
    values |= {} if place is None else {"queue_id": int(place[0]), "queue_offset": int(place[1])}  # of NumPy perhaps
    return Question(sql.replace("WANTED", wanted), "queue_id, queue_offset, store_timestamp", values)


def _same_half(one: str, other: str) -> str:
    """SQL: rows of two tables are about the same half message."""
    return (
        f"{one}.queue_id = {other}.queue_id AND {one}.queue_offset = {other}.queue_offset"
        f" AND {one}.transaction_id IS NOT DISTINCT FROM {other}.transaction_id"
        f" AND {one}.producer_group IS NOT DISTINCT FROM {other}.producer_group"
    )


def _with_versions(view: View, events: pa.Table) -> pa.Table:
    """The events with the versions of their tables that added the rows' files.

    An appended file appears in the commit that added its rows, a file written by OPTIMIZE (no dataChange) in a later
    one.
    """
    places = list(zip(events.column("table").to_pylist(), events.column("_file").to_pylist(), strict=True))
    tables = list(dict.fromkeys(table for table, _ in places))

    def added_to(name: str) -> Mapping[str, Added]:
        return view.engine.added(name, {file for table, file in places if table == name})

    added = dict(zip(tables, concurrently(view.tables.root, added_to, tables), strict=True))
    of_row = [added[name].get(file) for name, file in places]
    columns = {
        "table_version": pa.array([None if one is None else one.version for one in of_row], pa.int64()),
        "version_exact": pa.array([None if one is None else one.exact for one in of_row], pa.bool_()),
        "committed_at": pa.array(
            [None if one is None or one.committed is None else one.committed * 1000 for one in of_row], pa.int64()
        ).cast(pa.timestamp("us", "UTC")),
    }
    for name, values in columns.items():
        events = events.append_column(name, values)
    return events.select(list(COLUMNS))


def _resumed_queues(places: Mapping[str, str]) -> str:
    """SQL: the half queues of resumed messages, as the operators' actions tell: a producer may send such properties."""
    operations = next((place for place, name in places.items() if name == "operations"), None)
    rows = "(SELECT CAST(NULL AS INT) AS new_queue_id)" if operations is None else f"{{{operations}}}"
    return f"(SELECT DISTINCT new_queue_id FROM {rows})"


def _rules(there: bool) -> str:
    """SQL: transaction.check_max of batches, and of runs of several, which were decided by the same rules."""
    if not there:
        time = "timestamp_micros(0)"
        return f"(SELECT 0 AS first_id, 0 AS batch_id, {time} AS first_time, {time} AS batch_time, 0 AS check_max)"
    return """(SELECT coalesce(first_batch_id, batch_id) AS first_id, batch_id,
        coalesce(first_batch_time, batch_time) AS first_time, batch_time, check_max FROM {batches})"""


def _events(place: str, kind: str, words: Mapping[str, str]) -> str:
    """SQL: the rows of a table, or of all topics, about the transaction as events.

    ``words``: what those of `_SEARCHED` stand for.
    """
    event, at, detail = _EVENTS[kind]
    columns = {column.name for column in columns_of(kind)}
    table = f"'{TOPIC_PREFIX}' || topic" if kind == TOPIC_PREFIX else f"'{kind}'"
    queue, offset = ("half_queue_id", "half_queue_offset") if kind in _OF_HALF else _KEY
    batch = "batch_id" if "batch_id" in columns and kind != "dead_letters" else "CAST(NULL AS BIGINT)"
    rows = _SEARCHED.get(kind, "SELECT * FROM TABLE WHERE NAMED")
    for word, sql in {**words, "TABLE": f"{{{place}}}"}.items():
        rows = rows.replace(word, sql)
    return f"""
        SELECT rows.{at} AS at, {event} AS event, {table} AS table, {batch} AS batch_id, {queue} AS queue_id,
            {offset} AS queue_offset, producer_group, {detail} AS detail, _file
        FROM ({rows}) AS rows"""


_KEY = ("queue_id", "queue_offset")
#: tables whose queue_id is the real topic's
_OF_HALF = (TOPIC_PREFIX, "unpublished", "dead_letters")
#: tables searched by more than the id, or shown with more than they have
_SEARCHED = {
    TABLE: f"SELECT * FROM {with_noted('TABLE')} AS noted WHERE NAMED",
    "half": """
        SELECT h.*, r.new_queue_id IS NOT NULL AND properties['CHECKBACK_RESUMED_FROM'] IS NOT NULL AS resumed
        FROM TABLE AS h LEFT JOIN OPERATORS AS r ON r.new_queue_id = h.queue_id
        WHERE NAMED""",
    "check_requests": """
        SELECT c.*, max(r.check_max) AS check_max
        FROM (SELECT * FROM TABLE WHERE NAMED) AS c
        LEFT JOIN RULES AS r ON c.batch_id BETWEEN r.first_id AND r.batch_id
            AND c.requested_at BETWEEN r.first_time AND r.batch_time
        GROUP BY ALL""",
    # Ops that name the transaction, and all others at its offsets: batched ones, or those of other transactions.
    "op": """
        SELECT o.queue_id, o.queue_offset, o.producer_group, o.transaction_id, o.state, o.source,
            o.remark, o.store_timestamp, o._file
        FROM TABLE AS o LEFT JOIN places AS p ON p.queue_id = o.queue_id AND p.queue_offset = o.queue_offset
        WHERE (NAMED) OR p.queue_id IS NOT NULL""",
    # Inputs that name the transaction or one of its offsets: those that may are parsed.
    "rejected": f"""
        SELECT r.* FROM (
            SELECT source, reason, file, rejected_at, _file, names.queue_id AS queue_id,
                names.queue_offset AS queue_offset, names.producer_group AS producer_group,
                names.transaction_id AS transaction_id
            FROM (
                SELECT source, reason, file, rejected_at, _file, {REJECTED_NAMES}(raw) AS names
                FROM TABLE CROSS JOIN (
                    SELECT count(DISTINCT queue_offset) > 2 AS many, CAST(min(queue_offset) AS STRING) AS one,
                        CAST(max(queue_offset) AS STRING) AS other
                    FROM places) AS its
                WHERE its.many OR contains(raw, :transaction_id) OR contains(raw, :escape)
                    OR contains(raw, its.one) OR contains(raw, its.other)) AS parsed) AS r
        LEFT JOIN places AS p ON p.queue_id = r.queue_id AND p.queue_offset = r.queue_offset
        WHERE (NAMED) OR p.queue_id IS NOT NULL""",
}


def _time(column: str) -> str:
    return f"date_format({column}, 'yyyy-MM-dd HH:mm:ss.SSS')"


def _text(*parts: str) -> str:
    """The non-null parts, separated by spaces."""
    return f"concat_ws(' ', {', '.join(parts)})"


_HALF_DETAIL = f"""concat_ws('', 'for ', real_topic, ', born ' || {_time("born_timestamp")},
    ', immunity ' || CAST(check_immunity_s AS STRING) || ' s',
    coalesce(', to be delivered at ' || {_time("deliver_at")}, ', delay ' || CAST(delay_ms / 1e3 AS STRING) || ' s'),
    CASE WHEN committed THEN ', without a transaction' END,
    CASE WHEN length(properties['traceparent']) >= 55
        THEN ', trace ' || substring(properties['traceparent'], 4, 32) END,
    CASE WHEN resumed THEN concat_ws('', ', resumed from ' || properties['CHECKBACK_RESUMED_FROM'],
        ' by ' || properties['CHECKBACK_RESUMED_BY']) END)"""

_CHECK = "'check ' || CAST(check_times AS STRING) || coalesce(' of ' || CAST(check_max AS STRING), '')"

#: by table: its event, the column with the time, and the detail
_EVENTS = {
    "half": (
        "CASE WHEN resumed THEN 'RESUMED' ELSE 'HALF' END",
        "store_timestamp",
        _HALF_DETAIL,
    ),
    "decisions": (
        "'DECISION'",
        "decided_at",
        _text(
            "state",
            "'by ' || source",
            "reason",
            "'after ' || CAST(check_times AS STRING) || CASE check_times WHEN 1 THEN ' check' ELSE ' checks' END",
            f"CASE WHEN state = 'COMMIT' THEN 'scheduled for ' || {_time('deliver_at')} END",
        ),
    ),
    "deliveries": ("'DELIVERED'", "delivered_at", f"'was scheduled for ' || {_time('deliver_at')}"),
    "discarded": ("'DISCARDED'", "discarded_at", _text("'kept in discarded:'", "reason")),
    "check_requests": ("'CHECK'", "requested_at", _CHECK),
    "check_answers": (
        "'ANSWER'",
        "answered_at",
        _text(
            "'check ' || CAST(check_times AS STRING)",
            "outcome",
            "'from ' || endpoint",
            "'(' || error || ')'",
            "CASE WHEN size(failed_tries) > 0 THEN 'after ' || CAST(size(failed_tries) AS STRING) || ' failures' END",
            "CASE WHEN NOT delivered THEN 'reached nobody' END",
        ),
    ),
    "operations": (
        "'OPERATION'",
        "at",
        _text(
            "action",
            "'by ' || actor",
            "'as ' || CAST(new_queue_id AS STRING) || '/' || CAST(new_queue_offset AS STRING)",
            "'- ' || reason",
        ),
    ),
    "unpublished": (
        "'UNPUBLISHED'",
        "unpublished_at",
        _text(
            "CASE WHEN noted THEN 'published late: waited for the table of' ELSE 'waits for the table of' END",
            "coalesce(real_topic, 'no topic')",
            "'- ' || reason",
        ),
    ),
    "dead_letters": (
        "'DEAD_LETTER'",
        "dead_at",
        _text(
            "'given up by the consumer group ' || consumer_group",
            "'after ' || CAST(reconsume_times AS STRING) || ' retries'",
            "'- ' || reason",
        ),
    ),
    "op": (
        "'OP'",
        "store_timestamp",
        _text(
            "state",
            "'by ' || source",
            "'of ' || transaction_id",
            "'- ' || remark",
            "CASE WHEN state = 'COUNTED' THEN '(counts towards check_max)' END",
        ),
    ),
    "rejected": ("'REJECTED'", "rejected_at", _text("source", "'not taken:'", "reason", "'in ' || file")),
    TOPIC_PREFIX: ("'PUBLISHED'", "published_at", "'in queue ' || coalesce(CAST(queue_id AS STRING), '-')"),
}
