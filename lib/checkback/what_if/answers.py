"""What the check query brought for each check of a segment, and what it would have brought for one never asked for.

Pure. The answer of a check that was not asked for is that of the check of the same transaction that was asked for at
the nearest time. Without any: what the producer's own op says if it was made by then, else UNKNOWN.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records.records import Kind, Source
from checkback.what_if.recorded_segment import place
from checkback.what_if.records import Answered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkback.reconcile.records.records import Records
    from checkback.reconcile.segment import Rules
    from checkback.what_if.recorded_segment import Recorded
    from checkback.what_if.timeline import Timeline


@dataclass
class _Check:
    """A recorded check. turn, asked: of its batch, ms. verdict: of its op COMMIT or ROLLBACK, the kind and when (ms).

    outcome: when its op DELIVERED landed, or would have (ms). delivered: an endpoint received it, by its answer; an op
    DELIVERED tells so only where checks count when received (rule 9), else that it was sent. sent: not skipped.
    """

    turn: int
    asked: int
    verdict: tuple[int, int] | None = None
    outcome: int | None = None
    delivered: bool = False
    sent: bool = False


class Answers:
    """The answers of one segment."""

    def __init__(self, recorded: Recorded, timeline: Timeline) -> None:
        """``timeline``: with the rules that were in force."""
        self._named = recorded.halves[["offset", "group", "transaction"]].tolist()
        self._checks: dict[int, list[_Check]] = defaultdict(list)
        numbered: dict[tuple[int, int], list[_Check]] = defaultdict(list)
        requests = recorded.requests
        for at, request in _placed(recorded, requests[np.argsort(requests["turn"], kind="stable")]):
            check = _Check(int(request["turn"]), int(timeline.times[request["turn"]]))
            self._checks[at].append(check)
            numbered[at, int(request["number"])].append(check)

        def asked(rows: Records, number: str, time: str) -> Iterator[tuple[_Check, Any]]:
            """Each row with the check that it is about: the last of its number asked for by then, else the first."""
            for at, row in _placed(recorded, rows[np.argsort(rows[time], kind="stable")]):
                if checks := numbered.get((at, int(row[number]))):
                    before = [check for check in checks if check.asked <= row[time]]
                    yield (before or checks[:1])[-1], row

        for check, answer in asked(recorded.answers, "number", "at"):
            if answer["kind"] != Answered.SKIPPED:
                check.sent = True
            check.delivered |= bool(answer["source"])
            check.outcome = int(answer["at"]) if check.outcome is None else check.outcome
        for check, op in asked(recorded.verdicts, "check", "born"):
            landed = int(op["store"]) // 1000
            check.sent = True
            if op["kind"] == Kind.DELIVERED:
                check.outcome = landed
                check.delivered |= not timeline.rules_at(check.turn).count_undelivered
            elif op["kind"] in (Kind.COMMIT, Kind.ROLLBACK):
                check.delivered = True
                check.verdict = check.verdict or (int(op["kind"]), landed)
        self._own = _own_ops(recorded)

    def to(self, at: int, number: int, turn: int, now: int, rules: Rules) -> tuple[Any, bool]:
        """The op that check ``number`` of transaction ``at`` brings, an EVENT or None; and if it was never asked for.

        ``turn``: the batch that asks, NEVER = a tick; ``now``: its time. ``rules``: in force then.
        """
        mine = self._checks.get(at, [])
        check = next((check for check in mine if check.turn == turn), None)
        assumed = check is None
        if check is None:
            check = min((one for one in mine if one.sent), key=lambda one: abs(one.asked - now), default=None)
        if check is None:
            own = self._own.get(at)
            if own is not None and own[1] <= now:
                return self._op(at, own[0], -1, now), True
            return self._op(at, Kind.DELIVERED, number, now) if _counts(number, True, True, rules) else None, True
        later = now - check.asked
        if check.verdict is not None:
            return self._op(at, check.verdict[0], -1, check.verdict[1] + later), assumed
        if _counts(number, check.sent, check.delivered, rules) and check.outcome is not None:
            return self._op(at, Kind.DELIVERED, number, check.outcome + later), assumed
        return None, assumed

    def _op(self, at: int, kind: int, number: int, landed: int) -> tuple[Any, ...]:
        offset, group, transaction = self._named[at]
        return (offset, int(kind), int(Source.CHECK), landed, landed * 1000, -1, group, transaction, 0, number)


def _placed(recorded: Recorded, rows: Records) -> Iterator[tuple[int, Any]]:
    at, _ = place(recorded.halves, rows["offset"])
    return zip(at.tolist(), rows, strict=True)


def _counts(number: int, sent: bool, delivered: bool, rules: Rules) -> bool:
    """Is there an op DELIVERED for a check that decides nothing? As `check.query.op_rows`."""
    return sent and number >= rules.check_max if rules.count_undelivered else delivered


def _own_ops(recorded: Recorded) -> dict[int, tuple[int, int]]:
    """By transaction the producer's first op: its kind, and when it was made (ms)."""
    events = recorded.events
    mine = events[(events["source"] == Source.PRODUCER) & np.isin(events["kind"], (Kind.COMMIT, Kind.ROLLBACK))]
    at, known = place(recorded.halves, mine["offset"])
    mine, at = mine[known], at[known]
    fits = mine["group"] == recorded.halves["group"][at] if len(mine) else np.zeros(0, bool)
    mine, at = mine[fits], at[fits]
    order = np.argsort(-mine["store"], kind="stable")
    return {int(at[row]): (int(mine["kind"][row]), int(mine["born"][row])) for row in order}
