"""Which member of a consumer group owns which queue. Pure: no clock, no I/O.

Each change is a function from the state that was read to the state to be written, on condition that nobody has written
meanwhile (`group_table`). Queues are shared out evenly (AllocateMessageQueueAveragely of RocketMQ). A queue changes its
owner in two steps, so that no two members consume it at once: its owner gives it back once it has finished what it has
in hand, then the next one takes it. Those of a member that is dead are taken at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from checkback.consumer.group.group_state import MessageQueue, QueueState
from checkback.consumer.position import QUEUES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from checkback.consumer.group.group_state import GroupState, Member
    from checkback.consumer.position import Position


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
