"""Compares `batches` with the tables that batches write: each batch must have a row there, and each row its batch.

Only the rows of `decisions` and `check_requests` are counted, as these must never be deleted. Rows missing in a topic
table or in `discarded` are found per transaction (`audit_rules`): a message may be published by a later batch than the
one that decided it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkback.inspect.batches import APPLICATION, BatchFault, faults, first_intervals
from checkback.inspect.check_intervals import RulesHistory
from checkback.inspect.question import Question
from checkback.inspect.table_versions import ALL, TOPICS
from checkback.inspect.whole_batches import batch_time
from checkback.storage.schemas import SCHEMAS, TOPIC_PREFIX

if TYPE_CHECKING:
    from checkback.inspect.engine import Rows, Value
    from checkback.inspect.table_versions import FixedTables

#: count in `batches` -> table and predicate of the rows counted
_COUNTS = {
    "committed": ("decisions", "state = 'COMMIT'"),
    "rolled_back": ("decisions", "state = 'ROLLBACK'"),
    "discarded": ("decisions", "state = 'DISCARD'"),
    "scheduled": ("decisions", "state = 'COMMIT' AND deliver_at IS NOT NULL"),
    "delivered": ("deliveries", "TRUE"),
    "cancelled": ("decisions", "state = 'CANCEL'"),
    "checks": ("check_requests", "TRUE"),
}
#: null in rows of releases without delays
_ADDED = ("scheduled", "delivered", "cancelled")
_RULES = ("check_interval_ms", "check_max", "reserved_ms", "check_jitter_ms", "count_undelivered")


@dataclass(frozen=True)
class BatchAudit:
    """The result of the comparison. ``found``: by name of a finding, with batches (batch_id, time) as samples.

    ``fixed``: the tables, without the rows of a batch in progress that only its rows reveal. ``past``: whether there
    are rows of the previous release, whose batches have none in `batches`. ``first``: the first batch with a row,
    (batch_id, time).
    """

    found: dict[str, BatchFault]
    fixed: FixedTables
    past: bool
    first: tuple[int, int] | None = None


def audit_batches(fixed: FixedTables, most: int) -> BatchAudit:
    """The comparison, with up to ``most`` samples per finding. Without rows in `batches` nothing is found."""
    batches = fixed.whole.batches
    if not len(batches):
        return BatchAudit({}, fixed, past=True)
    compared = fixed.engine.keep("compared", fixed.ask(Question(_compared())))
    fixed = fixed.without([] if fixed.logged else _begun(fixed, compared))
    found = _told(fixed, compared, most)
    past, unknown = (found.pop(name, BatchFault(0, ())) for name in ("past", "unknown"))
    found["batches"] = BatchFault(len(batches), ())
    found["batch_not_judged"] = BatchFault(past.number + unknown.number, (*past.samples, *unknown.samples)[:most])
    first = int(batches["batch_id"][0]), int(batches["time"][0])
    return BatchAudit(found | faults(fixed.whole.rows, most), fixed, past.number > 0 or first[0] > 0, first)


def rules(fixed: FixedTables) -> str:
    """CTE `rules`: those that each batch was decided with, from its row.

    Columns batch_id, ms; turn (increases with time), application (its index); check_interval, check_max, reserved,
    jitter, count_undelivered (null = unknown); first_interval (of the application's first batch: after a rebuild it
    determines when each half message is due again). Times are ms.
    """
    places = " ".join(f"WHEN :application_{place} THEN {place}" for place in range(len(fixed.whole.applications)))
    intervals = " ".join(
        f"WHEN {place} THEN {interval}"
        for place, interval in enumerate(first_intervals(fixed.whole.batches))
        if interval >= 0
    )
    place = f"CAST(CASE coalesce(application, '') {places} END AS BIGINT)" if places else "CAST(NULL AS BIGINT)"
    first = f"CAST(CASE place {intervals} END AS BIGINT)" if intervals else "CAST(NULL AS BIGINT)"
    return f"""
placed AS (
    SELECT batch_id, unix_millis(batch_time) AS ms, {place} AS place, {", ".join(_RULES)}, row_number() OVER (
        PARTITION BY batch_id, unix_millis(batch_time) ORDER BY finished_at, coalesce(application, '')) AS copy
    FROM {{{ALL}batches}}),
rules AS (
    SELECT batch_id, ms, place * {APPLICATION} + batch_id AS turn, place AS application,
        check_interval_ms AS check_interval, check_max, reserved_ms AS reserved, check_jitter_ms AS jitter,
        count_undelivered, {first} AS first_interval
    FROM placed WHERE copy = 1)"""


def rules_values(fixed: FixedTables) -> dict[str, Value]:
    """The values of `rules`."""
    return {f"application_{place}": name for place, name in enumerate(fixed.whole.applications)}


def rules_history(fixed: FixedTables) -> RulesHistory:
    """Of all batches."""
    sql = f"""
        WITH {rules(fixed)}
        SELECT coalesce(max(jitter), 0) > 0 AS jitter, coalesce(bool_or(NOT count_undelivered), FALSE) AS uncounted
        FROM rules"""
    found = fixed.engine.arrow(fixed.ask(Question(sql, "jitter", rules_values(fixed))))
    (row,) = found.to_pylist()
    return RulesHistory(row["jitter"], row["uncounted"])


def _compared() -> str:
    """SQL of `compared`: of each batch batch_id, ms, told (rows in `batches`), each count as recorded and as found."""
    # If a count is unknown in one row, the sum is null.
    recorded = {name: f"coalesce({name}, 0)" if name in _ADDED else name for name in _COUNTS}
    sums = ", ".join(
        f"CASE WHEN count({value}) = count(*) THEN CAST(sum({value}) AS BIGINT) END AS told_{name}"
        for name, value in recorded.items()
    )
    tables = [name for name in SCHEMAS if batch_time(name)]
    counted = [_counted(name, f"{{{ALL}{name}}}") for name in tables]
    counted.append(_counted(TOPIC_PREFIX, f"{{{ALL}{TOPICS}}}"))
    found = ", ".join(f"CAST(sum({name}) AS BIGINT) AS {name}" for name in _COUNTS)
    columns = ", ".join(f"t.told_{name}, f.{name}" for name in _COUNTS)
    return f"""
WITH one_each AS (
    SELECT *, unix_millis(batch_time) AS ms, row_number() OVER (
        PARTITION BY application, batch_id, unix_millis(batch_time) ORDER BY finished_at) AS copy
    FROM {{{ALL}batches}}),
told AS (
    SELECT batch_id, ms, count(*) AS told, count(check_interval_ms) = count(*) AS ruled, {sums}
    FROM one_each WHERE copy = 1 GROUP BY batch_id, ms),
found AS (SELECT batch_id, ms, {found} FROM ({" UNION ALL ".join(counted)}) GROUP BY batch_id, ms)
SELECT coalesce(t.batch_id, f.batch_id) AS batch_id, coalesce(t.ms, f.ms) AS ms, t.told, t.ruled, {columns}
FROM told AS t FULL OUTER JOIN found AS f ON t.batch_id = f.batch_id AND t.ms = f.ms"""


def _counted(name: str, table: str) -> str:
    """SQL: the rows of a table, or of all topic tables, counted by batch: batch_id, ms, and the counts."""
    counts = ", ".join(
        f"count(*) FILTER (WHERE {which}) AS {count}" if name == of else f"CAST(0 AS BIGINT) AS {count}"
        for count, (of, which) in _COUNTS.items()
    )
    # Grouped by the time as it is: to round it takes longer than to read it.
    time = batch_time(name)
    return f"SELECT batch_id, unix_millis({time}) AS ms, {counts} FROM {table} GROUP BY batch_id, {time}"


def _begun(fixed: FixedTables, compared: Rows) -> list[tuple[int, int]]:
    """The batch in progress, as its rows reveal it: it has no row in `batches`, and the next batch id, or 0."""
    batches = fixed.whole.batches
    last, first_ms, last_ms = int(batches["batch_id"][-1]), int(batches["time"][0]), int(batches["time"][-1])
    sql = f"""
        SELECT batch_id, ms FROM {{compared}}
        WHERE told IS NULL AND ((batch_id = {last + 1} AND ms >= {first_ms}) OR (batch_id = 0 AND ms > {last_ms}))"""
    rows = fixed.engine.arrow(fixed.ask(Question(sql, "batch_id, ms"), {"compared": compared})).to_pylist()
    return [(row["batch_id"], row["ms"]) for row in rows]


def _label(fixed: FixedTables) -> str:
    """The finding of a row of `compared`; past: previous release; unknown: counts or rules missing; null: none."""
    first = int(fixed.whole.batches["time"][0])
    under_way = " OR ".join(f"(batch_id = {one.batch_id} AND ms = {one.time})" for one in fixed.under_way) or "FALSE"
    differs = " OR ".join(f"coalesce(told_{name} <> coalesce({name}, 0), FALSE)" for name in _COUNTS)
    unknown = " OR ".join(f"told_{name} IS NULL" for name in _COUNTS)
    return f"""CASE
        WHEN {under_way} THEN NULL
        WHEN told IS NULL AND ms < {first} THEN 'past'
        WHEN told IS NULL THEN 'batch_without_row'
        WHEN {differs} THEN 'batch_differs'
        WHEN {unknown} OR NOT ruled THEN 'unknown' END"""


def _told(fixed: FixedTables, compared: Rows, most: int) -> dict[str, BatchFault]:
    """By label: the number of batches, and the first of them."""
    sql = f"""
        WITH labelled AS (SELECT batch_id, ms, {_label(fixed)} AS name FROM {{compared}}),
        numbered AS (
            SELECT *, count(*) OVER (PARTITION BY name) AS found,
                row_number() OVER (PARTITION BY name ORDER BY ms, batch_id) AS number
            FROM labelled WHERE name IS NOT NULL)
        SELECT * FROM numbered WHERE number <= {most}"""
    found: dict[str, BatchFault] = {}
    asked = fixed.ask(Question(sql, "name, number"), {"compared": compared})
    for row in fixed.engine.arrow(asked).to_pylist():
        before = found.get(row["name"], BatchFault(row["found"], ()))
        found[row["name"]] = before._replace(samples=(*before.samples, (row["batch_id"], row["ms"])))
    return found
