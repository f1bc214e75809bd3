"""Makes ACTION records from the records that the actions are about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records.records import ACTION, Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from checkback.reconcile.records.records import Records


#: maximum number of groups that a segment reports
MOST_GROUPS = 32


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


def pending_by_group(pending: Records) -> Records:
    """PENDING actions: how many of these PENDING records each group has, of the MOST_GROUPS that have most."""
    groups, which, counts = np.unique(pending["group"], return_inverse=True, return_counts=True)
    oldest = np.full(len(groups), np.iinfo(np.int64).max)
    np.minimum.at(oldest, which, pending["born"])
    most = np.argsort(-counts, kind="stable")[:MOST_GROUPS]
    rows = np.zeros(len(most), ACTION)
    rows["action"] = Action.PENDING
    rows["group"], rows["check_times"], rows["due"] = groups[most], counts[most], oldest[most]
    return rows


def actions_on_scheduled(action: Action, scheduled: Records, detail: int | NDArray[Any] = 0) -> Records:
    """An action on each of these SCHEDULED records."""
    rows = actions_on(action, scheduled, detail)
    for name in ("check_times", "repeated", "due"):
        rows[name] = scheduled[name]
    return rows
