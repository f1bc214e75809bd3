"""Retention with one fault put in: the simulator must find every one."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from checkback.maintain import row_retention, rows_in_files
from checkback.reconcile import ended_transactions
from simulator.mutants import broken_module

#: what is wrong -> (as it stands, as it should not): in ended_transactions.py
_RULES: dict[str, tuple[str, str]] = {
    "scheduled ones are not owed": ('found.filter(pc.greater_equal(over, found.column("due_sum")))', "found"),
    "ended since the horizon": (
        'old = decisions.filter(pc.less(decisions.column("decided_at"), horizon))',
        "old = decisions",
    ),
    "rows of what is owed": ('list(KEY), join_type="left anti"))\n\n\ndef _mask', "list(KEY)))\n\n\ndef _mask"),
}
#: likewise in row_retention.py
_RUNS: dict[str, tuple[str, str]] = {
    "the last batch is not waited for": ("min(self.now, self._last_batch)", "self.now"),
    "rejected ops decide": ('("decisions", "deliveries", "rejected")', '("decisions", "deliveries")'),
    "waiting ops are gone": ("self._read_by(horizon) if name in _OF_OPS else horizon", "horizon"),
}
#: likewise in rows_in_files.py
_FILES: dict[str, tuple[str, str]] = {
    "offsets handed out again": ('last_of_queues(group.rows, gone) if name == "half" else {}', "{}"),
    "floors recede": (
        "never_back(log, versions_of(horizon, {queue: offset + 1 for queue, offset in last.items()}))",
        "versions_of(horizon, {queue: offset + 1 for queue, offset in last.items()})",
    ),
    "batches go as well": ("[runs_of(rows.filter(old)), rows.filter(pc.invert(old))]", "[rows.filter(pc.invert(old))]"),
    "missed messages are not told": ("self._missed.of(topic, files, horizon)", "{}"),
}
_AS_IT_IS = ("class RowRetention:", "class RowRetention:")
RETENTIONS = (*_RULES, *_RUNS, *_FILES)


def broken_retention(fault: str) -> Any:
    """A row_retention with this fault."""
    if fault in _RUNS:
        return broken_module(row_retention, *_RUNS[fault])
    other, faults = (rows_in_files, _FILES) if fault in _FILES else (ended_transactions, _RULES)
    with patch.dict("sys.modules", {other.__name__: broken_module(other, *faults[fault])}):
        return broken_module(row_retention, *_AS_IT_IS)
