"""Each promise is found broken in journals that break it, and in no others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from crash_consumer.journals import Call, Fate, Place
from crash_consumer.kinds import MOST, Kind, poisoned
from crash_consumer.promises import Round, judge

_S = 1_000_000_000
_QUEUE = 5
_ORDERLY = Kind(orderly=True)
#: messages of one queue; 13 is poisoned
_OFFSETS = range(10, 16)
_PUBLISHED = {offset: Place("a", _QUEUE, number, 0) for number, offset in enumerate(_OFFSETS)}


def _call(offset: int, begin: float, end: float | None, member: str = "m0", times: int = 0, good: bool = True) -> Call:
    return Call(member, "a", _QUEUE, offset, times, round(begin * _S), None if end is None else round(end * _S), good)


def _calls() -> list[Call]:
    """One after the other, the poisoned one until it is given up."""
    calls: list[Call] = []
    for offset in _OFFSETS:
        for times in range(MOST + 1 if poisoned(offset) else 1):
            at = 100.0 + len(calls)
            calls.append(_call(offset, at, at + 0.5, times=times, good=not poisoned(offset)))
    return calls


def _round(kind: Kind = _ORDERLY) -> Round:
    return Round(kind, _PUBLISHED, _calls(), {"m0": Fate(), "m1": Fate()}, Counter([13]))


def _said(a_round: Round) -> str:
    return " ".join(judge(a_round).faults)


def test_what_is_right_is_good() -> None:
    verdict = judge(replace(_round(Kind(orderly=True, exactly_once=True)), applied=Counter(set(_OFFSETS) - {13})))
    assert verdict.good, verdict
    assert (verdict.messages, verdict.repeated) == (len(_OFFSETS), 0)


def test_lost_message() -> None:
    a_round = _round()
    verdict = judge(replace(a_round, calls=[call for call in a_round.calls if call.offset != 15]))
    assert verdict.lost == [15]


def test_dead_letters_that_are_missing_doubled_or_too_many() -> None:
    assert judge(replace(_round(), dead=Counter([13, 13]))).doubled_dead_letters == [13]
    assert "poisoned messages are not in dead_letters: [13]" in _said(replace(_round(), dead=Counter()))
    assert "only failed for a while: [11]" in _said(replace(_round(), dead=Counter([13, 11])))


def test_order_that_is_not_kept() -> None:
    a_round = _round()
    skipping = [call for call in a_round.calls if call.offset != 11] + [_call(11, 200, 201)]
    assert "m0 skips 1 messages" in _said(replace(a_round, calls=skipping))
    early = [*a_round.calls[:-1], _call(15, 107.2, 108)]
    assert "consumes 15 of ('a', 5) before the one before it is done" in _said(replace(a_round, calls=early))
    assert judge(replace(a_round, kind=Kind(), calls=early)).good
    repeated = [*a_round.calls, _call(11, 200, 201, "m1"), _call(12, 201, 202, "m1")]
    killed = {"m0": Fate(killed_at=105 * _S), "m1": Fate()}
    assert judge(replace(a_round, calls=repeated, fates=killed)).repeated == 2
    assert judge(replace(a_round, calls=repeated, fates=killed)).good


def test_repeat_without_a_cause() -> None:
    a_round = _round()
    repeated = [*a_round.calls, _call(15, 200, 201, "m1")]
    assert "15 is consumed again, and m0 was neither killed nor stopped" in _said(replace(a_round, calls=repeated))
    stopped = {"m0": Fate(stopped=[(110 * _S, 115 * _S)]), "m1": Fate()}
    assert judge(replace(a_round, calls=repeated, fates=stopped)).good


def test_two_members_at_once() -> None:
    a_round = _round(Kind())
    both = [*a_round.calls[:-1], _call(15, 107.4, 109, "m1")]
    assert "m0 and m1 consume ('a', 5) at the same time" in _said(replace(a_round, calls=both))
    stopped = {"m0": Fate(stopped=[(106 * _S, 107 * _S)]), "m1": Fate()}
    assert judge(replace(a_round, calls=both, fates=stopped)).good


def test_reconsume_times() -> None:
    a_round = _round()
    calls = [replace(call, reconsume_times=0) for call in a_round.calls]
    assert "13 has reconsume_times 0 after 0" in _said(replace(a_round, calls=calls))
    more = [*a_round.calls, _call(13, 200, 201, good=False)]
    assert "13 is consumed again by m0 after it was given up" in _said(replace(a_round, calls=more))


def test_batch_that_is_not_complete() -> None:
    early = {**_PUBLISHED, 15: Place("a", _QUEUE, 5, 300 * _S)}
    assert "15 is consumed before its batch is complete" in _said(replace(_round(), published=early))


def test_effects_that_are_missing_or_doubled() -> None:
    kind = Kind(exactly_once=True)
    good = Counter(set(_OFFSETS) - {13})
    assert judge(replace(_round(kind), applied=good + Counter([12]))).doubled_effects == [12]
    assert "effects are missing: [12]" in _said(replace(_round(kind), applied=good - Counter([12])))
    assert "applied and given up: [13]" in _said(replace(_round(kind), applied=good + Counter([13])))
