"""Members of a group with their own clocks, on a real table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.consumer.group import rebalance
from checkback.consumer.group.group_rows import from_rows, to_rows
from checkback.consumer.group.group_state import Death, GroupState, Member, MessageQueue, QueueState
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.group.membership import Membership
from checkback.consumer.position import QUEUES, BatchKey, MessageKey, Position
from checkback.consumer.retry_or_dead_letter import DeadLetter, Retry
from checkback.errors import SettingsError, StorageError
from checkback.settings import Storage
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from consumer.published import Published

pytestmark = pytest.mark.slow


@dataclass
class Clock:
    """A member's own clock (s)."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def at_start(topics: Collection[str]) -> Mapping[str, Position]:
    return dict.fromkeys(topics, Position())


def member(lake: Published, name: str, clock: Clock) -> Membership:
    found = Membership(GroupTable(lake.tables, "g"), name, ["pay"], 10.0, at_start, clock)
    found.join()
    return found


def test_members_of_a_group_keep_positions_in_one_place(lake: Published) -> None:
    """A rolling deployment that adds or drops SqlPositions is refused; members that were killed count for a while."""
    for in_database in (False, True):
        table = GroupTable(lake.tables, f"g{in_database}")
        options: dict[str, Any] = {"session_s": 10.0, "start": at_start, "in_database": in_database}
        Membership(table, "a", ["pay"], **options).join()
        Membership(GroupTable(lake.tables, f"g{in_database}"), "b", ["pay"], **options).join()
        options["in_database"] = not in_database
        other = Membership(table, "c", ["pay"], **options)
        with pytest.raises(
            SettingsError, match=r"member a keeps positions in .*; stop all members, then start the new"
        ):
            other.join()
        assert from_rows(to_rows(table.state)) == table.state
        assert {name: each.in_database for name, each in table.state.members.items()} == dict.fromkeys(
            "ab", in_database
        )
        table.written_at = lambda: 0  # type: ignore[method-assign]
        other.join()
        assert {name: each.in_database for name, each in table.state.members.items()} == {"c": not in_database}


def idle(one: Membership, commit: bool = False) -> bool:
    """A step of a member that gives back what it is to give back."""
    owned = one.owned()
    return one.step(owned, one.to_give_back(), commit, None)


def test_a_dead_member_s_queues_are_taken_after_a_session_by_the_watcher_s_clock(lake: Published) -> None:
    clock = Clock()
    one, two = member(lake, "a", clock), member(lake, "b", Clock(5.0))
    for each in (one, one, two, one):
        idle(each)
    assert (len(one.owned()), len(two.owned())) == (32, 32)
    clock.now += 9.9
    idle(one)
    assert len(one.owned()) == 32
    clock.now += 0.2
    idle(one)
    assert len(one.owned()) == QUEUES
    assert not idle(two)  # it was taken for dead, and learns it


def test_a_member_that_beats_is_not_dead(lake: Published) -> None:
    clock, other = Clock(), Clock(5.0)
    one, two = member(lake, "a", clock), member(lake, "b", other)
    idle(one)
    for _ in range(10):
        clock.now += 4
        other.now += 4
        assert idle(two)
        assert idle(one)
    assert (len(one.owned()), len(two.owned())) == (32, 32)


def test_a_member_that_cannot_beat_stops_before_it_is_taken_for_dead(lake: Published) -> None:
    clock = Clock()
    one = member(lake, "a", clock)
    clock.now += 7.9
    assert one.holds()
    clock.now += 0.2
    assert not one.holds()
    idle(one)
    assert one.holds()


def test_a_member_is_judged_by_its_own_session(lake: Published) -> None:
    """Not by the watcher's, which may have been changed since."""
    clock = Clock()
    one = member(lake, "a", clock)
    patient = Membership(GroupTable(lake.tables, "g"), "b", ["pay"], 60.0, at_start, Clock())
    patient.join()
    for each in (one, one, patient, one):
        idle(each)
    clock.now += 50
    idle(one)
    assert len(one.owned()) == 32
    clock.now += 11
    idle(one)
    assert len(one.owned()) == QUEUES


def test_a_late_position_is_fenced(lake: Published) -> None:
    clock = Clock()
    slow, quick = member(lake, "a", Clock()), member(lake, "b", clock)
    mine = slow.owned()
    for _ in range(2):
        idle(quick)
        clock.now += 10.1
    late = {queue: QueueState(Position({"late": 1}), (), (), 0, "a", state.epoch) for queue, state in mine.items()}
    assert not slow.step(late, (), True, None)
    slow.leave(late)
    slow.join()
    assert all(state.position.consumed == {} for state in GroupTable(lake.tables, "g").state.queues.values())


def test_what_an_operator_adds_is_kept_and_told(lake: Published) -> None:
    one = member(lake, "a", Clock())
    queue = MessageQueue("pay", 3)
    retry = Retry(MessageKey(BatchKey("a", 1, 2), 0, 7), 1, 5, "resumed by ops")

    def add(state: GroupState) -> GroupState:
        found = state.queues[queue]
        return state.with_queues({queue: QueueState(found.position, (retry,), (), 0, found.owner, found.epoch)})

    mine = one.owned()
    GroupTable(lake.tables, "g").update(add)
    assert one.step(mine, (), True, None)
    assert one.added == {queue: [retry]}
    assert one.owned()[queue].retries == (retry,)


class UnansweredTable(GroupTable):
    """Its commits are done, and answered with an error, unless it ``answers``."""

    answers = True

    def update(self, change: Callable[[GroupState], GroupState | None]) -> GroupState | None:
        if self.answers:
            return super().update(change)
        GroupTable(Tables.of(Storage(root=self._root, sync=False)), "g").update(change)
        raise StorageError("no answer", "g")


def test_a_member_s_own_retry_that_a_commit_answered_with_an_error_has_kept(lake: Published) -> None:
    """It is consumed meanwhile, and is no operator's."""
    table = UnansweredTable(lake.tables, "g")
    one = Membership(table, "a", ["pay"], 10.0, at_start, Clock())
    one.join()
    queue = MessageQueue("pay", 3)
    before = one.owned()[queue]
    table.answers = False
    failed = replace(before, retries=(Retry(MessageKey(BatchKey("a", 1, 2), 0, 7), 1, 5, "ValueError"),))
    with pytest.raises(StorageError):
        one.step({queue: failed}, (), True, None)
    table.answers = True
    assert one.step({queue: before}, (), True, None)
    assert one.added == {}
    assert one.owned()[queue].retries == ()


def test_what_an_operator_adds_after_a_commit_that_was_answered_with_an_error(lake: Published) -> None:
    """By which the member has taken the queue."""
    table = UnansweredTable(lake.tables, "g")
    one = Membership(table, "a", ["pay"], 10.0, at_start, Clock())
    one.join()
    two = member(lake, "b", Clock())
    for each in (one, one, two, one):
        idle(each)
    two.leave(two.owned())
    table.answers = False
    with pytest.raises(StorageError):
        idle(one)
    table.answers = True
    idle(one)
    mine = one.owned()
    assert len(mine) == QUEUES
    queue = MessageQueue("pay", 63)
    retry = Retry(MessageKey(BatchKey("a", 1, 2), 0, 7), 1, 5, "resumed by ops")

    def add(state: GroupState) -> GroupState:
        return state.with_queues({queue: replace(state.queues[queue], retries=(retry,))})

    GroupTable(lake.tables, "g").update(add)
    assert one.step(mine, (), True, None)
    assert one.added == {queue: [retry]}
    assert one.owned()[queue].retries == (retry,)


def test_many_commits_leave_few_files(lake: Published) -> None:
    import os

    table = GroupTable(lake.tables, "g")
    one = Membership(table, "a", ["pay"], 10.0, at_start, Clock())
    one.join()
    for _ in range(210):
        one.step(one.owned(), (), True, None)
    assert GroupTable(lake.tables, "g").state == table.state
    log = os.listdir(f"{lake.tables.location('consumer_groups/g')}/_delta_log")
    assert any("checkpoint" in name for name in log)


NAMES = st.sampled_from("abcde")
MEMBERS = st.dictionaries(NAMES, st.frozensets(st.sampled_from(["pay", "refunds"]), min_size=1), min_size=1)


@given(MEMBERS)
def test_queues_are_shared_evenly_among_those_that_subscribe(members: dict[str, frozenset[str]]) -> None:
    allocated = rebalance.allocate(Member(name, 1, 0, topics) for name, topics in members.items())
    for topic in ("pay", "refunds"):
        mine = [name for name, topics in members.items() if topic in topics]
        shares = [
            sum(1 for queue, owner in allocated.items() if (queue.topic, owner) == (topic, name)) for name in mine
        ]
        assert sum(shares) == (QUEUES if mine else 0)
        assert max(shares, default=0) - min(shares, default=0) <= 1


@given(st.lists(st.tuples(st.sampled_from(["join", "leave", "die", "step"]), NAMES), max_size=30))
def test_no_queue_has_two_owners_and_each_gets_one(events: list[tuple[str, str]]) -> None:
    """Random histories; at the end all members step until nothing changes."""
    state = GroupState()

    def step(state: GroupState, name: str) -> GroupState:
        back = rebalance.to_give_back(state, name)
        state = state.with_queues(
            {queue: QueueState(Position(), (), (), 0, None, state.queues[queue].epoch) for queue in back}
        )
        return rebalance.take(state, name)

    for event, name in events:
        if event == "join":
            state = rebalance.join(state, Member(name, 1, 0, frozenset(["pay"])), {"pay": Position()})
        elif name in state.members:
            state = step(state, name) if event == "step" else rebalance.leave(state, name)
    for _ in range(3):
        for name in sorted(state.members):
            state = step(state, name)
    owners = {found.owner for found in state.queues.values()}
    if state.members:
        assert owners == set(state.members)
    assert from_rows(to_rows(state)) == state


KEY = MessageKey(BatchKey("a", 1, 2), 0, 7)


def test_a_state_is_read_as_it_was_written() -> None:
    queue = QueueState(
        Position({"a": 3}, KEY, 5, {"a": 7}),
        (Retry(KEY, 2, 9, "why"), Retry(KEY._replace(half_queue_offset=8), 1, 9, "why", 4)),
        ((4, DeadLetter(KEY, 16, 8, "x")),),
        4,
        "m",
        2,
    )
    members = {"m": Member("m", 3, 1, frozenset(["pay"]), "error")}
    state = GroupState(members, {MessageQueue("pay", 1): queue}, {Death("pay", 0, 7, 8): "resumed by a"})
    assert from_rows(to_rows(state)) == state


@pytest.mark.parametrize("kind", ["MEMBER", "QUEUE"])
def test_rows_that_somebody_has_deleted_are_forgotten(kind: str) -> None:
    """With what hangs on them: docs/tables.md lets one delete any."""
    queue = QueueState(Position({"a": 3}), (Retry(KEY, 2, 9, "why"),), ((4, DeadLetter(KEY, 16, 8, "x")),), 4, "m", 2)
    state = GroupState({"m": Member("m", 3, 1, frozenset(["pay"]))}, {MessageQueue("pay", 1): queue}, {})
    rows = to_rows(state)
    left = from_rows(rows.filter(pc.not_equal(rows.column("kind"), kind)))
    assert left == (replace(state, members={}) if kind == "MEMBER" else replace(state, queues={}))
