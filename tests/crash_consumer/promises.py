"""What a group promises, judged by the journals of a round and by its tables at the end. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crash_consumer.kinds import MOST, Kind, poisoned, tag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from crash_consumer.journals import Call, Fate, Place

_S = 1_000_000_000
#: A call may begin so long after a process was stopped, as it had been allowed before; and a member that is taken for
#: dead learns of it so long after (ns).
_BEFORE = 6 * _S
#: how long after a success its process may be killed, so that it is repeated: until the position is kept (ns)
_KEPT = 10 * _S


@dataclass
class Verdict:
    """Faults, and figures."""

    messages: int = 0
    calls: int = 0
    lost: list[int] = field(default_factory=list)
    repeated: int = 0
    unexplained: int = 0
    doubled_dead_letters: list[int] = field(default_factory=list)
    doubled_effects: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Is every promise kept?"""
        return not (self.lost or self.doubled_dead_letters or self.doubled_effects or self.faults)


@dataclass(frozen=True)
class Round:
    """All that was written down. ``dead``: offsets in `dead_letters`; ``applied``: effects, by offset."""

    kind: Kind
    published: Mapping[int, Place]
    calls: Sequence[Call]
    fates: Mapping[str, Fate]
    dead: Counter[int]
    applied: Counter[int] | None = None


def judge(a_round: Round) -> Verdict:
    """All promises."""
    verdict = Verdict(len(a_round.published), len(a_round.calls))
    _at_least_once(a_round, verdict)
    _dead_letters(a_round, verdict)
    _repeats(a_round, verdict)
    _reconsume_times(a_round, verdict)
    _one_at_a_time(a_round, verdict)
    _complete_batches(a_round, verdict)
    if a_round.kind.orderly:
        _in_order(a_round, verdict)
    if a_round.applied is not None:
        _exactly_once(a_round, a_round.applied, verdict)
    return verdict


def wanted(kind: Kind, published: Mapping[int, Place]) -> set[int]:
    """The messages that the group subscribes."""
    return {offset for offset, place in published.items() if kind.wants(place.topic, tag(offset))}


def _at_least_once(a_round: Round, verdict: Verdict) -> None:
    """(1) Each message that is subscribed is consumed, or given up; nothing else is."""
    done = {call.offset for call in a_round.calls if call.succeeded} | set(a_round.dead)
    subscribed = wanted(a_round.kind, a_round.published)
    verdict.lost += sorted(subscribed - done)
    others = sorted({call.offset for call in a_round.calls} - subscribed)
    if others:
        verdict.faults.append(f"messages are consumed that are not subscribed: {others[:5]}")


def _dead_letters(a_round: Round, verdict: Verdict) -> None:
    """(3) A poisoned message is there once, and no other: those that failed in one call are tried again alone."""
    verdict.doubled_dead_letters += sorted(offset for offset, times in a_round.dead.items() if times > 1)
    poison = {offset for offset in wanted(a_round.kind, a_round.published) if poisoned(offset)}
    missing, more = sorted(poison - set(a_round.dead)), sorted(set(a_round.dead) - poison)
    if missing:
        verdict.faults.append(f"poisoned messages are not in dead_letters: {missing[:5]}")
    if more:
        verdict.faults.append(f"messages are in dead_letters that only failed for a while: {more[:5]}")


def _repeats(a_round: Round, verdict: Verdict) -> None:
    """(4) A message is consumed again only if who consumed it was killed, stopped or taken for dead soon after.

    With positions in a database a call that succeeded may be rolled back, too; and a retry that succeeded before the
    position of a former owner has come so far is forgotten when the queue is given back.
    """
    successes: dict[int, list[Call]] = {}
    for call in a_round.calls:
        if call.succeeded:
            successes.setdefault(call.offset, []).append(call)
    for offset, calls in successes.items():
        verdict.repeated += len(calls) - 1
        ended = sorted((call.end or 0, call.member, call.begin, call.reconsume_times) for call in calls)
        awake = [each for each in ended if not a_round.fates[each[1]].hindered(each[2] - _BEFORE, each[0])]
        for end, member, _, times in awake[:-1]:
            if not a_round.fates[member].disturbed(end, end + _KEPT):
                verdict.unexplained += 1
                if not (a_round.kind.exactly_once or (times and not a_round.kind.orderly)):
                    verdict.faults.append(f"{offset} is consumed again, and {member} was neither killed nor stopped")


def _reconsume_times(a_round: Round, verdict: Verdict) -> None:
    """A message that failed is consumed with one more reconsume_times, and no more after the last.

    Unless who failed was disturbed before that was kept.
    """
    failed: dict[int, Call] = {}
    for call in sorted(a_round.calls, key=lambda each: each.begin):
        before = failed.pop(call.offset, None)
        if call.end is not None and not call.succeeded:
            failed[call.offset] = call
        if before is None or before.end is None:
            continue
        if a_round.fates[before.member].disturbed(before.begin - _BEFORE, before.end + _KEPT):
            continue
        if before.reconsume_times >= MOST:
            verdict.faults.append(f"{call.offset} is consumed again by {call.member} after it was given up")
        elif call.reconsume_times != before.reconsume_times + 1:
            found = f"{call.reconsume_times} after {before.reconsume_times}"
            verdict.faults.append(f"{call.offset} has reconsume_times {found}, at {before.member}, {call.member}")


def _one_at_a_time(a_round: Round, verdict: Verdict) -> None:
    """(5) Two members that were not stopped never consume the same queue at the same time."""
    by_queue: dict[tuple[str, int], list[Call]] = {}
    for call in a_round.calls:
        by_queue.setdefault(call.queue, []).append(call)
    for queue, calls in by_queue.items():
        open_calls: list[Call] = []
        for call in sorted(calls, key=lambda each: each.begin):
            open_calls = [each for each in open_calls if _end(each, a_round.fates) > call.begin]
            for other in open_calls:
                if other.member != call.member and not (_hindered(other, a_round) or _hindered(call, a_round)):
                    verdict.faults.append(f"{other.member} and {call.member} consume {queue} at the same time")
            open_calls.append(call)


def _end(call: Call, fates: Mapping[str, Fate]) -> int:
    if call.end is not None:
        return call.end
    killed = fates[call.member].killed_at
    return call.begin if killed is None else killed


def _hindered(call: Call, a_round: Round) -> bool:
    end = _end(call, a_round.fates)
    return a_round.fates[call.member].hindered(call.begin - _BEFORE, end + _BEFORE)


def _complete_batches(a_round: Round, verdict: Verdict) -> None:
    """No message is consumed before its batch is complete."""
    for call in a_round.calls:
        place = a_round.published.get(call.offset)
        if place is None or call.begin < place.at:
            verdict.faults.append(f"{call.offset} is consumed before its batch is complete")


def _in_order(a_round: Round, verdict: Verdict) -> None:
    """(2) A message is consumed first when all before it in its queue are consumed or given up."""
    order: dict[tuple[str, int], list[int]] = {}
    for offset in wanted(a_round.kind, a_round.published):
        place = a_round.published[offset]
        order.setdefault((place.topic, place.queue), []).append(offset)
    for queue, offsets in order.items():
        offsets.sort(key=lambda offset: a_round.published[offset].number)
        calls = sorted((call for call in a_round.calls if call.queue == queue), key=lambda call: call.begin)
        _queue_in_order(queue, offsets, calls, a_round.dead, verdict)


def _queue_in_order(
    queue: tuple[str, int], offsets: Sequence[int], calls: Sequence[Call], dead: Counter[int], verdict: Verdict
) -> None:
    done_at: dict[int, int] = {}
    for call in calls:
        given_up = call.offset in dead or call.reconsume_times >= MOST
        if call.end is not None and (call.succeeded or given_up):
            done_at[call.offset] = min(call.end, done_at.get(call.offset, call.end))
    number = {offset: at for at, offset in enumerate(offsets)}
    seen = -1  # number of the last message that was consumed first
    last: Call | None = None
    for call in calls:
        at = number.get(call.offset)
        if at is None or at <= seen:
            last = call
            continue
        if at != seen + 1:
            verdict.faults.append(f"{call.member} skips {at - seen - 1} messages of {queue} before {call.offset}")
        together = last is not None and last.begin == call.begin and last.member == call.member
        if at and not together and done_at.get(offsets[at - 1], call.begin + 1) > call.begin:
            verdict.faults.append(f"{call.member} consumes {call.offset} of {queue} before the one before it is done")
        seen, last = at, call


def _exactly_once(a_round: Round, applied: Counter[int], verdict: Verdict) -> None:
    """(6) The effect of each message is there once; of one that was given up there is none."""
    verdict.doubled_effects += sorted(offset for offset, times in applied.items() if times > 1)
    missing = sorted(wanted(a_round.kind, a_round.published) - set(a_round.dead) - set(applied))
    if missing:
        verdict.faults.append(f"effects are missing: {missing[:5]}")
    both = sorted(set(applied) & set(a_round.dead))
    if both:
        verdict.faults.append(f"messages are applied and given up: {both[:5]}")
