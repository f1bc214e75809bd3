"""How far the members of a consumer group are. Pure: no clock, no I/O. Times are ms since 1970."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from checkback.consumer.group.group_state import GroupState, Member, MessageQueue, QueueState
    from checkback.consumer.message_rows import Unread
    from checkback.consumer.position import Position
    from checkback.consumer.retry_or_dead_letter import Retry


#: sessions without a heartbeat after which a member counts as dead: three, as its clock may differ from this one
_SESSIONS = 3


@dataclass(frozen=True)
class _Lag:
    """What queues, topics and groups have.

    ``messages``: those of complete batches that are not consumed, whichever of them the members' selectors match.
    ``seconds``: since the batch of the oldest of them; 0 = none. ``retries``: messages to be consumed again, and when
    the first is due, None = none. ``dead_letters``: messages given up so far. Counts are None if not known: all if the
    group's table cannot be read, messages and seconds if a topic's cannot.
    """

    messages: int | None
    seconds: float | None
    retries: int | None
    next_retry_at: int | None
    dead_letters: int | None


@dataclass(frozen=True)
class QueueLag(_Lag):
    """A consume queue. ``owner``: the member that consumes it, None = nobody.

    ``held``: the message that holds it up, in order, until it is consumed; None = none does.
    """

    queue_id: int
    owner: str | None
    position: Position
    held: Retry | None = None


@dataclass(frozen=True)
class TopicLag(_Lag):
    """A topic; ``queues``: all 64. ``owned``: how many of them have a member that consumes them.

    ``damaged``: why its table cannot be read. ``subscribed``: by a member that lives; None = no member does.
    ``missing``: it has no table yet. ``missed``: messages that retention has removed so far before the group had
    consumed them; None = not known.
    """

    topic: str
    owned: int
    queues: tuple[QueueLag, ...]
    damaged: str | None = None
    subscribed: bool | None = None
    missing: bool = False
    missed: int | None = 0


@dataclass(frozen=True)
class MemberState:
    """A member. ``queues``: how many it owns; ``last_error``: type and place, None = none.

    ``lives``: False if the group has not been written for three of its sessions: it would have beaten. A member that
    is killed stays in the group's state until another one takes over. ``selectors``: as in `Member`.
    """

    name: str
    joined_at: int
    topics: tuple[str, ...]
    queues: int
    last_error: str | None
    lives: bool = True
    selectors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupLag(_Lag):
    """A group. ``written_at``: when a member last wrote its state; long ago if all of them are gone, None = not known.

    ``damaged``: why its table cannot be read, of which nothing else is known then; or that of a topic.
    """

    group: str
    written_at: int | None
    members: tuple[MemberState, ...]
    topics: tuple[TopicLag, ...]
    damaged: str | None = None

    @property
    def held(self) -> list[tuple[str, int, Retry]]:
        """(topic, queue, blocking message) of the blocked queues, in order."""
        return [
            (topic.topic, queue.queue_id, queue.held)
            for topic in self.topics
            for queue in topic.queues
            if queue.held is not None
        ]

    @property
    def living(self) -> frozenset[str]:
        """The names of the members that live."""
        return frozenset(each.name for each in self.members if each.lives)

    @property
    def differs(self) -> bool:
        """True if members that live do not subscribe alike."""
        return len({(each.topics, *sorted(each.selectors.items())) for each in self.members if each.lives}) > 1

    @property
    def unsubscribed(self) -> tuple[str, ...]:
        """The topics that no member subscribes to, though some live."""
        return tuple(each.topic for each in self.topics if each.subscribed is False)

    @property
    def missing(self) -> tuple[str, ...]:
        """The topics that have no table yet, whose names may be mistyped."""
        return tuple(each.topic for each in self.topics if each.missing)


def group_lag(
    group: str,
    state: GroupState,
    written_at: int,
    unread: Mapping[MessageQueue, Unread],
    now: int,
    damaged: Mapping[str, str] = MappingProxyType({}),
    missing: Collection[str] = (),
    missed: Mapping[str, int] = MappingProxyType({}),
) -> GroupLag:
    """A group's state, with what its queues have not consumed; ``unread``: queues without any are left out.

    ``damaged``: why it is not known of topics; ``missing``: topics that have no table yet; ``missed``: by topic.
    """
    by_topic: dict[str, list[QueueLag]] = {}
    for queue, found in sorted(state.queues.items()):
        left = None if queue.topic in damaged else _unread(unread.get(queue), now)
        by_topic.setdefault(queue.topic, []).append(_queue_lag(queue, found, left))
    members = tuple(
        MemberState(
            each.name,
            each.joined_at,
            tuple(sorted(each.topics)),
            len(state.owned(each.name)),
            each.last_error,
            lives(each, written_at, now),
            each.selectors,
        )
        for each in sorted(state.members.values(), key=lambda each: each.name)
    )
    living = [each for each in members if each.lives]
    subscribed = {topic for each in living for topic in each.topics}
    topics = tuple(
        TopicLag(
            *_total(tuple(queues)),
            topic,
            sum(each.owner is not None for each in queues),
            tuple(queues),
            damaged.get(topic),
            topic in subscribed if living else None,
            topic in missing,
            None if topic in damaged else missed.get(topic, 0),
        )
        for topic, queues in by_topic.items()
    )
    why = next((each.damaged for each in topics if each.damaged is not None), None)
    return GroupLag(*_total(topics), group, written_at, members, topics, why)


def lives(member: Member, written_at: int, now: int) -> bool:
    """Whether a member counts as alive, by when its group was last written."""
    return now - written_at <= _SESSIONS * member.session_timeout_ms


def damaged_group(group: str, why: str) -> GroupLag:
    """A group whose table cannot be read."""
    return GroupLag(None, None, None, None, None, group, None, (), (), why)


def _unread(found: Unread | None, now: int) -> tuple[int, float]:
    return (0, 0.0) if found is None else (found.messages, max(0, now - found.oldest) / 1000)


def _queue_lag(queue: MessageQueue, state: QueueState, unread: tuple[int, float] | None) -> QueueLag:
    messages, seconds = unread or (None, None)
    due = min((each.due_at for each in state.retries), default=None)
    counts = messages, seconds, len(state.retries), due, state.dead_letters
    return QueueLag(*counts, queue.queue_id, state.owner, state.position, state.held)


def _total(parts: tuple[_Lag, ...]) -> tuple[int | None, float | None, int | None, int | None, int | None]:
    seconds = [each.seconds for each in parts if each.seconds is not None]
    return (
        _sum(each.messages for each in parts),
        max(seconds, default=0.0) if len(seconds) == len(parts) else None,
        _sum(each.retries for each in parts),
        min((each.next_retry_at for each in parts if each.next_retry_at is not None), default=None),
        _sum(each.dead_letters for each in parts),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    """None if one is not known."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total
