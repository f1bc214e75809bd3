"""The state of a consumer group: members, the queues they own, positions, retries. Pure: no clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from checkback.consumer.position import Position  # noqa: TC001 - msgspec reads the types of a QueueState
from checkback.consumer.retry_or_dead_letter import DeadLetter, Retry, holding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class MessageQueue(NamedTuple):
    """A consume queue of a topic: its messages with this real_queue_id modulo 64."""

    topic: str
    queue_id: int


class Death(NamedTuple):
    """That a message was given up. ``dead_at``: ms, by the clock of the member that did.

    Deaths of a message are told apart by it; clocks differ, so it does not tell their order.
    """

    topic: str
    half_queue_id: int
    half_queue_offset: int
    dead_at: int


@dataclass(frozen=True)
class QueueState:
    """A queue's position and retries; ``dead_letters``: how many messages were given up.

    ``dead``: those of them, with their numbers, that may not be in the table `dead_letters` yet. ``epoch``: how often
    its owner changed; ``owner``: the member that consumes it, None = nobody. ``resumed_until``: in SqlPositions, the
    latest ``due_at`` of an operator's retries that were taken over from the group's table (ms). ``kept_by``: in the
    group's table, the `KeptState.state_id` of the row of SqlPositions that it is a copy of; None = of none.
    ``reset_id``: of the position that an operator has set: in the group's table until its owner has kept it, in
    SqlPositions the last one that was taken over.
    """

    position: Position
    retries: tuple[Retry, ...] = ()
    dead: tuple[tuple[int, DeadLetter], ...] = ()
    dead_letters: int = 0
    owner: str | None = None
    epoch: int = 0
    resumed_until: int = 0
    kept_by: str | None = None
    reset_id: str | None = None

    def reset(self, position: Position, reset_id: str) -> QueueState:
        """At a position that an operator has set; retries and dead letters whose message comes again are dropped."""
        retries = tuple(each for each in self.retries if position.has(each.message))
        dead = tuple(each for each in self.dead if position.has(each[1].message))
        return replace(self, position=position, retries=retries, dead=dead, reset_id=reset_id)

    @property
    def held(self) -> Retry | None:
        """The retry that blocks the queue, in order; None = none."""
        return holding(self.retries, self.position)

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

    ``heartbeat``: a counter, which changes some times in each ``session_timeout_ms``; ``joined_at``: ms; ``topics``:
    those that it subscribes; ``selectors``: by topic, of those of which it does not take all messages. ``in_database``:
    it keeps positions by SqlPositions.
    """

    name: str
    heartbeat: int
    joined_at: int
    topics: frozenset[str]
    last_error: str | None = None
    session_timeout_ms: int = 10_000
    selectors: Mapping[str, str] = field(default_factory=dict)
    in_database: bool = False

    @property
    def subscription(self) -> dict[str, str]:
        """By topic its selector, ``*`` = all messages."""
        return {topic: self.selectors.get(topic, "*") for topic in sorted(self.topics)}


@dataclass(frozen=True)
class GroupState:
    """All members and queues.

    ``resumed``: deaths whose message an operator has had consumed again, until `operations` has them too; each with the
    reason of its retry.
    """

    members: Mapping[str, Member] = field(default_factory=dict)
    queues: Mapping[MessageQueue, QueueState] = field(default_factory=dict)
    resumed: Mapping[Death, str] = field(default_factory=dict)

    @property
    def removed(self) -> bool:
        """True if an operator has removed the group, or nobody has joined it yet."""
        return not self.members and not self.queues

    def owned(self, member: str) -> dict[MessageQueue, QueueState]:
        """The queues that the member owns."""
        return {queue: state for queue, state in self.queues.items() if state.owner == member}

    def unlike(self, member: str) -> list[Member]:
        """The members that do not subscribe as this one does: a group has one subscription (RocketMQ).

        Each filters the queues that it owns, so messages that only others select are lost to the group.
        """
        mine = self.members.get(member)
        return [each for each in self.members.values() if mine and each.subscription != mine.subscription]

    def with_queues(self, changed: Mapping[MessageQueue, QueueState]) -> GroupState:
        """With these queues in place of their old states."""
        return replace(self, queues={**self.queues, **changed})
