"""The ledger: what is new, the same again, or wrong; offsets; what is forgotten. As a table, and against a model."""

from __future__ import annotations

from collections import Counter
from copy import copy
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from checkback.gateway.deduplication.cache import RECALLED_MAX, DeduplicationCache, beyond_of
from checkback.gateway.deduplication.remembered_half import RememberedHalf, fingerprint, name_of, whose
from checkback.gateway.received_ops import Verdict, judge_op
from checkback.messages.half import Half
from checkback.messages.op import Op
from gateway.cache_entries import land

HALF = Half(0, 7, "t", "orders", "payments", 0, "tag", "key", {"a": "1", "b": "2"}, b"body", 1000, 30)
KEPT = RememberedHalf(0, 7, "orders/t", fingerprint(HALF), "payments", 1000, 2000)
OP = Op(0, 7, "t", "orders", "COMMIT", 3000)


@pytest.mark.parametrize(
    ("known", "op", "verdict"),
    [
        (KEPT, OP, Verdict.NEW),
        (KEPT, OP._replace(state="ROLLBACK"), Verdict.NEW),
        (None, OP, Verdict.UNKNOWN_OFFSET),
        (KEPT, OP._replace(producer_group="other"), Verdict.WRONG_GROUP),
        (KEPT, OP._replace(producer_group="order"), Verdict.WRONG_GROUP),
        (KEPT, OP._replace(transaction_id="u"), Verdict.WRONG_TRANSACTION_ID),
        (KEPT, OP._replace(transaction_id=""), Verdict.WRONG_TRANSACTION_ID),
        (KEPT, OP._replace(producer_group="other", transaction_id="u"), Verdict.WRONG_GROUP),
        (replace(KEPT, state="COMMIT"), OP, Verdict.REPEATED),
        (replace(KEPT, state="COMMIT"), OP._replace(state="ROLLBACK"), Verdict.CONTRADICTION),
        (replace(KEPT, state="ROLLBACK"), OP, Verdict.CONTRADICTION),
        (replace(KEPT, state="DISCARD"), OP, Verdict.CONTRADICTION),
        (replace(KEPT, state="COMMIT"), OP._replace(transaction_id="u"), Verdict.WRONG_TRANSACTION_ID),
        (replace(KEPT, name="orders/a/b"), OP._replace(transaction_id="a/b"), Verdict.NEW),
    ],
)
def test_op_is_judged_by_its_half(known: RememberedHalf | None, op: Op, verdict: Verdict) -> None:
    """Group before transaction id before state, as EndTransactionProcessor asks."""
    assert judge_op(known, op) is verdict


@pytest.mark.parametrize(
    "other",
    [
        HALF._replace(real_topic="refunds"),
        HALF._replace(real_queue_id=1),
        HALF._replace(tags=None),
        HALF._replace(keys="tag", tags="key"),
        HALF._replace(properties={"a": "1"}),
        HALF._replace(properties={"a": "2", "b": "1"}),
        HALF._replace(body=b"bodY"),
        HALF._replace(body=b""),
        HALF._replace(check_immunity_s=None),
    ],
)
def test_other_content_is_a_contradiction(other: Half) -> None:
    assert fingerprint(other) != KEPT.fingerprint


def test_same_content_is_the_same_message() -> None:
    """Wherever it lies, whenever it was born, in whatever order its properties come."""
    again = HALF._replace(queue_offset=-1, born_timestamp=5, properties={"b": "2", "a": "1"})
    assert fingerprint(again) == KEPT.fingerprint


#: The groups that have a share each.
GROUPS = {"g", "h", "few"}


def share(half: RememberedHalf) -> str:
    return whose(half)[0] if whose(half)[0] in GROUPS else ""


@dataclass
class Model:
    """The ledger in plain words: lists of what has landed and of what was looked up, searched from the front."""

    known: list[RememberedHalf] = field(default_factory=list)
    recalled: list[RememberedHalf] = field(default_factory=list)
    next: dict[int, int] = field(default_factory=lambda: {0: 0, 5: 3})
    #: names that are reserved, by reservation
    in_flight: dict[int, list[str]] = field(default_factory=dict)

    def is_free(self, name: str) -> bool:
        return not any(name in names for names in self.in_flight.values())

    def at(self, queue_id: int, queue_offset: int) -> RememberedHalf | None:
        every = [*self.known, *self.recalled]
        return next((one for one in every if (one.queue_id, one.queue_offset) == (queue_id, queue_offset)), None)

    def first_offsets(self) -> dict[int, int]:
        every = [*self.known, *self.recalled]
        return {
            queue_id: min((one.queue_offset for one in every if one.queue_id == queue_id), default=next_offset)
            for queue_id, next_offset in self.next.items()
        }

    def landed(self, halves: list[RememberedHalf]) -> None:
        for half in halves:
            if self.at(half.queue_id, half.queue_offset) is None:
                self.known.append(half)
            self.next[half.queue_id] = max(self.next[half.queue_id], half.queue_offset + 1)

    def recall(self, half: RememberedHalf) -> None:
        if self.at(half.queue_id, half.queue_offset) is None:
            self.recalled.append(half)

    def ended(self, queue_id: int, queue_offset: int, state: str) -> None:
        half = self.at(queue_id, queue_offset)
        for known in (self.known, self.recalled):
            if half is not None and half.state is None and half in known:
                known[known.index(half)] = replace(half, state=state)

    def forget(self, before: int, most: int) -> None:
        for known in (self.known, self.recalled):
            while known and known[0].stored < before:
                known.pop(0)
        while len(self.known) > most:
            held = Counter(map(share, self.known))
            loser = min(held, key=lambda one: (-held[one], one))
            self.known.remove(next(half for half in self.known if share(half) == loser))
        del self.recalled[: max(0, len(self.recalled) - most)]


def landing(cache: DeduplicationCache, queue_id: int, names: list[str], now: int) -> list[RememberedHalf]:
    """Half messages of these names at the queue's next offsets."""
    first = cache.next_offset(queue_id)
    return [RememberedHalf(queue_id, first + n, name, now, "topic", 0, now) for n, name in enumerate(names)]


def land_or_read(cache: DeduplicationCache, half: RememberedHalf) -> None:
    """A half message lands, or is read from the table, which may have two of one name."""
    if cache.named(half.name) is None:
        land(cache, half)
    else:
        cache.remember([half])


def reserve(model: Model, cache: DeduplicationCache, number: int, names: list[str]) -> None:
    """New names are reserved together, or none is."""
    new = all(map(model.is_free, names)) and not {half.name for half in model.known}.intersection(names)
    reserved = cache.reserve(names, number)
    assert reserved == (new and len(names) == len(set(names)))
    if reserved and names:
        model.in_flight[number] = names


def settle(model: Model, cache: DeduplicationCache, queue_id: int, number: int, now: int) -> None:
    """The half messages of a reservation, if there are so many, land in a queue; -1: they fail."""
    reservation = next(iter(sorted(model.in_flight)[number:]), None)
    if reservation is None:
        return
    names = model.in_flight.pop(reservation)
    if queue_id < 0:
        cache.release(names)
        return
    block = landing(cache, queue_id, names, now)
    cache.stored([copy(half) for half in block])
    model.landed(block)


_QUEUES = st.sampled_from([0, 5])
_OFFSETS = st.integers(0, 8)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("land"), _QUEUES, st.sampled_from("abcd"), st.sampled_from("gghxy")),
        st.tuples(st.just("many"), _QUEUES, st.integers(0, 9), st.sampled_from("ghx")),
        st.tuples(st.just("reserve"), st.just(0), st.text("abcd", max_size=3), st.sampled_from("ghx")),
        st.tuples(st.just("settle"), st.sampled_from([0, 5, -1]), st.integers(0, 2), st.none()),
        st.tuples(st.just("recall"), _QUEUES, _OFFSETS, st.integers(0, 5)),
        st.tuples(st.just("end"), _QUEUES, _OFFSETS, st.sampled_from(["COMMIT", "ROLLBACK"])),
        st.tuples(st.just("forget"), st.integers(0, 9), st.integers(0, 6), st.none()),
    ),
    max_size=40,
)


@given(_STEPS)
@example(
    steps=[("land", 0, "a", "g"), ("end", 0, 0, "COMMIT"), ("end", 0, 0, "ROLLBACK")],
)
@example(steps=[("land", 0, "a", "g"), ("land", 0, "a", "g"), ("forget", 0, 1, None)])
@example(
    steps=[("land", 0, "a", "g"), ("forget", 0, 0, None), ("land", 0, "a", "g"), ("recall", 0, 0, "a")],
)
@example(
    steps=[("land", 0, "a", "h"), ("land", 0, "a", "g"), ("land", 5, "b", "g"), ("forget", 0, 1, None)],
)
def test_ledger_is_its_model(steps: list[tuple[str, int, object, object]]) -> None:
    """Whatever lands, ends and is forgotten: offsets go up without a gap, and lookups find what the model has."""
    model, cache = Model(), DeduplicationCache({0: 0, 5: 3}, GROUPS)
    for now, (step, first, second, third) in enumerate(steps):
        if step == "land" and model.is_free(name_of(str(third), str(second))):
            half = RememberedHalf(
                first, cache.next_offset(first), name_of(str(third), str(second)), now, "topic", 0, now
            )
            land_or_read(cache, copy(half))
            model.landed([half])
        elif step == "many":
            many = landing(cache, first, [name_of(str(third), "abcd"[n % 4]) for n in range(int(str(second)))], now)
            many = [half for half in many if model.is_free(half.name)]
            cache.remember([copy(half) for half in (*many, *many[:2])])
            model.landed(many)
        elif step == "reserve":
            reserve(model, cache, now, [name_of(str(third), letter) for letter in str(second)])
        elif step == "settle":
            settle(model, cache, first, int(str(second)), now)
        elif step == "recall" and cache.assigned(first, int(str(second))):
            half = RememberedHalf(first, int(str(second)), name_of("g", str(third)), 0, "topic", 0, 0)
            cache.recalled([half], now)
            model.recall(replace(half, stored=now))
        elif step == "end":
            cache.ended(first, int(str(second)), str(third))
            model.ended(first, int(str(second)), str(third))
        elif step == "forget":
            before = len(cache)
            assert cache.forget(first, int(str(second))) == before - len(cache)
            model.forget(first, int(str(second)))
        assert len(cache) == len(model.known) + len(model.recalled)
        for queue_id, next_offset in model.next.items():
            assert cache.next_offset(queue_id) == next_offset
            assert not cache.assigned(queue_id, next_offset)
            for queue_offset in range(-1, 10):
                assert cache.at(queue_id, queue_offset) == model.at(queue_id, queue_offset)
        assert cache.first_offsets() == model.first_offsets()
        of_names = {half.name: half for half in model.known}
        reserved = {name: number for number, names in model.in_flight.items() for name in names}
        for name in (name_of(group, letter) for group in "ghxy" for letter in "abcd"):
            assert cache.named(name) == of_names.get(name)
            assert cache.in_flight(name) == reserved.get(name)


def test_who_sends_many_makes_no_other_group_forgotten() -> None:
    """Else a half message that another group sends again would land twice, for all that it is sent in time."""
    cache = DeduplicationCache({0: 0}, GROUPS)
    names = [f"few/{n}" for n in range(3)] + [f"made-up-{n % 9}/{n}" for n in range(97)]
    halves = [RememberedHalf(0, offset, name, 1, "topic", 0, 10) for offset, name in enumerate(names)]
    cache.remember(halves[:50])
    for half in halves[50:]:
        land(cache, half)
    assert cache.forget(5, 10) == 90
    assert [name for name in names if cache.named(name)] == names[:3] + names[-7:]


def test_of_two_with_a_name_a_retry_comes_to_that_of_the_own_queue() -> None:
    """Whichever is remembered first: else a client's own message, sent again, would be another's."""
    own, other = (RememberedHalf(queue, 5, "g/x", 1, "topic", 0, 10) for queue in (0, 7))
    for order in ((own, other), (other, own)):
        cache = DeduplicationCache({0: 0}, GROUPS)
        cache.remember(order)
        assert cache.named("g/x") == own


def test_nothing_is_kept_of_what_is_forgotten() -> None:
    """Although a quiet group's half message, before all of it, stays."""
    cache = DeduplicationCache({0: 0}, GROUPS)
    land(cache, RememberedHalf(0, 0, "few/first", 1, "topic", 0, 10))
    for first in range(1, 50_001, 1000):
        cache.remember(RememberedHalf(0, first + n, f"g/{first + n}", 1, "topic", 0, 10) for n in range(1000))
        cache.forget(5, 10)
    assert (len(cache), cache.first_offsets()) == (10, {0: 0})
    assert max(len(cache._by_name), len(cache._by_place[0]), len(cache._offsets[0])) < 6000


def test_lookups_do_not_make_it_forget_what_landed_lately() -> None:
    """Else an op for each of many old half messages would make a half message that is sent again land twice."""
    cache = DeduplicationCache({0: 3 * RECALLED_MAX})
    land(cache, RememberedHalf(0, 3 * RECALLED_MAX, "g/new", 1, "topic", 0, 10))
    cache.recalled((RememberedHalf(0, offset, "g/old", 0, "topic", 0, 0) for offset in range(2 * RECALLED_MAX)), 20)
    cache.forget(5, RECALLED_MAX)
    assert cache.named("g/new") is not None
    assert len(cache) == RECALLED_MAX + 1


@given(st.text(max_size=3) | st.text(min_size=63, max_size=70) | st.just("#" + 64 * "0"), st.sampled_from("xy"))
def test_memory_of_a_name_is_bounded(transaction_id: str, other: str) -> None:
    """And names are as different as what they are of, also one that was made to read like another's."""
    name = name_of("orders", transaction_id)
    assert len(name) <= len("orders/") + 65
    again = name.removeprefix("orders/")
    assert (name_of("orders", again) == name) == (again == transaction_id)
    assert name_of("orders", transaction_id + other) != name
    known = replace(KEPT, name=name)
    assert judge_op(known, OP._replace(transaction_id=transaction_id)) is Verdict.NEW
    assert judge_op(known, OP._replace(transaction_id=transaction_id + other)) is Verdict.WRONG_TRANSACTION_ID


def test_offsets_of_others_queues_are_not_ours() -> None:
    """What they have is to be looked up."""
    cache = DeduplicationCache({1: 10})
    assert cache.queues == (1,)
    assert cache.assigned(1, 9)
    assert not cache.assigned(1, 10)
    assert cache.assigned(0, 10**12)


def test_half_message_of_a_queue_given_up_is_known_by_its_name_only() -> None:
    """How it ended is looked up each time: another gateway may own the queue."""
    cache = DeduplicationCache({1: 10})
    cache.remember([KEPT])
    cache.recalled([KEPT], 0)
    assert cache.named(KEPT.name) == KEPT
    assert (cache.at(0, 7), cache.assigned(0, 7)) == (None, True)
    cache.forget(KEPT.stored + 1, 10)
    assert (cache.named(KEPT.name), len(cache)) == (None, 0)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.data())
def test_largest_share_loses_first(held: list[int], data: st.DataObject) -> None:
    """One at a time, of equal ones the first: for any number at once."""
    beyond = data.draw(st.integers(0, sum(held)))
    left = list(held)
    for _ in range(beyond):
        left[left.index(max(left))] -= 1
    assert (np.array(held) - beyond_of(held, beyond)).tolist() == left
