"""Makes ACTION records from the records that the actions are about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records.records import ACTION, Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from checkback.reconcile.records.records import Records


def actions_on(action: Action, about: Records, detail: int | NDArray[Any] = 0) -> Records:
    """An action on each of these records, which have offset, store, group and transaction."""
    rows = np.zeros(len(about), ACTION)
    rows["action"] = action
    rows["detail"] = detail
    for name in ("offset", "store", "group", "transaction"):
        rows[name] = about[name]
    return rows


def actions_on_pending(action: Action, pending: Records, detail: int | NDArray[Any]) -> Records:
    """An action on each of these PENDING records."""
    rows = actions_on(action, pending, detail)
    rows["check_times"] = pending["check_times"]
    rows["repeated"] = pending["repeated"]
    return rows


def actions_on_scheduled(action: Action, scheduled: Records, detail: int | NDArray[Any] = 0) -> Records:
    """An action on each of these SCHEDULED records."""
    rows = actions_on(action, scheduled, detail)
    for name in ("check_times", "repeated", "due"):
        rows[name] = scheduled[name]
    return rows
