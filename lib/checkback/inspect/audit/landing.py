"""Half messages that landed after the batch that decided them had begun: by the tables' versions, else by the clocks.

A batch decides only what it has read, and `batches` tells up to which version of `half` that was. Clocks are not
enough: those of the writers differ, and may be set back. They only tell which half messages to look at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.inspect.audit.batches import rules, rules_values
from checkback.inspect.audit.rules import MARGIN
from checkback.inspect.engines.question import Question
from checkback.inspect.versions.table_versions import ALL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.inspect.versions.table_versions import FixedTables
    from checkback.storage.log.commit_reader import Added

_MARGIN_MS = MARGIN.total_seconds() * 1000
#: Files whose versions are looked up; if more are in question, a writer's clock is ahead: see MARGIN.
_FILES = 256
_SCHEMA = pa.schema([("queue_id", pa.int32()), ("queue_offset", pa.int64()), ("born", pa.int64())])

#: Those that landed, by their writer's clock, later than all batches up to the one that decided them. late_ms: by how
#: much; of each offset the first half message and the first decision.
_LATE = f"""
WITH RULES,
seen AS (SELECT batch_id, ms, max(ms) OVER (ORDER BY turn, ms) AS latest FROM rules WHERE turn IS NOT NULL),
landed AS (
    SELECT queue_id, queue_offset, min(unix_millis(store_timestamp)) AS ms,
        min(unix_millis(least(born_timestamp, store_timestamp))) AS born
    FROM {{half}} GROUP BY queue_id, queue_offset),
decided AS (
    SELECT d.queue_id, d.queue_offset, l.ms AS landed, l.born, d.batch_id, unix_millis(d.decided_at) AS ms
    FROM {{decisions}} AS d JOIN landed AS l ON l.queue_id = d.queue_id AND l.queue_offset = d.queue_offset
    WHERE d.state <> 'CANCEL' AND l.ms > unix_millis(d.decided_at))
SELECT d.queue_id, d.queue_offset, d.born, d.landed - s.latest AS late_ms, b.batch_id, s.ms, b.read_ranges
FROM decided AS d JOIN seen AS s ON s.batch_id = d.batch_id AND s.ms = d.ms
LEFT JOIN {{{ALL}batches}} AS b ON b.batch_id = d.batch_id AND unix_millis(b.batch_time) = d.ms
WHERE d.landed > s.latest"""
_FILED = """
SELECT h.queue_id, h.queue_offset, min_by(h._file, unix_micros(h.store_timestamp)) AS file
FROM {filed} AS h JOIN {late} AS l ON l.queue_id = h.queue_id AND l.queue_offset = h.queue_offset
GROUP BY h.queue_id, h.queue_offset"""


def decided_before_landing(fixed: FixedTables) -> pa.Table:
    """queue_id, queue_offset, born (ms) of each. Raises StorageError."""
    found = [one for part in fixed.parts(brief=True) for one in _of_part(part)]
    return pa.Table.from_pylist(found, _SCHEMA)


def _of_part(fixed: FixedTables) -> list[dict[str, Any]]:
    late = fixed.engine.arrow(
        fixed.ask(Question(_LATE.replace("RULES", rules(fixed).strip()), values=rules_values(fixed)))
    ).to_pylist()
    if not late:
        return []
    files = _files(fixed, late)
    if len(set(files.values())) > _FILES:
        late = [row for row in late if row["late_ms"] > _MARGIN_MS]
        files = {place: files[place] for place in map(_place, late)}
    added = fixed.engine.added("half", set(files.values()))
    found = {_place(row): row for row in late if _unread(row, added.get(files[_place(row)]))}
    return list(found.values())


def _files(fixed: FixedTables, late: list[dict[str, Any]]) -> Mapping[tuple[int, int], str]:
    """By place the file of `half` that has it."""
    places = pa.Table.from_pylist(late, _SCHEMA)
    filed = fixed.engine.read("half", fixed.versions["half"], file=True)
    rows = fixed.ask(Question(_FILED), {"filed": filed, "late": fixed.engine.keep("late", places)})
    return {_place(row): row["file"] for row in fixed.engine.arrow(rows).to_pylist()}


def _unread(row: Mapping[str, Any], added: Added | None) -> bool:
    """Whether the batch had not read the half message; where the versions do not tell: by the clock, with MARGIN."""
    read = dict(row["read_ranges"] or ()).get("half")
    if read is None or added is None or not added.exact:
        return bool(row["late_ms"] > _MARGIN_MS)
    return bool(added.version > read["to_version"] or (added.version == read["to_version"] and read["to_index"] < 0))


def _place(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["queue_id"], row["queue_offset"]
