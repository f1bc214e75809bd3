"""What the check query brought for each check of a segment, and what it would have brought for one never asked for.

Pure. The answer of a check that was not asked for is that of the check of the same transaction that was asked for at
the nearest time. Without any: what the producer's own op says if it was made by then, else UNKNOWN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from checkback.reconcile.records.records import Kind, Source
from checkback.reconcile.records.sorted_records import first_of_each
from checkback.what_if.estimated_reads import asked_by, first_that_decides, place
from checkback.what_if.records import NEVER, Answered
from checkback.what_if.silent_checks import Silence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from checkback.reconcile.records.records import Bits, Records
    from checkback.reconcile.segment import Rules
    from checkback.what_if.recorded_segment import Recorded
    from checkback.what_if.timeline import Timeline

#: What came of one recorded check. turn, asked: of its batch, ms. verdict: a Kind, 0 = none; landed, read: of its op
#: (ms, turn). receipt: when its op DELIVERED landed, or would have, ms; NEVER = no outcome; receipt_read: the turn that
#: read it, NEVER = there is none. *_restored: the rebuild before that turn did. delivered: an endpoint received it, by
#: its answer; an op DELIVERED tells so only where checks count when received (rule 9), else that it was sent. sent: not
#: skipped.
_CHECK = np.dtype(
    [
        ("at", "<i8"),
        ("number", "<i4"),
        ("turn", "<i8"),
        ("asked", "<i8"),
        ("verdict", "u1"),
        ("landed", "<i8"),
        ("read", "<i8"),
        ("receipt", "<i8"),
        ("receipt_read", "<i8"),
        ("delivered", "?"),
        ("sent", "?"),
        ("read_restored", "?"),
        ("receipt_restored", "?"),
    ]
)

#: By a check's index its further ops, of a query `check` that had died: kind, landed (ms), read (turn), restored.
_Again: TypeAlias = dict[int, list[tuple[int, int, int, bool]]]


class _Check(NamedTuple):
    """A _CHECK as Python values: a segment's are looked at one by one."""

    at: int
    number: int
    turn: int
    asked: int
    verdict: int
    landed: int
    read: int
    receipt: int
    receipt_read: int
    delivered: bool
    sent: bool
    read_restored: bool
    receipt_restored: bool


class Answer(NamedTuple):
    """An op that a check brings. ``landed``: ms; ``turn``: the batch that read it, None = it is not recorded.

    ``restored``: the rebuild before that batch did.
    """

    event: tuple[Any, ...]
    landed: int
    turn: int | None
    restored: bool = False


class Answers:
    """The answers of one segment."""

    def __init__(self, recorded: Recorded, timeline: Timeline) -> None:
        """``timeline``: with the rules that were in force."""
        self._named = recorded.halves[["offset", "group", "transaction"]].tolist()
        self._timeline = timeline
        checks, self._again = _checks(recorded, timeline)
        self._checks = [_Check(*check) for check in checks.tolist()]
        self._starts: list[int] = np.searchsorted(checks["at"], np.arange(len(recorded.halves) + 1)).tolist()
        self._own = _own_ops(recorded)

    def to(self, at: int, number: int, turn: int, now: int, rules: Rules) -> tuple[list[Answer], bool]:
        """The ops that check ``number`` of transaction ``at`` brings; and whether it was never asked for.

        ``turn``: the batch that asks, NEVER = a tick; ``now``: its time. ``rules``: in force then.
        """
        mine = self._checks[self._starts[at] : self._starts[at + 1]]
        same = next((where for where, check in enumerate(mine, self._starts[at]) if check.turn == turn < NEVER), None)
        if same is not None:
            found = self._recorded(at, self._checks[same], number, rules)
            return found + self._repeats(same, found), False
        nearest = min((check for check in mine if check.sent), key=lambda check: abs(check.asked - now), default=None)
        if nearest is not None:
            return self._assumed(at, nearest, number, now - nearest.asked, rules), True
        own = self._own.get(at)
        if own is not None and own[1] <= now:
            return [Answer(self._event(at, own[0], -1, now, now), now, None)], True
        if _counts(number, True, True, rules):
            return [Answer(self._event(at, Kind.DELIVERED, number, now, now), now, None)], True
        return [], True

    def silence(self, at: int, now: int, rules: Rules) -> Silence:
        """Until when the checks of ticks from ``now`` on, after all recorded ones, bring nothing; as `to`."""
        mine = [check for check in self._checks[self._starts[at] : self._starts[at + 1]] if check.sent]
        nearest = min(mine, key=lambda check: abs(check.asked - now), default=None)
        if any(check.asked > now for check in mine) or (nearest is not None and nearest.verdict):
            return Silence(0, 0)
        own, until = self._own.get(at), NEVER
        if nearest is None and own is not None:
            until = own[1]
        delivered = nearest is None or nearest.delivered
        if nearest is not None and nearest.receipt == NEVER:
            return Silence(NEVER, until)
        if not rules.count_undelivered:
            return Silence(0 if delivered else NEVER, until)
        return Silence(rules.check_max, until)

    def _recorded(self, at: int, check: _Check, number: int, rules: Rules) -> list[Answer]:
        found = []
        if check.verdict:
            landed = check.landed
            event = self._event(at, check.verdict, -1, landed, landed)
            found.append(Answer(event, landed, check.read, check.read_restored))
        there = check.receipt_read < NEVER and number == check.number
        then = _counts(check.number, check.sent, check.delivered, self._timeline.rules_at(check.turn))
        now = _counts(number, check.sent, check.delivered, rules)
        if (there if now == then else now) and (there or not check.verdict) and check.receipt < NEVER:
            landed, turn = check.receipt, check.receipt_read if there else None
            event = self._event(at, Kind.DELIVERED, number, landed, landed)
            found.append(Answer(event, landed, turn, check.receipt_restored))
        return found

    def _assumed(self, at: int, check: _Check, number: int, later: int, rules: Rules) -> list[Answer]:
        if check.verdict:
            landed = check.landed + later
            return [Answer(self._event(at, check.verdict, -1, landed, landed), landed, None)]
        if _counts(number, True, check.delivered, rules) and check.receipt < NEVER:
            landed = check.receipt + later
            return [Answer(self._event(at, Kind.DELIVERED, number, landed, landed), landed, None)]
        return []

    def _repeats(self, check: int, answers: list[Answer]) -> list[Answer]:
        """The further ops of a check that brings these answers: of a DELIVERED only if it does."""
        received = next((answer.event for answer in answers if answer.event[1] == Kind.DELIVERED), None)
        found = []
        for kind, landed, read, restored in self._again.get(check, ()):
            number = -1 if kind != Kind.DELIVERED else received[-1] if received is not None else None
            if number is not None:
                event = self._event(self._checks[check].at, kind, number, landed, landed)
                found.append(Answer(event, landed, read, restored))
        return found

    def _event(self, at: int, kind: int, number: int, born: int, landed: int) -> tuple[Any, ...]:
        offset, group, transaction = self._named[at]
        return (offset, int(kind), int(Source.CHECK), born, landed * 1000, -1, group, transaction, 0, number)


def _counts(number: int, sent: bool, delivered: bool, rules: Rules) -> bool:
    """Is there an op DELIVERED for a check that decides nothing? As `check.query.op_rows`."""
    return bool(sent and number >= rules.check_max) if rules.count_undelivered else bool(delivered)


def _own_ops(recorded: Recorded) -> dict[int, tuple[int, int]]:
    """By transaction the producer's first op: its kind, and when it was made (ms)."""
    events = recorded.events
    mine = events[(events["source"] == Source.PRODUCER) & np.isin(events["kind"], (Kind.COMMIT, Kind.ROLLBACK))]
    at, known = place(recorded.halves, mine["offset"])
    mine, at = mine[known], at[known]
    fits = (mine["group"] == recorded.halves["group"][at]) if len(mine) else np.zeros(0, bool)
    mine, at = mine[fits], at[fits]
    order = np.argsort(-mine["store"], kind="stable")
    return {int(at[row]): (int(mine["kind"][row]), int(mine["born"][row])) for row in order}


def _checks(recorded: Recorded, timeline: Timeline) -> tuple[Records, _Again]:
    """_CHECK records by transaction and turn; and what a query `check` that had died said again."""
    requests = recorded.requests
    again: _Again = {}
    checks = np.zeros(len(requests), _CHECK)
    checks["at"], _ = place(recorded.halves, requests["offset"])
    checks["number"], checks["turn"] = requests["number"], requests["turn"]
    checks["asked"] = timeline.times[requests["turn"]]
    checks["read"] = checks["receipt"] = checks["receipt_read"] = NEVER
    checks = checks[np.lexsort((checks["turn"], checks["at"]))]
    if not len(checks):
        return checks, again
    _add_answers(checks, recorded)
    _add_verdicts(checks, recorded, again)
    _add_receipts(checks, recorded, timeline, again)
    return checks, again


def _add_answers(checks: Records, recorded: Recorded) -> None:
    answers = recorded.answers
    of = _asked_by(checks, recorded, answers, answers["number"], answers["at"])
    skipped = answers["kind"] == Answered.SKIPPED
    order = np.lexsort((answers["at"], skipped))[::-1]  # the last assignment wins: sent before skipped, first first
    order = order[of[order] >= 0]
    checks["sent"][of[order]] = ~skipped[order]
    np.logical_or.at(checks["delivered"], of[order], answers["source"][order] > 0)
    checks["receipt"][of[order]] = answers["at"][order]


def _add_verdicts(checks: Records, recorded: Recorded, again: _Again) -> None:
    ops, ended = recorded.verdicts, recorded.outcomes
    at, _ = place(recorded.halves, ops["offset"])
    chosen = first_that_decides(ops, at, ops["turn"], ended[at]) if len(ops) else np.zeros(0, bool)
    ops, of = _first_ops(checks, recorded, ops, ~chosen, again)
    checks["verdict"][of], checks["read"][of], checks["landed"][of] = ops["kind"], ops["turn"], ops["store"] // 1000
    checks["read_restored"][of] = ops["reason"] > 0
    for name in ("sent", "delivered"):
        checks[name][of] = True


def _add_receipts(checks: Records, recorded: Recorded, timeline: Timeline, again: _Again) -> None:
    ops = recorded.receipts
    ops, of = _first_ops(checks, recorded, ops, np.zeros(len(ops), bool), again)
    checks["receipt"][of], checks["receipt_read"][of] = ops["store"] // 1000, ops["turn"]
    checks["receipt_restored"][of], checks["sent"][of] = ops["reason"] > 0, True
    tells = np.array([not rules.count_undelivered for rules in timeline.rules])[timeline.which[checks["turn"][of]]]
    checks["delivered"][of[tells]] = True


def _first_ops(
    checks: Records, recorded: Recorded, ops: Records, late: Bits, again: _Again
) -> tuple[Records, NDArray[Any]]:
    """Of each check the first of these ops, those last that are ``late``; and of which check. The others: ``again``."""
    of = _asked_by(checks, recorded, ops, ops["check"], ops["born"])
    order = np.lexsort((ops["store"], late, of))
    order = order[of[order] >= 0]
    ops, of = ops[order], of[order]
    first = first_of_each(of)
    for check, op in zip(of[~first].tolist(), ops[~first], strict=True):
        repeated = int(op["kind"]), int(op["store"]) // 1000, int(op["turn"]), bool(op["reason"])
        again.setdefault(check, []).append(repeated)
    return ops[first], of[first]


def _asked_by(
    checks: Records, recorded: Recorded, rows: Records, number: NDArray[Any], at: NDArray[Any]
) -> NDArray[Any]:
    which, _ = place(recorded.halves, rows["offset"])
    return asked_by((checks["at"], checks["number"], checks["asked"]), (which, number, at))
