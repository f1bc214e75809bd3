"""What the tables say, as Spark DataFrames: for notebooks, the command line and dashboards (docs/inspect.md).

All functions take ``(spark, settings, as_of=None)`` and bring no rows to the driver. Spark is imported when one is
first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checkback.inspect.groups import stuck_groups
    from checkback.inspect.minutes import check_outcomes, decision_latency, decisions_by_minute, pending_over_time
    from checkback.inspect.stored import state_differences, state_pending
    from checkback.inspect.trail import lineage
    from checkback.inspect.undecided import pending

__all__ = [
    "check_outcomes",
    "decision_latency",
    "decisions_by_minute",
    "lineage",
    "pending",
    "pending_over_time",
    "state_differences",
    "state_pending",
    "stuck_groups",
]

_MODULES = {
    "check_outcomes": "minutes",
    "decision_latency": "minutes",
    "decisions_by_minute": "minutes",
    "lineage": "trail",
    "pending": "undecided",
    "pending_over_time": "minutes",
    "state_differences": "stored",
    "state_pending": "stored",
    "stuck_groups": "groups",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
