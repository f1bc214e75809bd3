"""An erasure with one fault put in: the simulator must find every one."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from checkback.maintain import erasure, erasure_selection
from simulator.mutants import broken_module

#: what is wrong -> (as it stands, as it should not): in erasure_selection.py
_RULES: dict[str, tuple[str, str]] = {
    "all messages of a place": ("aggregate([]), list(WHO), join_type", "aggregate([]), list(WHO[:2]), join_type"),
    "keys stay": ('(*CONTENT, "raw")', '("tags", "properties", "body", "raw")'),
    "no time of the erasure": ("pc.if_else(pa.array(mask), at, rows.column(index))", "rows.column(index)"),
    "scheduled ones are not owed": ('"scheduled" if due and name not in states else None', "None"),
    "delivered ones are owed": ("    states |= dict.fromkeys(_names(delivered))\n", ""),
    "rejected ones are owed": ('None if name[:2] in taken else "pending"', '"pending"'),
    "rejected ops are not known": ("found & ~_mask(of_table)", "found"),
}
#: likewise in erasure.py
_RUNS: dict[str, tuple[str, str]] = {
    "what is owed is erased": ("owing = self._owed(self.who(halves))", "owing: list[dict[str, Any]] = []"),
    "decisions of a batch under way": ('of_whole_batches(decisions, "decided_at", batches)', "decisions"),
    "as of the last batch's time": (
        'of_whole_batches(decisions, "decided_at", batches)',
        'decisions.filter(pc.less_equal(decisions.column("decided_at"), pc.max(batches.column("batch_time"))))',
    ),
    "deliveries of a batch under way": (
        'of_whole_batches(deliveries, "delivered_at", batches)',
        "deliveries",
    ),
    "discarded ones stay": ('"dead_letters", "discarded", "rejected"', '"dead_letters", "rejected"'),
    "rejected ones stay": ('"discarded", "rejected", "half"', '"discarded", "half"'),
}
_AS_IT_IS = ("class Erasure:", "class Erasure:")
ERASURES = (*_RULES, *_RUNS)


def broken_erasure(fault: str) -> Any:
    """An erasure with this fault."""
    if fault in _RUNS:
        return broken_module(erasure, *_RUNS[fault])
    with patch.dict("sys.modules", {erasure_selection.__name__: broken_module(erasure_selection, *_RULES[fault])}):
        return broken_module(erasure, *_AS_IT_IS)
