"""What the tables say: `answers.Answers` in this process on DuckDB, `frames` as Spark DataFrames (docs/inspect.md).

For notebooks there are also `notebook_settings`, `table`, `worst_outage` and the figures of `checkback.query.plots`.
Spark is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checkback.query.frames import (
        breakers,
        check_outcomes,
        decided,
        decision_latency,
        decisions,
        discarded,
        groups,
        lineage,
        outages,
        pending,
        pending_over_time,
        pick_every,
        scheduled,
        topics,
        transactions,
        unpublished,
    )
    from checkback.query.notebook import busiest, notebook_settings, table
    from checkback.query.outage import damage, what_endpoints_said, worst_outage
    from checkback.query.state_store import state_differences, state_pending
    from checkback.query.versions.batch_snapshot import snapshot

__all__ = [
    "breakers",
    "busiest",
    "check_outcomes",
    "damage",
    "decided",
    "decision_latency",
    "decisions",
    "discarded",
    "groups",
    "lineage",
    "notebook_settings",
    "outages",
    "pending",
    "pending_over_time",
    "pick_every",
    "scheduled",
    "snapshot",
    "state_differences",
    "state_pending",
    "table",
    "topics",
    "transactions",
    "unpublished",
    "what_endpoints_said",
    "worst_outage",
]

#: where those are that are not in `frames`
_MODULES = {
    **dict.fromkeys(("busiest", "notebook_settings", "table"), "notebook"),
    **dict.fromkeys(("damage", "what_endpoints_said", "worst_outage"), "outage"),
    **dict.fromkeys(("state_differences", "state_pending"), "state_store"),
    "snapshot": "versions.batch_snapshot",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'frames')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
