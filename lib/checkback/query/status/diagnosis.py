"""Why a producer group's transactions are pending, in one sentence, and whether it is stuck. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from checkback.query.check_results import hint, no_answer
from checkback.storage.timestamps import time_of
from checkback.storage.valid_texts import NOT_TRIED, NOT_UTF8

_NONE_YET = "no batch of reconcile has run yet"


@dataclass(frozen=True)
class Group:
    """What is known of a group with pending transactions. Times are ms since the epoch; None = never, or unknown.

    ``overdue``: pending beyond their immunity, without an op; ``op_waiting``: those whose op has landed; ``young``: all
    others. ``due_since``: since when reconcile ought to have checked, discarded or decided. ``endpoints``: number in
    the settings; ``signed``: they have a secret. ``said``: the producer's error with its newest UNKNOWN. Outcomes are
    those of its last check_interval of checking, as fractions of 1. ``error``: of the last attempted check without an
    answer; ``held_back``: why the last one was not attempted. ``silent_since``: first NO_ANSWER after the last answer;
    ``undecided_since``: first UNKNOWN after the last COMMIT or ROLLBACK.
    """

    overdue: int = 1
    op_waiting: int = 0
    young: int = 0
    endpoints: int = 0
    signed: bool = True
    requested: bool = False
    outcomes: int = 0
    decided: float = 0.0
    unknown: float = 0.0
    said: str | None = None
    no_answer: float = 0.0
    skipped: float = 0.0
    any_endpoint: bool = True
    error: str | None = None
    held_back: str | None = None
    skipped_error: str | None = None
    silent_since: int | None = None
    undecided_since: int | None = None
    due_since: int | None = None
    name: str | None = None


@dataclass(frozen=True)
class Reconcile:
    """What is known of reconcile.

    ``last_batch``: when its last batch began (ms); None = not known. ``none_yet``: no batch has begun. ``quiet``: how
    long something may be due without a batch before reconcile counts as stopped. While nothing is due, no batch is
    expected. ``busy``: it is processing that batch. ``next_run_by``: of a scheduled reconcile when its next run is
    overdue (ms); None = it runs on.
    """

    last_batch: int | None = None
    quiet: timedelta = timedelta(minutes=1)
    busy: bool = False
    none_yet: bool = False
    next_run_by: int | None = None

    def stands(self, due_since: int | None, now: int) -> bool:
        """Whether it is stopped or hangs."""
        if self.last_batch is None or due_since is None:
            return False
        by = max(self.last_batch, due_since) + self.quiet // timedelta(milliseconds=1)
        return now > max(by, self.next_run_by or by)

    @property
    def decides(self) -> str:
        """What will decide what is due."""
        if self.none_yet:
            return _NONE_YET
        return "the next batch decides" if self.next_run_by is None else "the next scheduled run decides"


def diagnose(group: Group, reconcile: Reconcile, now: int) -> str:
    """Why the group's transactions are pending; ``now``: ms."""
    said = _of_group(group, reconcile, now)
    if reconcile.stands(group.due_since, now) and reconcile.last_batch is not None:
        at = clock(reconcile.last_batch, now)
        what = f"a batch is under way since {at}" if reconcile.busy else f"reconcile does not run: last batch {at}"
        return f"{what}; before that: {said}"
    return said


def is_stuck(group: Group, reconcile: Reconcile, now: int) -> bool:
    """Whether somebody has to look: what is overdue ends neither with the next batch nor with its next check."""
    if not group.overdue and not group.op_waiting:
        return False
    if reconcile.none_yet or reconcile.stands(group.due_since, now):
        return True
    return bool(group.overdue) and not (group.outcomes and group.decided >= 1)


def clock(ms: int, now: int) -> str:
    """A time for display: 14:05, with the date unless today; UTC."""
    at, today = time_of(ms), time_of(now)
    return f"{at:%H:%M}" if at.date() == today.date() else f"{at:%Y-%m-%d %H:%M}"


def _of_group(group: Group, reconcile: Reconcile, now: int) -> str:
    if not group.overdue:
        return _of_young(group, reconcile)
    if group.outcomes:
        return _of_outcomes(group, now)
    if group.requested:
        return "asked, no outcome yet: the check query is busy or does not run"
    return _never_asked(group, reconcile)


def _of_young(group: Group, reconcile: Reconcile) -> str:
    if not group.op_waiting:
        return "young: no check is due yet"
    if not group.young:
        return f"ops have landed, not yet read by reconcile: {reconcile.decides}"
    return f"young: no check is due yet; the op of {group.op_waiting} has landed: {reconcile.decides}"


def _never_asked(group: Group, reconcile: Reconcile) -> str:
    if reconcile.none_yet:
        return f"checks are due: {_NONE_YET}"
    if not group.endpoints:
        return "no endpoint is set for the group in these settings"
    return (
        f"checks are due: {'reconcile is behind' if reconcile.next_run_by is None else 'the next scheduled run asks'}"
    )


def _of_outcomes(group: Group, now: int) -> str:
    if group.no_answer + group.skipped >= 1:
        if group.skipped >= 1:
            return f"checks are skipped: {group.skipped_error or 'no reason given'}"
        if not group.any_endpoint:
            why = NOT_UTF8 if group.error == NOT_UTF8 else "no endpoint is set for the group"
            return f"{why}{_since(group.silent_since, now)}"
        said = no_answer(_error(group))
        return f"{said}{_since(group.silent_since, now)}{_breaker(group)}{hint(group.error, group.name, group.signed)}"
    if group.unknown >= 1:
        said = f": {group.said}" if group.said else ""
        return f"answers UNKNOWN{said}{_since(group.undecided_since, now)}"
    if group.decided >= 1:
        return "answers: what is left waits for its next check"
    parts = [
        _share(group.decided, "decided"),
        _share(group.unknown, "UNKNOWN"),
        _share(group.no_answer, f"no answer ({_error(group) or 'no reason given'})"),
        _share(group.skipped, "skipped"),
    ]
    return f"answers in part: {', '.join(part for part in parts if part)}{_breaker(group)}"


def _error(group: Group) -> str | None:
    return group.error or (group.held_back and group.held_back.removeprefix(NOT_TRIED))


def _breaker(group: Group) -> str:
    return "; breaker open" if group.held_back else ""


def _since(ms: int | None, now: int) -> str:
    return "" if ms is None else f", since {clock(ms, now)}"


def _share(share: float, what: str) -> str:
    return f"{max(1, round(share * 100))} % {what}" if share else ""
