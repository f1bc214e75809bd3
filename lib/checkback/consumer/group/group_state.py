"""The state of a consumer group: members, the queues they own, positions, retries. Pure: no clock, no I/O.

Each change is a function from the state that was read to the state to be written, on condition that nobody has written
meanwhile (`group_table`). Queues are shared out evenly (AllocateMessageQueueAveragely of RocketMQ). A queue changes its
owner in two steps, so that no two members consume it at once: its owner gives it back once it has finished what it has
in hand, then the next one takes it. Those of a member that is dead are taken at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from checkback.consumer.position import QUEUES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from checkback.consumer.position import Position
    from checkback.consumer.retry import DeadLetter, Retry


class MessageQueue(NamedTuple):
    """A consume queue of a topic: its messages with this real_queue_id modulo 64."""

    topic: str
    queue_id: int


@dataclass(frozen=True)
class QueueState:
    """A queue's position and retries; ``dead_letters``: how many messages were given up.

    ``dead``: those of them, with their numbers, that may not be in the table `dead_letters` yet. ``epoch``: how often
    its owner changed; ``owner``: the member that consumes it, None = nobody. ``resumed_until``: in SqlPositions, the
    latest ``due_at`` of an operator's retries that were taken over from the group's table (ms).
    """

    position: Position
    retries: tuple[Retry, ...] = ()
    dead: tuple[tuple[int, DeadLetter], ...] = ()
    dead_letters: int = 0
    owner: str | None = None
    epoch: int = 0
    resumed_until: int = 0

    def with_resumed(self, retries: Iterable[Retry]) -> QueueState:
        """With those of an operator's retries that were not taken over before."""
        known = {each.message for each in self.retries}
        new = [each for each in retries if each.resumed and each.due_at > self.resumed_until]
        until = max((each.due_at for each in new), default=self.resumed_until)
        added = tuple(each for each in new if each.message not in known)
        return replace(self, retries=(*self.retries, *added), resumed_until=until)


@dataclass(frozen=True)
class Member:
    """A process of the group.

    ``heartbeat``: a counter, which changes some times in each ``session_ms``; ``joined_at``: ms; ``topics``: those that
    it subscribes.
    """

    name: str
    heartbeat: int
    joined_at: int
    topics: frozenset[str]
    last_error: str | None = None
    session_ms: int = 10_000


@dataclass(frozen=True)
class GroupState:
    """All members and queues."""

    members: Mapping[str, Member] = field(default_factory=dict)
    queues: Mapping[MessageQueue, QueueState] = field(default_factory=dict)

    def owned(self, member: str) -> dict[MessageQueue, QueueState]:
        """The queues that the member owns."""
        return {queue: state for queue, state in self.queues.items() if state.owner == member}

    def with_queues(self, changed: Mapping[MessageQueue, QueueState]) -> GroupState:
        """With these queues in place of their old states."""
        return replace(self, queues={**self.queues, **changed})


def allocate(members: Iterable[Member]) -> dict[MessageQueue, str]:
    """Which member is to own each queue of each topic: consecutive queues, numbers that differ by one at most.

    Among the members that subscribe to the topic, in the order of their names.
    """
    by_topic: dict[str, list[str]] = {}
    for member in members:
        for topic in member.topics:
            by_topic.setdefault(topic, []).append(member.name)
    return {
        MessageQueue(topic, queue_id): names[queue_id * len(names) // QUEUES]
        for topic, found in by_topic.items()
        for names in [sorted(found)]
        for queue_id in range(QUEUES)
    }


def join(state: GroupState, member: Member, start: Mapping[str, Position]) -> GroupState:
    """With the member; queues of topics that the group has never consumed begin at ``start``, by topic."""
    known = {queue.topic for queue in state.queues}
    new = {
        MessageQueue(topic, queue_id): QueueState(start[topic])
        for topic in member.topics
        if topic not in known
        for queue_id in range(QUEUES)
    }
    return take(replace(state.with_queues(new), members={**state.members, member.name: member}), member.name)


def leave(state: GroupState, *names: str) -> GroupState:
    """Without these members; their queues are nobody's."""
    members = {name: member for name, member in state.members.items() if name not in names}
    orphaned = {queue: replace(found, owner=None) for queue, found in state.queues.items() if found.owner in names}
    return replace(state.with_queues(orphaned), members=members)


def take(state: GroupState, name: str) -> GroupState:
    """The member takes those of its queues that nobody owns, or somebody who is no member any more."""
    allocated = allocate(state.members.values())
    taken = {
        queue: replace(found, owner=name, epoch=found.epoch + 1)
        for queue, found in state.queues.items()
        if allocated.get(queue) == name and (found.owner is None or found.owner not in state.members)
    }
    return state.with_queues(taken) if taken else state


def to_give_back(state: GroupState, name: str) -> set[MessageQueue]:
    """The queues that the member owns and another one is to own."""
    allocated = allocate(state.members.values())
    return {queue for queue in state.owned(name) if allocated.get(queue) != name}


def beat(state: GroupState, name: str, last_error: str | None) -> GroupState:
    """With one more heartbeat of the member."""
    member = state.members[name]
    beaten = replace(member, heartbeat=member.heartbeat + 1, last_error=last_error)
    return replace(state, members={**state.members, name: beaten})
