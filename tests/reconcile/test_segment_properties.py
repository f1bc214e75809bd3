"""The protocol against a model in plain Python, over random histories: the promises hold in every one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from checkback.reconcile.records.segment_records import Action, Kind, Source
from checkback.reconcile.segment import Rules, Segment, decide
from checkback.reconcile.state.state_codec import decode, encode
from reconcile.segments import RULES, SIZE, cancel, commit, delivered, events, half, read, rollback

if TYPE_CHECKING:
    from collections.abc import Iterator

    #: time since the last batch, rows, and whether it checks and delivers
    History = list[tuple[int, list[tuple[Any, ...]], tuple[bool, bool]]]

halves = st.builds(
    half,
    st.integers(0, 3),
    st.integers(0, 60),
    store=st.integers(0, 60),
    immunity=st.sampled_from([-1, 0, 30]),
    tx=st.sampled_from([7, 8]),
    delay=st.sampled_from([0, 0, 1, 30]),
    at=st.sampled_from([0, 0, 0, 50]),
    kind=st.sampled_from([Kind.HALF, Kind.HALF, Kind.MESSAGE]),
)
ops = st.builds(
    lambda make, *args, **more: make(*args, **more),
    st.sampled_from([commit, rollback]),
    st.integers(0, 3),
    st.integers(0, 3),
    store=st.integers(0, 3),
    group=st.sampled_from([1, 1, 1, 2]),
    tx=st.sampled_from([7, 7, 8, 0]),
    check=st.sampled_from([-1, -1, 1, 2, 3]),
)
#: mostly of those that are scheduled
cancels = st.builds(
    cancel,
    st.integers(0, 3),
    st.integers(0, 3),
    group=st.sampled_from([1, 1, 1, 1, 2]),
    tx=st.sampled_from([7, 7, 7, 8, 0]),
)
notes = st.builds(
    delivered,
    st.integers(0, 3),
    st.integers(-1, RULES.check_max),  # no check has a greater number
    group=st.sampled_from([1, 1, 1, 2]),
    tx=st.sampled_from([7, 7, 8]),
)
#: time since the last one, rows, and whether it checks and delivers: one of many that are due puts it off
batches = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.lists(halves | ops | notes | cancels, max_size=4),
        st.sampled_from([(True, True), (True, True), (False, True), (True, False)]),
    ),
    max_size=25,
)
#: and where only received checks count, with a max_age that is soon over
ALL_RULES = [RULES, replace(RULES, count_undelivered=False, max_age=60)]


class Model:
    """The protocol a transaction at a time, as a reader would write it down."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.pending: dict[int, dict[str, Any]] = {}
        self.seen: set[int] = set()
        self.waiting: list[tuple[int, tuple[Any, ...]]] = []
        self.scheduled: dict[int, dict[str, Any]] = {}
        self.discarded: list[tuple[int, int]] = []
        self.cancels: list[tuple[int, tuple[Any, ...]]] = []

    @property
    def held(self) -> set[int]:
        """Whose CANCEL was read with the half message, or before it."""
        return {row[0] for _, row in self.cancels}

    def commit(self, offset: int, held: dict[str, Any], now: int) -> tuple[str, int, int]:
        """A delay counts from the decision; what is due by then is published at once, unless a CANCEL waits."""
        held["deliver_at"] = now - held["delay"] if held["delay"] < 0 else held["delay"]
        if held["deliver_at"] > now or (held["delay"] and offset in self.held):
            self.scheduled[offset] = held
        return ("SCHEDULE" if offset in self.scheduled else "COMMIT"), offset, held["times"]

    def cancel(self, rows: list[tuple[Any, ...]], now: int, known: set[int]) -> Iterator[tuple[Any, ...]]:
        """Before the batch's COMMITs: nothing is scheduled and cancelled in one batch. ``known``: seen before it."""
        before = dict(self.scheduled)
        waiting = [*self.cancels, *((now, row) for row in sorted(rows, key=lambda r: (r[4], r[3])))]
        self.cancels = []
        for since, row in waiting:
            offset, _, _, _, _, _, group, tx, *_ = row
            held = before.get(offset)
            if offset not in known:
                self.cancels.append((since, row))
            elif held is not None and group != held["group"]:
                yield "REJECT_OP", offset, "WRONG_GROUP"
            elif held is not None and tx not in (held["tx"], 0):
                yield "REJECT_OP", offset, "WRONG_TRANSACTION_ID"
            elif offset in self.scheduled:
                yield "CANCEL", offset, self.scheduled.pop(offset)["times"]
            else:
                yield "REJECT_OP", offset, "NOT_SCHEDULED"

    def step(self, now: int, rows: list[tuple[Any, ...]], check: bool, deliver: bool) -> list[tuple[Any, ...]]:  # noqa: PLR0912, PLR0915 - one page, to be read
        done: list[tuple[Any, ...]] = []
        known = set(self.seen)
        at_once: list[int] = []
        for offset, kind, _, born, store, immunity, group, tx, delay, _ in sorted(
            rows, key=lambda r: (r[4], r[6], r[7])
        ):
            if kind in (Kind.HALF, Kind.MESSAGE) and offset in self.seen:
                done.append(("REJECT_HALF", offset))
            elif kind in (Kind.HALF, Kind.MESSAGE):
                self.seen.add(offset)
                birth = min(born, store // 1000)
                due = birth + (min(immunity, self.rules.max_age) if immunity >= 0 else RULES.timeout) + 1
                held = {"landed": store // 1000, "due": due, "times": 0, "asked": [], "group": group, "tx": tx}
                self.pending[offset] = held | {"delay": delay}
                at_once += [offset] * (kind == Kind.MESSAGE)
        # An answer counts its check as COUNTED does; first, as it ends the transaction.
        for offset, kind, source, _, _, _, group, tx, _, number in rows:
            held = self.pending.get(offset, {"group": 0, "tx": 0})
            counts = kind == Kind.COUNTED or (source == Source.CHECK and kind in (Kind.COMMIT, Kind.ROLLBACK))
            if counts and (group, tx) == (held["group"], held["tx"]) and number <= len(held["asked"]):
                held["times"] = max(held["times"], number)
        new_ops = sorted((r for r in rows if r[1] in (Kind.COMMIT, Kind.ROLLBACK)), key=lambda r: (r[4], r[3], r[1]))
        decided: dict[int, dict[str, Any]] = {}
        commits = [self.pending.pop(offset) for offset in at_once]
        done += self.cancel([row for row in rows if row[1] == Kind.CANCEL], now, known)
        held_back = self.held
        done += [self.commit(offset, held, now) for offset, held in zip(at_once, commits, strict=True)]
        still, self.waiting = [*self.waiting, *((now, row) for row in new_ops)], []
        for since, row in still:
            offset, kind, _, _, _, _, group, tx, *_ = row
            owner = self.pending.get(offset) or decided.get(offset)
            if owner and group != owner["group"]:
                done.append(("REJECT_OP", offset, "WRONG_GROUP"))
            elif owner and tx not in (owner["tx"], 0):
                done.append(("REJECT_OP", offset, "WRONG_TRANSACTION_ID"))
            elif offset in self.pending:
                decided[offset] = self.pending.pop(offset)
                rolled_back = "ROLLBACK", offset, decided[offset]["times"]
                done.append(rolled_back if kind == Kind.ROLLBACK else self.commit(offset, decided[offset], now))
            elif owner is None and offset in self.seen:
                done.append(("LATE_OP", offset))
            elif owner is None and now - since > self.rules.max_age:
                done.append(("REJECT_OP", offset, "NO_HALF"))
            elif owner is None and not any((r[0], r[6], r[7]) == (offset, group, tx) for _, r in self.waiting):
                self.waiting.append((since, row))
        cancels, self.cancels = self.cancels, []
        for since, row in cancels:
            if row[0] not in self.seen and now - since > self.rules.max_age:
                done.append(("REJECT_OP", row[0], "NO_HALF"))
            elif not any((r[0], r[6], r[7]) == (row[0], row[6], row[7]) for _, r in self.cancels):
                self.cancels.append((since, row))
        for offset, held in list(self.pending.items()) if check else ():
            enough = len(held["asked"]) >= min(RULES.check_max, self.rules.max_age // RULES.check_interval + 1)
            if held["due"] > now:
                continue
            if held["times"] >= RULES.check_max:
                done.append(("DISCARD", offset, "CHECK_MAX"))
                self.discarded.append((offset, self.pending.pop(offset)["times"]))
            elif enough and held["asked"][-1] - held["landed"] > self.rules.max_age:
                done.append(("DISCARD", offset, "EXPIRED"))
                self.discarded.append((offset, self.pending.pop(offset)["times"]))
            else:
                number = held["times"] + 1
                held["times"] += self.rules.count_undelivered and number < RULES.check_max
                held["asked"].append(now)
                held["due"] = now + RULES.check_interval
                done.append(("CHECK", offset, number))
        for offset, held in list(self.scheduled.items()) if deliver else ():
            if held["deliver_at"] <= now and offset not in held_back:
                done.append(("DELIVER", offset, self.scheduled.pop(offset)["times"]))
        return sorted(done)


@given(batches, st.sampled_from(ALL_RULES))
def test_segment_does_what_the_model_does(history: History, rules: Rules) -> None:
    """Batch by batch the same actions; the state goes through its bytes in between."""
    model, block, now = Model(rules), encode(Segment.empty(0, SIZE)), 0
    for step, rows, (check, deliver) in history:
        now += step
        segment, _ = decode(block, 0, SIZE)
        segment, actions = decide(segment, events(*rows), now, rules, check, deliver=deliver)
        model.discarded.clear()
        assert read(actions) == model.step(now, rows, check, deliver)
        discards = actions[["offset", "check_times"]][actions["action"] == Action.DISCARD]
        assert sorted(discards.tolist()) == sorted(model.discarded)
        ended = np.isin(actions["action"], (Action.COMMIT, Action.SCHEDULE, Action.ROLLBACK, Action.DISCARD))
        assert (actions["check_times"][ended] <= rules.check_max).all()
        due = {offset: held["deliver_at"] for offset, held in model.scheduled.items()}
        assert dict(segment.scheduled[["offset", "due"]].tolist()) == due
        assert segment.pending["offset"].tolist() == sorted(model.pending)
        block = encode(segment)


@given(batches, st.sampled_from([0, 7]), st.sampled_from(ALL_RULES))
def test_promises_hold(history: History, jitter: int, rules: Rules) -> None:  # noqa: PLR0915 - one history
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
    delays: dict[int, int] = {}
    scheduled: dict[int, int] = {}
    ended: dict[int, str] = {}
    for step, rows, (check, deliver) in [*history, *((40, [], (True, True)),) * 40]:
        now += step
        fresh = sorted((r for r in rows if r[1] in (Kind.HALF, Kind.MESSAGE)), key=lambda r: (r[4], r[6], r[7]))
        for offset, _, _, born, store, immunity, group, tx, delay, _ in fresh:
            if offset not in taken:
                immune_until[offset] = min(born, store // 1000) + (immunity if immunity >= 0 else RULES.timeout)
                owner[offset] = group, tx
                delays[offset] = delay
                taken.add(offset)
        for offset, kind, _, _, _, _, group, tx, _, number in rows:
            if kind == Kind.COUNTED and owner.get(offset) == (group, tx) and number <= len(checks[offset]):
                received[offset] = max(received[offset], number)
        segment, actions = decide(segment, events(*rows), now, rules, check, deliver=deliver)
        for action in read(actions):
            if action[0] in ("DELIVER", "CANCEL"):
                assert action[1] not in ended
                assert action[0] == "CANCEL" or now >= scheduled[action[1]]
                ended[action[1]] = action[0]
            elif action[0] in ("COMMIT", "ROLLBACK", "DISCARD", "SCHEDULE"):
                assert action[1] not in decisions
                decisions[action[1]] = action[0]
                at = delays[action[1]] if delays[action[1]] >= 0 else now - delays[action[1]]
                if action[0] == "SCHEDULE":
                    scheduled[action[1]] = at
                assert action[0] != "COMMIT" or at <= now
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
    assert set(ended) == set(scheduled)
    assert set(decisions) == taken  # after max_age nothing is left
