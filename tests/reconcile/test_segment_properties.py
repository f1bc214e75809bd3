"""The protocol against a model in plain Python, over random histories: the promises hold in every one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkback.reconcile.records import Kind
from checkback.reconcile.segment import Rules, Segment, decide
from checkback.reconcile.state_codec import decode, encode
from reconcile.segments import RULES, SIZE, commit, delivered, events, half, read, rollback, undelivered

halves = st.builds(
    half,
    st.integers(0, 3),
    st.integers(0, 60),
    store=st.integers(0, 60),
    immunity=st.sampled_from([-1, 0, 30]),
    tx=st.sampled_from([7, 8]),
)
ops = st.builds(
    lambda make, *args, **more: make(*args, **more),
    st.sampled_from([commit, rollback]),
    st.integers(0, 3),
    st.integers(0, 3),
    store=st.integers(0, 3),
    group=st.sampled_from([1, 1, 1, 2]),
    tx=st.sampled_from([7, 7, 8, 0]),
)
notes = st.builds(
    lambda make, *args, **more: make(*args, **more),
    st.sampled_from([delivered, delivered, undelivered]),
    st.integers(0, 3),
    st.integers(-1, 4),
    group=st.sampled_from([1, 1, 1, 2]),
    tx=st.sampled_from([7, 7, 8]),
)
#: time since the last one, rows, and whether it checks: one of many that are due puts it off
batches = st.lists(
    st.tuples(st.integers(1, 40), st.lists(halves | ops | notes, max_size=4), st.sampled_from([True, True, False])),
    max_size=25,
)
#: and where only received checks count, with a reserved time that is soon over
ALL_RULES = [RULES, replace(RULES, count_undelivered=False, reserved=60)]


class Model:
    """The protocol a transaction at a time, as a reader would write it down."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.pending: dict[int, dict[str, Any]] = {}
        self.seen: set[int] = set()
        self.waiting: list[tuple[int, tuple[Any, ...]]] = []

    def step(self, now: int, rows: list[tuple[Any, ...]], check: bool) -> list[tuple[Any, ...]]:  # noqa: PLR0912 - one page, to be read
        done: list[tuple[Any, ...]] = []
        for offset, kind, _, born, store, immunity, group, tx in sorted(rows, key=lambda r: (r[4], r[6], r[7])):
            if kind == Kind.HALF and offset in self.seen:
                done.append(("REJECT_HALF", offset))
            elif kind == Kind.HALF:
                self.seen.add(offset)
                birth = min(born, store // 1000)
                due = birth + (min(immunity, self.rules.reserved) if immunity >= 0 else RULES.timeout) + 1
                held = {"landed": store // 1000, "due": due, "times": 0, "asked": [], "group": group, "tx": tx}
                self.pending[offset] = held
        new_ops = sorted((r for r in rows if r[1] in (Kind.COMMIT, Kind.ROLLBACK)), key=lambda r: (r[4], r[3], r[1]))
        decided: dict[int, dict[str, Any]] = {}
        still, self.waiting = [*self.waiting, *((now, row) for row in new_ops)], []
        for since, row in still:
            offset, kind, _, _, _, _, group, tx = row
            owner = self.pending.get(offset) or decided.get(offset)
            if owner and group != owner["group"]:
                done.append(("REJECT_OP", offset, "WRONG_GROUP"))
            elif owner and tx not in (owner["tx"], 0):
                done.append(("REJECT_OP", offset, "WRONG_TRANSACTION_ID"))
            elif offset in self.pending:
                decided[offset] = self.pending.pop(offset)
                done.append((Kind(kind).name, offset, len(decided[offset]["asked"])))
            elif owner is None and offset in self.seen:
                done.append(("LATE_OP", offset))
            elif owner is None and now - since > self.rules.reserved:
                done.append(("REJECT_OP", offset, "NO_HALF"))
            elif owner is None and not any((r[0], r[6], r[7]) == (offset, group, tx) for _, r in self.waiting):
                self.waiting.append((since, row))
        for offset, kind, _, _, _, number, group, tx in rows:
            held = self.pending.get(offset, {"group": 0, "tx": 0})
            if kind == Kind.DELIVERED and (group, tx) == (held["group"], held["tx"]) and number <= len(held["asked"]):
                held["times"] = max(held["times"], number)
        for offset, held in list(self.pending.items()) if check else ():
            enough = len(held["asked"]) >= min(RULES.check_max, self.rules.reserved // RULES.check_interval + 1)
            if held["due"] > now:
                continue
            if held["times"] >= RULES.check_max:
                done.append(("DISCARD", offset, "CHECK_MAX"))
                del self.pending[offset]
            elif enough and held["asked"][-1] - held["landed"] > self.rules.reserved:
                done.append(("DISCARD", offset, "EXPIRED"))
                del self.pending[offset]
            else:
                number = held["times"] + 1
                held["times"] += self.rules.count_undelivered and number < RULES.check_max
                held["asked"].append(now)
                held["due"] = now + RULES.check_interval
                done.append(("CHECK", offset, number))
        return sorted(done)


@pytest.mark.slow
@given(batches, st.sampled_from(ALL_RULES))
@settings(max_examples=400, deadline=None)
def test_segment_does_what_the_model_does(history: list[tuple[int, list[tuple[Any, ...]], bool]], rules: Rules) -> None:
    """Batch by batch the same actions; the state goes through its bytes in between."""
    model, block, now = Model(rules), encode(Segment.empty(0, SIZE)), 0
    for step, rows, check in history:
        now += step
        segment, _ = decode(block, 0, SIZE)
        segment, actions = decide(segment, events(*rows), now, rules, check)
        assert read(actions) == model.step(now, rows, check)
        assert segment.pending["offset"].tolist() == sorted(model.pending)
        block = encode(segment)


@pytest.mark.slow
@given(batches, st.sampled_from([0, 7]), st.sampled_from(ALL_RULES))
@settings(max_examples=300, deadline=None)
def test_promises_hold(history: list[tuple[int, list[tuple[Any, ...]], bool]], jitter: int, rules: Rules) -> None:
    """Each transaction is decided once, and never checked after its decision or too early.

    Each number but the last is given to one check; none is discarded for its checks before the last is told of. Where
    only received checks count, each number is asked until somebody has received it. Jitter only adds to the interval.
    """
    rules = replace(rules, check_jitter=jitter)
    received: dict[int, int] = defaultdict(int)
    segment, now = Segment.empty(0, SIZE), 0
    decisions: dict[int, str] = {}
    checks: dict[int, list[int]] = defaultdict(list)
    numbers: dict[int, list[int]] = defaultdict(list)
    immune_until: dict[int, int] = {}
    owner: dict[int, tuple[int, int]] = {}
    taken: set[int] = set()
    for step, rows, check in [*history, *((40, [], True),) * 40]:
        now += step
        fresh = sorted((r for r in rows if r[1] == Kind.HALF), key=lambda r: (r[4], r[6], r[7]))
        for offset, _, _, born, store, immunity, group, tx in fresh:
            if offset not in taken:
                immune_until[offset] = min(born, store // 1000) + (immunity if immunity >= 0 else RULES.timeout)
                owner[offset] = group, tx
                taken.add(offset)
        for offset, kind, _, _, _, number, group, tx in rows:
            if kind == Kind.DELIVERED and owner.get(offset) == (group, tx) and number <= len(checks[offset]):
                received[offset] = max(received[offset], number)
        segment, actions = decide(segment, events(*rows), now, rules, check)
        for action in read(actions):
            if action[0] in ("COMMIT", "ROLLBACK", "DISCARD"):
                assert action[1] not in decisions
                decisions[action[1]] = action[0]
                assert action[0] != "DISCARD" or checks[action[1]][-1] <= now - RULES.check_interval
                if action[2] == "CHECK_MAX":
                    assert received[action[1]] >= RULES.check_max
            elif action[0] == "CHECK":
                assert action[1] not in decisions
                assert now > immune_until[action[1]]
                assert 1 <= action[2] <= RULES.check_max
                checks[action[1]].append(now)
                numbers[action[1]].append(action[2])
        pending = set(segment.pending["offset"].tolist())
        assert pending | set(decisions) == taken
        assert not pending & set(decisions)
    for offset, times in checks.items():
        counted = [number for number in numbers[offset] if number < RULES.check_max]
        assert len(counted) == len(set(counted)) or not rules.count_undelivered, offset
        assert all(b - a >= RULES.check_interval for a, b in pairwise(times))
    assert set(decisions) == taken  # after the reserved time nothing is left
