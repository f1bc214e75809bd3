"""Checks that bring nothing, one after the other, in a segment after the last batch: how many can be passed over. Pure.

While no answer comes, nothing lands, and nothing is discarded, each half message is checked again after
`transaction.check_interval`, in a tick `due_lag` later: for weeks, if checks count only when they are received. Without
a jitter these ticks need not be played one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from checkback.what_if.records import NEVER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from checkback.reconcile.records.records import Records
    from checkback.reconcile.segment import Rules


class Silence(NamedTuple):
    """A check of a transaction brings nothing if its number is below ``number``, and its time (ms) before ``until``."""

    number: int
    until: int


def silent_checks(
    pending: Records, silence: NDArray[np.int64], now: int, lag: int, landing: int, rules: Rules
) -> NDArray[np.int64]:
    """Of each pending half message how many of its next checks bring nothing, and come before anything else happens.

    ``silence``: of each number and until, as Silence. ``landing``: when something lands next (ms).
    """
    nothing = np.zeros(len(pending), np.int64)
    due, period = np.unique(pending["due"]), rules.check_interval + lag
    apart = np.append(np.diff(due), due[0] + period - due[-1])
    if rules.check_jitter or due[0] + lag <= now or (apart <= lag).any():
        return nothing  # which of them one tick checks changes yet
    number = pending["check_times"].astype(np.int64) + 1
    counted = rules.count_undelivered & (number < rules.check_max)
    silent = np.where(number < silence[:, 0], NEVER, 0)
    silent = np.where(counted, np.minimum(silence[:, 0], rules.check_max) - number, silent)
    silent[number > rules.check_max] = 0  # the next one is discarded (rule 6)
    # Rule 7: the first check that is a discard instead.
    spare = rules.reserved - (pending["due"] - rules.check_interval - pending["store"] // 1000)
    old = np.maximum(spare // period + 1, rules.enough - pending["asked"])
    first = pending["due"] + lag
    end = min(
        int((first + np.clip(np.minimum(silent, old), 0, None) * period).min()), landing, int(silence[:, 1].min())
    )
    found: NDArray[Any] = np.maximum(-((first - end) // period), 0)
    return found
