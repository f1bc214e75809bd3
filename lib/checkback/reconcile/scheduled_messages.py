"""Scheduled messages: committed, and published at their time unless they are cancelled before (rules 10 and 11).

Pure, as `segment`, which calls these functions. RocketMQ drops the delay of a transactional message
(TransactionalMessageBridge.parseHalfMessageInner); the levels and timers are those of ScheduleMessageService and
TimerMessageStore.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records.actions import actions_on, actions_on_pending, actions_on_scheduled
from checkback.reconcile.records.segment_records import (
    NOT_STATED,
    SCHEDULED,
    Action,
    Reason,
    find,
    first_of_each,
    only,
    sort,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from checkback.reconcile.records.segment_records import Records


def commit(
    scheduled: Records,
    rows: Records,
    source: int | NDArray[Any],
    now: int,
    actions: list[Records],
    cancels: Records,
) -> Records:
    """Commit these PENDING records: COMMIT, or SCHEDULE if their time is after ``now``. Returns what is scheduled.

    ``source``: whose COMMIT it was, for each of them. A delay counts from ``now``, the time of the decision.
    ``cancels``: EARLY records that wait for the next batch; what they may cancel is scheduled even if it is due.
    """
    committed = actions_on_pending(Action.COMMIT, rows, source)
    if rows["delay"].any():
        due = np.where(rows["delay"] < 0, now - rows["delay"], rows["delay"])
        later = (due > now) | ((rows["delay"] != 0) & np.isin(rows["offset"], cancels["offset"]))
        committed["action"][later], committed["due"][later] = Action.SCHEDULE, due[later]
        more = np.zeros(int(later.sum()), SCHEDULED)
        for name in ("offset", "store", "group", "transaction", "repeated"):
            more[name] = rows[name][later]
        more["check_times"], more["due"] = rows["check_times"][later], due[later]
        scheduled = sort(np.concatenate([scheduled, more]), "offset")
    actions.append(committed)
    return scheduled


def cancel(scheduled: Records, ops: Records, actions: list[Records]) -> Records:
    """Apply these ops CANCEL (EARLY records, sorted by offset). Returns what is still scheduled."""
    at, known = find(scheduled["offset"], ops["offset"])
    found, at = only(ops, known), only(at, known)
    same_group = found["group"] == scheduled["group"][at]
    same_id = (found["transaction"] == scheduled["transaction"][at]) | (found["transaction"] == NOT_STATED)
    right = same_group & same_id
    first = np.zeros(len(found), bool)
    first[np.flatnonzero(right)[first_of_each(found["offset"][right])]] = True
    for refused, reason in (
        (ops[~known], Reason.NOT_SCHEDULED),
        (found[right & ~first], Reason.NOT_SCHEDULED),
        (found[~same_group], Reason.WRONG_GROUP),
        (found[same_group & ~same_id], Reason.WRONG_TRANSACTION_ID),
    ):
        if len(refused):
            actions.append(actions_on(Action.REJECT_OP, refused, reason))
    actions.append(actions_on_scheduled(Action.CANCEL, scheduled[at[first]], found["source"][first]))
    left = np.ones(len(scheduled), bool)
    left[at[first]] = False
    return scheduled[left]


def deliver(scheduled: Records, now: int, actions: list[Records], cancels: Records) -> Records:
    """Publish what is due, unless it is what ``cancels`` may cancel in the next batch. Returns what is scheduled."""
    due = scheduled["due"] <= now
    if len(cancels):
        due &= ~np.isin(scheduled["offset"], cancels["offset"])
    if not due.any():
        return scheduled
    actions.append(actions_on_scheduled(Action.DELIVER, scheduled[due]))
    return scheduled[~due]
