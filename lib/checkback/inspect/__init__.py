"""What the tables say: in this process on DuckDB, or as Spark DataFrames for notebooks (docs/inspect.md).

Functions that return DataFrames take ``(spark, settings, as_of=None)`` and collect no rows to the driver. For notebooks
there are also `notebook_settings`, `table`, `worst_outage` and the figures of `checkback.inspect.plots`. Spark is
imported lazily, on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checkback.inspect.breaker_states import breakers
    from checkback.inspect.discarded_messages import discarded
    from checkback.inspect.notebook import busiest, notebook_settings, table
    from checkback.inspect.outage import damage, outages, what_endpoints_said, worst_outage
    from checkback.inspect.pending_transactions import pending
    from checkback.inspect.scheduled_messages import scheduled
    from checkback.inspect.state_store import state_differences, state_pending
    from checkback.inspect.status.groups import stuck_groups
    from checkback.inspect.timeline import (
        check_outcomes,
        decision_latency,
        decisions_by_minute,
        pending_over_time,
        pick_every,
    )
    from checkback.inspect.transaction_lineage import lineage
    from checkback.inspect.unpublished_messages import unpublished
    from checkback.inspect.versions.batch_snapshot import snapshot

__all__ = [
    "breakers",
    "busiest",
    "check_outcomes",
    "damage",
    "decision_latency",
    "decisions_by_minute",
    "discarded",
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
    "stuck_groups",
    "table",
    "unpublished",
    "what_endpoints_said",
    "worst_outage",
]

_MODULES = {
    "breakers": "breaker_states",
    "busiest": "notebook",
    "check_outcomes": "timeline",
    "damage": "outage",
    "decision_latency": "timeline",
    "decisions_by_minute": "timeline",
    "discarded": "discarded_messages",
    "lineage": "transaction_lineage",
    "notebook_settings": "notebook",
    "outages": "outage",
    "pending": "pending_transactions",
    "pending_over_time": "timeline",
    "pick_every": "timeline",
    "scheduled": "scheduled_messages",
    "snapshot": "versions.batch_snapshot",
    "state_differences": "state_store",
    "state_pending": "state_store",
    "stuck_groups": "status.groups",
    "table": "notebook",
    "unpublished": "unpublished_messages",
    "what_endpoints_said": "outage",
    "worst_outage": "outage",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
