"""Compares `batches` with the tables that batches write: each batch must have a row there, and each row its batch.

Only the rows of `decisions` and `check_requests` are counted, as these must never be deleted. Rows missing in a topic
table or in `discarded` are found per transaction (`rules`): a message may be published by a later batch than the
one that decided it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

from checkback.query.engines.question import Question
from checkback.query.versions.batches import (
    APPLICATION,
    BatchFault,
    faults,
    first_ids,
    first_intervals,
    first_times,
)
from checkback.query.versions.table_versions import ALL, TOPICS
from checkback.query.versions.whole_batches import NAME as TABLE
from checkback.query.versions.whole_batches import OF_BATCH, batch_time
from checkback.storage.log.commit_reader import CommitReader
from checkback.storage.schemas import SCHEMAS, TOPIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checkback.query.engines.engine import Rows, Value
    from checkback.query.versions.table_versions import FixedTables
    from checkback.storage.checkpoints.checkpoint import Batch

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
#: ms; a deferred delivery is tried again sooner
_SPARE_MS = 120_000
#: null in a batch's row: none. Rebuild's row of an interrupted batch has no counts at all
_DELAYS = ("scheduled", "delivered", "cancelled")
_RULES = ("check_interval_ms", "check_max", "max_age_ms", "count_undelivered")


@dataclass(frozen=True)
class BatchAudit:
    """The result of the comparison. ``found``: by name of a finding, with batches (batch_id, time) as samples.

    ``fixed``: the tables, without the rows of a batch in progress that only its rows reveal. ``past``: whether there
    are rows of batches before the first row in `batches`. ``first``: the first batch with a row, (batch_id, time).
    """

    found: dict[str, BatchFault]
    fixed: FixedTables
    past: bool
    first: tuple[int, int] | None = None


def audit_batches(fixed: FixedTables, most: int) -> BatchAudit:
    """The comparison, with up to ``most`` samples per finding."""
    batches, lost = fixed.whole.batches, _lost(fixed)
    compared = fixed.engine.keep("compared", fixed.ask(Question(_compared())))
    fixed = fixed.without([] if fixed.logged or not len(batches) else _begun(fixed, compared))
    found = _told(fixed, compared, lost, most)
    nothing = BatchFault(0, ())
    past, unknown, there, without = (
        found.pop(name, nothing) for name in ("past", "unknown", "lost", "batch_without_row")
    )
    # Of a lost batch there need not be any rows.
    samples = there.samples or tuple((number, None) for number in islice(chain(*lost), most))
    found["batch_without_row"] = BatchFault(without.number + sum(map(len, lost)), (*without.samples, *samples)[:most])
    found["batches"] = BatchFault(len(batches), ())
    found["batch_not_judged"] = BatchFault(past.number + unknown.number, (*past.samples, *unknown.samples)[:most])
    found |= faults(fixed.whole.rows, most)
    if not len(batches):
        return BatchAudit(found, fixed, past=True)
    first = int(first_ids(batches)[0]), int(first_times(batches)[0])
    return BatchAudit(found, fixed, past.number > 0 or first[0] > 0, first)


def _lost(fixed: FixedTables) -> list[range]:
    """Ids of the checkpoint's batches that have had a row in `batches`, before the first one there or after the last.

    Those in between are a `batch_gap`.
    """
    if fixed.recorded is None:
        return []
    name, first, last = fixed.recorded
    rows, names = fixed.whole.rows, fixed.whole.applications
    mine = rows[rows["application"] == names.index(name)] if name in names else rows[:0]
    if not len(mine):
        return [range(first, last + 1)]
    return [range(first, int(first_ids(mine).min())), range(int(mine["batch_id"].max()) + 1, last + 1)]


def _emptied(fixed: FixedTables) -> bool:
    """Whether all rows of `batches`, or the table, were there once, without asking the checkpoint."""
    if len(fixed.whole.rows):
        return False
    if TABLE in fixed.versions:
        commits = CommitReader.of(fixed.tables.location(TABLE)) if fixed.tables.readable else None
        return commits is not None and commits.anything_after(0)
    # The first start makes it, as it makes `deliveries`; with a checkpoint that may go on.
    return "deliveries" in fixed.versions and not fixed.logged


def rules(fixed: FixedTables) -> str:
    """CTE `rules`: those that each batch was decided with, from its row.

    Columns batch_id, ms; turn (increases with time), application (its index); check_interval, check_max, max_age,
    count_undelivered (null = unknown); first_interval (of the application's first batch: after a rebuild it
    determines when each half message is due again). Times are ms.
    """
    places = " ".join(f"WHEN :application_{place} THEN {place}" for place in range(len(fixed.whole.applications)))
    intervals = " ".join(
        f"WHEN {place} THEN {interval}"
        for place, interval in enumerate(first_intervals(fixed.whole.batches))
        if interval >= 0
    )
    place = f"CAST(CASE {OF_BATCH} {places} END AS BIGINT)" if places else "CAST(NULL AS BIGINT)"
    first = f"CAST(CASE place {intervals} END AS BIGINT)" if intervals else "CAST(NULL AS BIGINT)"
    return f"""
placed AS (
    SELECT batch_id, unix_millis(batch_time) AS ms, {place} AS place, {", ".join(_RULES)}, row_number() OVER (
        PARTITION BY batch_id, unix_millis(batch_time) ORDER BY finished_at, {OF_BATCH}) AS copy
    FROM {{{ALL}batches}}),
rules AS (
    SELECT batch_id, ms, place * {APPLICATION} + batch_id AS turn, place AS application,
        check_interval_ms AS check_interval, check_max, max_age_ms AS max_age, count_undelivered,
        {first} AS first_interval
    FROM placed WHERE copy = 1)"""


def rules_values(fixed: FixedTables) -> dict[str, Value]:
    """The values of `rules`."""
    return {f"application_{place}": name for place, name in enumerate(fixed.whole.applications)}


def ever_uncounted(fixed: FixedTables) -> bool:
    """Whether check.count_undelivered was false in any batch."""
    sql = f"SELECT coalesce(bool_or(NOT count_undelivered), FALSE) AS uncounted FROM {{{ALL}batches}}"
    return bool(fixed.engine.arrow(fixed.ask(Question(sql))).column("uncounted")[0].as_py())


_QUIET = f"""
WITH done AS (
    SELECT {OF_BATCH} AS application, batch_id, unix_millis(batch_time) AS ms,
        coalesce(committed IS NOT NULL AND restored_at IS NULL AND coalesce(delivered, 0) = 0, FALSE) AS idle
    FROM {{batches}} WHERE batch_id IS NOT NULL AND batch_time IS NOT NULL AND NOT (UNDER_WAY)),
marked AS (
    SELECT application, batch_id, ms,
        idle AND coalesce(lag(batch_id) OVER (PARTITION BY application ORDER BY batch_id, ms) = batch_id - 1, FALSE)
            AS idle,
        max(ms) OVER (PARTITION BY application ORDER BY batch_id, ms) AS latest
    FROM done),
since AS (
    SELECT ms, idle AND ms = latest AS quiet,
        max(CASE WHEN NOT idle THEN latest END) OVER (PARTITION BY application ORDER BY batch_id, ms) AS busy
    FROM marked)
SELECT max(ms) AS ms FROM since WHERE quiet AND ms - busy >= {_SPARE_MS}"""


def delivered_until(fixed: FixedTables) -> int | None:
    """Time (ms) of the latest batch that must have left nothing that was due; None: there is none.

    A batch that defers deliveries (rule 11) makes some. So it is one that makes none, long after the last batch of its
    application that may have deferred, or restored, some; before the first row, or a gap, any may have.
    """
    asked = Question(_QUIET.replace("UNDER_WAY", _under_way(fixed)))
    found: int | None = fixed.engine.arrow(fixed.ask(asked)).column("ms")[0].as_py()
    return found


def restores(fixed: FixedTables, batch: Batch) -> bool:
    """Whether it is a rebuild's first batch: what that restores, ops and deliveries, acts in the next one."""
    sql = """SELECT restored_at IS NOT NULL AS restores FROM {batches}
        WHERE batch_id = :id AND unix_millis(batch_time) = :ms"""
    rows = fixed.engine.arrow(fixed.ask(Question(sql, values={"id": batch.batch_id, "ms": batch.time})))
    found: list[bool] = rows.column("restores").to_pylist()
    return found == [True]


def _under_way(fixed: FixedTables) -> str:
    """SQL: a batch is one of those whose rows are left out; reads batch_id, ms."""
    ids = (f"(batch_id = {one.batch_id} AND unix_millis(batch_time) = {one.time})" for one in fixed.under_way)
    return " OR ".join(ids) or "FALSE"


def _compared() -> str:
    """SQL of `compared`: of each batch batch_id, ms, told (rows in `batches`), each count as recorded and as found."""
    # If a count is unknown in one row, the sum is null.
    recorded = {
        name: f"CASE WHEN committed IS NULL THEN {name} ELSE coalesce({name}, 0) END" if name in _DELAYS else name
        for name in _COUNTS
    }
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
    last, first_ms, last_ms = int(batches["batch_id"][-1]), int(first_times(batches)[0]), int(batches["time"][-1])
    sql = f"""
        SELECT batch_id, ms FROM {{compared}}
        WHERE told IS NULL AND ((batch_id = {last + 1} AND ms >= {first_ms}) OR (batch_id = 0 AND ms > {last_ms}))"""
    rows = fixed.engine.arrow(fixed.ask(Question(sql, "batch_id, ms"), {"compared": compared})).to_pylist()
    return [(row["batch_id"], row["ms"]) for row in rows]


def _label(fixed: FixedTables, lost: Sequence[range]) -> str:
    """The finding of a row of `compared`; null: none.

    past: before the first row, see `_past`; unknown: counts or rules missing; lost: its id is among the ``lost``.
    """
    ids = " OR ".join(f"batch_id BETWEEN {some[0]} AND {some[-1]}" for some in lost if some) or "FALSE"
    under_way = " OR ".join(f"(batch_id = {one.batch_id} AND ms = {one.time})" for one in fixed.under_way) or "FALSE"
    differs = " OR ".join(f"coalesce(told_{name} <> coalesce({name}, 0), FALSE)" for name in _COUNTS)
    unknown = " OR ".join(f"told_{name} IS NULL" for name in _COUNTS)
    removed = "FALSE" if fixed.since is None else f"ms < {fixed.since}"
    return f"""CASE
        WHEN {under_way} OR {removed} THEN NULL
        WHEN told IS NULL AND ({ids}) THEN 'lost'
        WHEN told IS NULL AND {_past(fixed)} THEN 'past'
        WHEN told IS NULL THEN 'batch_without_row'
        WHEN {differs} THEN 'batch_differs'
        WHEN {unknown} OR NOT ruled THEN 'unknown' END"""


def _past(fixed: FixedTables) -> str:
    """Whether a batch without a row came before the first row in `batches`, by what can be told: it is not judged.

    One with delayed messages has had a row. Without a checkpoint one may be in progress, also if the clock was set
    back.
    """
    batches, delayed = fixed.whole.batches, " AND ".join(f"{name} = 0" for name in _DELAYS)
    begun = "FALSE"
    if not fixed.logged:
        begun = "ms = (SELECT max(ms) FROM {compared})"
        if len(batches):
            begun = f"batch_id IN (0, {batches['batch_id'][-1] + 1})"
    if _emptied(fixed):
        return f"({begun})"
    before = f"ms < {first_times(batches)[0]}" if len(batches) else "TRUE"
    return f"{before} AND (({delayed}) OR {begun})"


def _told(fixed: FixedTables, compared: Rows, lost: Sequence[range], most: int) -> dict[str, BatchFault]:
    """By label: the number of batches, and the first of them."""
    sql = f"""
        WITH labelled AS (SELECT batch_id, ms, {_label(fixed, lost)} AS name FROM {{compared}}),
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
