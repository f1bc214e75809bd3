"""Whether batches obeyed what they had read, and checked what was due: a property of our code, not of a user's data.

By the tables' versions, as `batch_order`. A version was certainly read before a batch if it is below
the one that the batch begins with: of that it may read some.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from checkback.query.audit.batches import audit_batches
from checkback.query.audit.facts import COMMITS, DISCARD, ROLLBACKS
from checkback.query.engines.duckdb_engine import DuckDBEngine
from checkback.query.engines.question import Question
from checkback.query.versions.batches import UNKNOWN
from checkback.query.versions.table_versions import FixedTables
from checkback.storage.tables import Tables
from support import batch_order as order
from support.batch_reads import BatchReads, batches_sql

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from checkback.settings import Settings

#: ms; a deferred check is tried again within 62 s (`partition_batch.put_off_timer`)
_SPARE_MS = 120_000
_RULES = {"timeout": "timeout_ms", "interval": "check_interval_ms", "jitter": "check_jitter_ms"}
_NUMBERS = {
    "batch_id": "batch_id",
    "ms": "unix_millis(batch_time)",
    "idle": "CASE WHEN checks = 0 AND discarded = 0 THEN 1 ELSE 0 END",  # null, not known: perhaps it was not
    **_RULES,
    "half_from_version": "read_ranges['half']['from_version']",
    "half_to_version": "read_ranges['half']['to_version']",
    "op_from_version": "read_ranges['op']['from_version']",
    "op_from_index": "read_ranges['op']['from_index']",
}
_BATCHES = batches_sql(_NUMBERS)

#: Decisions against an op, and checks, that came later than that op. Of checks the last one before the decision.
_PASSED_OVER = f"""
WITH RULES, {order._STATED},
ended AS (
    SELECT d.queue_id, d.queue_offset, min(coalesce(r.turn, -1)) AS turn
    FROM decided AS d LEFT JOIN rules AS r ON r.batch_id = d.batch_id AND r.ms = d.ms
    GROUP BY d.queue_id, d.queue_offset),
checked AS (
    SELECT c.queue_id, c.queue_offset, c.producer_group, c.transaction_id, max(r.turn) AS turn
    FROM {{check_requests}} AS c JOIN rules AS r ON r.batch_id = c.batch_id AND r.ms = unix_millis(c.requested_at)
    LEFT JOIN ended AS d ON {order._SAME("d", "c")}
    WHERE d.turn IS NULL OR r.turn < d.turn
    GROUP BY c.queue_id, c.queue_offset, c.producer_group, c.transaction_id),
events AS (
    SELECT queue_id, queue_offset, producer_group, transaction_id, batch_id, ms, CASE
        WHEN (bits & {COMMITS}) <> 0 THEN {ROLLBACKS}
        WHEN (bits & {ROLLBACKS}) <> 0 THEN {COMMITS}
        WHEN bits = {DISCARD} THEN {COMMITS | ROLLBACKS} ELSE 0 END AS mask FROM decided
    UNION ALL
    SELECT c.queue_id, c.queue_offset, c.producer_group, c.transaction_id, r.batch_id, r.ms,
        {COMMITS | ROLLBACKS} AS mask
    FROM checked AS c JOIN rules AS r ON r.turn = c.turn)
{order._OF_OPS(late="max(e.ms) - min(o.ms)", more="", **order._JOINED)}"""

#: Not decided, and due before :before: for the first check, or by the last one.
_DUE = f"""
WITH born AS (
    SELECT queue_id, queue_offset, {order._BORN} AS born, committed,
        CASE WHEN check_immunity_s >= 0 THEN CAST(check_immunity_s AS BIGINT) * 1000 ELSE :timeout END AS immunity
    FROM {{half}}),
halves AS (
    SELECT queue_id, queue_offset, min(born) AS born, max(born + immunity) AS due FROM born
    GROUP BY queue_id, queue_offset HAVING NOT bool_or(coalesce(committed, FALSE))),
asked AS (
    SELECT queue_id, queue_offset, max(unix_millis(requested_at)) AS ms
    FROM {{check_requests}} GROUP BY queue_id, queue_offset)
SELECT h.queue_id, h.queue_offset, h.born
FROM halves AS h LEFT JOIN asked AS a ON {order._SAME("a", "h")}
WHERE h.due < :before AND (a.queue_id IS NULL OR a.ms + :interval < :before)
    AND NOT EXISTS (SELECT 1 FROM {{decisions}} AS d WHERE {order._SAME("d", "h")})"""


class _Spare(NamedTuple):
    """From the time ``ms`` on batches did all that was due, and checked and discarded nothing for minutes.

    They had read all versions of `half` below ``half_version``. By their application's rules a first check is due at
    most ``timeout`` after the birth, if the message sets no immunity, the next ``interval`` after one (ms).
    """

    ms: int
    half_version: int
    timeout: int
    interval: int


def out_of_order(settings: Settings) -> set[tuple[str, int, int]]:
    """What each transaction suffered, with its queue_id and queue_offset.

    decided_before_landing, decided_before_op: by a batch that had not read its half message, or the op that it names.
    op_passed_over: it was checked, or decided otherwise, by a batch after one that had read its op. check_overdue: it
    is pending, and was not checked when it was due, though batches had time for it.
    """
    with DuckDBEngine(Tables.of(settings.storage)) as engine:
        accounted = audit_batches(FixedTables.take(engine), 1)
        fixed, batches = accounted.fixed, _Batches.take(accounted.fixed)
        early = order.out_of_order(fixed, BatchReads.take(fixed)).select(["labels", "queue_id", "queue_offset"])
        found = {(row["labels"], row["queue_id"], row["queue_offset"]) for row in early.to_pylist()}
        found |= {("op_passed_over", row["queue_id"], row["queue_offset"]) for row in _passed_over(fixed, batches)}
        # The rules of batches without a row are not known: they may have read what is still pending.
        spare = None if accounted.past else batches.spare()
        if spare is not None:
            found |= {("check_overdue", row["queue_id"], row["queue_offset"]) for row in _overdue(fixed, spare)}
        return found


def _passed_over(fixed: FixedTables, batches: _Batches) -> Iterator[Mapping[str, Any]]:
    """Those of which a batch before the row's had certainly applied one of the ops."""
    reads, passed = BatchReads.take(fixed), order._asked(fixed, _PASSED_OVER)
    ops = {row["number"]: files for row, files in order._with_files(fixed, "op", passed)}
    for row, halves in order._with_files(fixed, "half", passed):
        known = [half.version for half in halves if half is not None]
        versions = [op.version for op in ops.get(row["number"], ()) if op is not None and op.exact]
        if reads.find(row["batch_id"], row["ms"]) is None or not known or len(known) < len(halves):
            continue
        if any(batches.op_passed_over(row["batch_id"], row["ms"], max(known), version) for version in versions):
            yield row


def _overdue(fixed: FixedTables, spare: _Spare) -> Iterator[Mapping[str, Any]]:
    """Those that were known, and due, when batches checked nothing."""
    values = {"before": spare.ms, "timeout": spare.timeout, "interval": spare.interval}
    rows = order._with_files(fixed, "half", fixed.engine.arrow(fixed.ask(Question(_DUE, values=values))))
    log = fixed.engine.versions("half") if rows else None
    # A file that no commit of the log adds is older than all of them.
    before = spare.half_version if log is None else log.oldest - 1
    for row, files in rows:
        if all((before if file is None else file.version) < spare.half_version for file in files):
            yield row


@dataclass(frozen=True)
class _Batches:
    """The completed batches by application and id; UNKNOWN = not known. ``applications``: numbers."""

    applications: NDArray[Any]
    columns: Mapping[str, NDArray[Any]]

    @classmethod
    def take(cls, fixed: FixedTables) -> _Batches:
        found = fixed.engine.arrow(fixed.ask(Question(_BATCHES)))
        applications = found.column("application").combine_chunks().dictionary_encode().indices.to_numpy()
        columns = {name: found.column(name).fill_null(UNKNOWN).to_numpy() for name in _NUMBERS}
        left_out = {(one.batch_id, one.time) for one in fixed.under_way}
        keys = zip(columns["batch_id"].tolist(), columns["ms"].tolist(), strict=True)
        order = np.lexsort((columns["batch_id"], applications))
        order = order[~np.array([key in left_out for key in keys], bool)[order]]
        return cls(applications[order], {name: column[order] for name, column in columns.items()})

    def op_passed_over(self, batch_id: int, ms: int, half_version: int, op_version: int) -> bool:
        """Whether an earlier batch of the batch's application certainly read the op, and none before the half message.

        Then that op was applied at once: it neither waited (rule 3) nor was it restored by a rebuild.
        """
        (row,) = np.flatnonzero((self.columns["batch_id"] == batch_id) & (self.columns["ms"] == ms))
        begins, half_begins = (int(self.columns[f"{table}_from_version"][row]) for table in ("op", "half"))
        if op_version >= begins or half_version >= half_begins:
            return False
        mine = np.flatnonzero(self.applications == self.applications[row])
        mine = mine[(mine < row) & (self.columns["half_to_version"][mine] > half_version)]
        if not len(mine):
            return False
        first, index = (int(self.columns[f"op_{end}"][mine[0]]) for end in ("from_version", "from_index"))
        return first != UNKNOWN and (op_version > first or (op_version == first and index < 0))

    def spare(self) -> _Spare | None:
        """The latest such time; None: there is none. It is not asked of applications whose rules are not all known."""
        changes = np.flatnonzero(np.diff(self.applications)) + 1
        parts = [part for part in np.split(np.arange(len(self.applications)), changes) if len(part)]
        found = [_spare({name: column[part] for name, column in self.columns.items()}) for part in parts]
        return max((one for one in found if one is not None), default=None)


def _spare(of: Mapping[str, NDArray[Any]]) -> _Spare | None:
    if any((of[rule] == UNKNOWN).any() for rule in _RULES):
        return None
    ms, idle = of["ms"], of["idle"] == 1
    # By a clock that was ahead a check may have been deferred until a later time.
    on_time = ms == np.maximum.accumulate(ms)
    ends = np.append(np.flatnonzero(~(idle[1:] & (np.diff(of["batch_id"]) == 1))), len(ms) - 1)
    end = ends[np.searchsorted(ends, np.arange(len(ms)))]
    begins = idle & on_time & on_time[end] & (ms[end] - ms >= _SPARE_MS) & (of["half_from_version"] != UNKNOWN)
    if not begins.any():
        return None
    at = np.flatnonzero(begins)[-1]
    interval = int((of["interval"] + of["jitter"]).max())
    return _Spare(int(ms[at]), int(of["half_from_version"][at]), int(of["timeout"].max()), interval)
