"""Transactions that were decided by batches that had not read them: by the tables' versions, not by clocks.

A batch decides only what it has read, and decides it at once; `batches` tells up to which versions of `half` and `op`
that was. Clocks are not enough: those of the writers differ, and may be set back. They only tell which transactions
to look at; where a version is not known, they tell what is beyond all doubt, and what is not beyond it is not found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from checkback.query.audit.batches import rules, rules_values
from checkback.query.audit.conditions import MARGIN
from checkback.query.audit.facts import COMMITS, ROLLBACKS, STATE_BITS
from checkback.query.engines.question import Question
from checkback.storage.log.snapshot_files import Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from checkback.query.versions.table_versions import FixedTables
    from checkback.storage.log.commit_reader import Added
    from support.batch_reads import BatchReads

    Row = Mapping[str, Any]

_MARGIN_MS = MARGIN.total_seconds() * 1000
#: Most files whose versions are looked up, and most transactions; if more are in question, a writer's clock is ahead:
#: then only those that MARGIN does not explain.
_FILES, _MOST = 256, 20_000
#: the greatest offset
_LAST = (1 << 63) - 1
_SCHEMA = pa.schema(
    [("labels", pa.string()), ("queue_id", pa.int32()), ("queue_offset", pa.int64()), ("born", pa.int64())]
)

_BORN = "unix_millis(least(born_timestamp, store_timestamp))"
_SEEN = "seen AS (SELECT batch_id, ms, max(ms) OVER (ORDER BY turn, ms) AS latest FROM rules WHERE turn IS NOT NULL)"
_SAME = "{0}.queue_id = {1}.queue_id AND {0}.queue_offset = {1}.queue_offset".format

#: Half messages that landed, by their writer's clock, later than all batches up to the one that decided them. late_ms:
#: by how much; of each offset the first half message.
_LATE_HALF = f"""
WITH RULES, {_SEEN},
landed AS (
    SELECT queue_id, queue_offset, min(unix_millis(store_timestamp)) AS ms, min({_BORN}) AS born
    FROM {{half}} GROUP BY queue_id, queue_offset)
SELECT d.queue_id, d.queue_offset, l.born, d.batch_id, s.ms, l.ms - s.latest AS late_ms
FROM {{decisions}} AS d JOIN landed AS l ON {_SAME("l", "d")}
JOIN seen AS s ON s.batch_id = d.batch_id AND s.ms = unix_millis(d.decided_at)
WHERE d.state <> 'CANCEL' AND l.ms > s.latest"""

_STATED = f"""
halves AS (
    SELECT queue_id, queue_offset, min({_BORN}) AS born
    FROM {{half}} GROUP BY queue_id, queue_offset HAVING NOT bool_or(coalesce(committed, FALSE))),
ops AS (
    SELECT queue_id, queue_offset, producer_group, transaction_id,
        coalesce(unix_millis(store_timestamp), CAST(0 AS BIGINT)) AS ms, {STATE_BITS} AS bits FROM {{op}}),
decided AS (
    SELECT queue_id, queue_offset, producer_group, transaction_id, batch_id, unix_millis(decided_at) AS ms,
        {STATE_BITS} AS bits FROM {{decisions}})"""
#: whether an op is one of the events'; ``mask``: its bits of state and source
_OWN = """{op}.producer_group = {event}.producer_group
    AND ({op}.transaction_id IS NULL OR {op}.transaction_id = {event}.transaction_id)
    AND ({bits} & {event}.mask) <> 0""".format
_OF_OPS = """
SELECT e.queue_id, e.queue_offset, h.born, e.producer_group, e.transaction_id, e.mask, e.batch_id, e.ms,
    {late} AS late_ms
FROM events AS e JOIN halves AS h ON {of_half} JOIN ops AS o ON {of_op} AND {own} {more}
GROUP BY e.queue_id, e.queue_offset, h.born, e.producer_group, e.transaction_id, e.mask, e.batch_id, e.ms
HAVING {late} > 0""".format
_JOINED = {"of_half": _SAME("h", "e"), "of_op": _SAME("o", "e"), "own": _OWN(op="o", event="e", bits="o.bits")}

_SEEN_BY = "JOIN seen AS s ON s.batch_id = e.batch_id AND s.ms = e.ms"

#: Decisions all of whose ops, those of their own state and source, landed later than all batches up to theirs.
_LATE_OP = f"""
WITH RULES, {_SEEN}, {_STATED},
events AS (SELECT *, bits AS mask FROM decided WHERE (bits & {COMMITS | ROLLBACKS}) <> 0)
{_OF_OPS(late="min(o.ms) - max(s.latest)", more=_SEEN_BY, **_JOINED)}"""


def out_of_order(fixed: FixedTables, reads: BatchReads) -> pa.Table:
    """The columns are labels (one finding), queue_id, queue_offset, born (ms). Raises StorageError."""
    found = {
        (label, row["queue_id"], row["queue_offset"]): row["born"]
        for part in fixed.parts(brief=True)
        for label, row in _of_part(part, reads)
    }
    return pa.Table.from_pylist([dict(zip(_SCHEMA.names, (*key, found[key]), strict=True)) for key in found], _SCHEMA)


def _of_part(fixed: FixedTables, reads: BatchReads) -> Iterator[tuple[str, Row]]:
    for label, table, sql in (
        ("decided_before_landing", "half", _LATE_HALF),
        ("decided_before_op", "op", _LATE_OP),
    ):
        for row, files in _with_files(fixed, table, _asked(fixed, sql)):
            if all(_unread(reads, table, row, file) for file in files):
                yield label, row


def _asked(fixed: FixedTables, sql: str) -> pa.Table:
    values = rules_values(fixed)
    rows = fixed.engine.arrow(fixed.ask(Question(sql.replace("RULES", rules(fixed).strip()), values=values)))
    return _beyond_doubt(rows) if rows.num_rows > _MOST else rows


def _beyond_doubt(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.greater(rows.column("late_ms"), _MARGIN_MS))


def _with_files(fixed: FixedTables, table: str, rows: pa.Table) -> list[tuple[Row, list[Added | None]]]:
    """Each row, with its ``number``, and the files that have its half messages or ops; None: not told of."""
    if not rows.num_rows:
        return []
    if "number" not in rows.column_names:
        rows = rows.append_column("number", pa.array(range(rows.num_rows), pa.int64()))
    own = "TRUE" if table == "half" else _OWN(op="o", event="a", bits=STATE_BITS)
    bounds = pc.min_max(rows.column("queue_offset")).as_py()
    span = Span("queue_offset", bounds["min"], bounds["max"] + 1 if bounds["max"] < _LAST else None)
    filed = fixed.engine.read(table, fixed.versions[table], span.condition, file=True, within=span)
    sql = f"""
        SELECT DISTINCT a.number, o._file AS file FROM {{filed}} AS o
        JOIN {{asked}} AS a ON a.queue_id = o.queue_id AND a.queue_offset = o.queue_offset AND {own}"""
    more = {"filed": filed, "asked": fixed.engine.keep("asked", rows)}
    found: dict[int, set[str]] = {}
    for one in fixed.engine.arrow(fixed.ask(Question(sql), more)).to_pylist():
        found.setdefault(one["number"], set()).add(one["file"])
    files = set().union(*found.values())
    if len(files) > _FILES and "late_ms" in rows.column_names:
        rows = _beyond_doubt(rows)
        files = set().union(*(found.get(number, ()) for number in rows.column("number").to_pylist()))
    added = fixed.engine.added(table, files)
    return [(row, [added.get(file) for file in found.get(row["number"], ())]) for row in rows.to_pylist()]


def _unread(reads: BatchReads, table: str, row: Row, file: Added | None) -> bool:
    """Whether the batch had not read the file; where the versions do not tell: by the clock, with MARGIN."""
    batch = reads.find(row["batch_id"], row["ms"])
    read = None if batch is None or file is None or not file.exact else reads.has_read(batch, table, file.version)
    return bool(row["late_ms"] > _MARGIN_MS) if read is None else not read
