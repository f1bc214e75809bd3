"""The lag of consumer groups on screen and as JSON. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checkback.consumer.group.group_lag import TopicLag
from checkback.messages.durations import span
from checkback.query.status.status import ConsumerFacts
from checkback.storage.timestamps import iso

if TYPE_CHECKING:
    from checkback.consumer.group.group_lag import GroupLag, MemberState, QueueLag
    from checkback.consumer.position import Position
    from checkback.consumer.retry_or_dead_letter import Retry

_COUNTS = ("lag", "behind", "retries", "next retry", "dead letters")
TOPICS = ("topic", "queues", *_COUNTS, "missed")
QUEUES = ("topic", "queue", "consumed up to", *_COUNTS, "owner")
HELD = ("topic", "queue", "blocked by", "since", "failed tries", "next try", "last error")
_NOT, _MISSING = "not subscribed", "not there yet"
#: what a group's heading says if its members subscribe differently
DIFFER = "members subscribe differently: messages that the owner of a queue does not select are lost to the group"
MEMBERS = ("member", "joined", "queues", "topics", "last error")


def facts_of(group: GroupLag, now: int) -> ConsumerFacts:
    """What `status` says of a group."""
    if group.written_at is None:
        return ConsumerFacts(group.group, None, None, None, None, None, group.damaged, None, None, held_queues=None)
    living, heard_s = len(group.living), (now - group.written_at) / 1000
    seconds = None if group.seconds is None else round(group.seconds, 3)
    counts = living, group.messages, seconds, group.retries, group.dead_letters
    silent = len(group.members) - living
    held_s = max((_for_s(held, now) for _, _, held in group.held), default=None)
    about = group.unsubscribed, len(group.held), held_s, group.missing
    return ConsumerFacts(group.group, *counts, group.damaged, silent, heard_s, *about)


def heading(group: GroupLag, now: int) -> str:
    """The line above a group's tables."""
    if group.damaged is not None or group.written_at is None:
        return f"{group.group}: {group.damaged}"
    silent = len(group.members) - len(group.living)
    dead = f" ({silent} not heard of any more)" if silent else ""
    differ = f"; {DIFFER}" if group.differs else ""
    written = f"last written {span((now - group.written_at) / 1000)} ago"
    return f"{group.group}: members {len(group.living)}{dead}, {written}{differ}"


def topic_rows(group: GroupLag, now: int) -> list[tuple[str, ...]]:
    """Rows of the table of topics, in TOPICS."""
    return [(each.topic, _queues(each), *_counts(each, now), _count(each.missed)) for each in group.topics]


def _queues(topic: TopicLag) -> str:
    return _NOT if topic.subscribed is False else f"{topic.owned}/{len(topic.queues)}"


def queue_rows(group: GroupLag, now: int) -> list[tuple[str, ...]]:
    """Rows of the table of queues, in QUEUES: those with anything to consume. `as_json` has all."""
    return [
        (topic.topic, str(each.queue_id), _settled(each.position), *_counts(each, now), each.owner or "-")
        for topic in group.topics
        for each in topic.queues
        if each.messages != 0 or each.retries
    ]


def held_rows(group: GroupLag, now: int) -> list[tuple[str, ...]]:
    """Rows of the table of blocked queues, in HELD; as half queue/offset, for `tx describe`."""
    return [
        (
            topic,
            str(queue_id),
            _place(held),
            f"{iso(held.held_since)}, for {span(_for_s(held, now))}" if held.held_since is not None else "-",
            str(held.times),
            _when(held.due_at, now),
            held.reason,
        )
        for topic, queue_id, held in group.held
    ]


def held_lines(group: GroupLag, now: int) -> list[str]:
    """`held_rows` as sentences."""
    return [
        f"{topic}, queue {queue}: blocked by message {place} since {since}; {tries} failed tries, the last: {error}"
        for topic, queue, place, since, tries, _, error in held_rows(group, now)
    ]


def idle(group: GroupLag) -> str:
    """The line about the queues that `queue_rows` leaves out; empty if there are none."""
    queues = [each for topic in group.topics for each in topic.queues if each.messages == 0 and not each.retries]
    alone = sum(each.owner is None for each in queues)
    told = f"nothing to consume in {len(queues)} queues" + (f", {alone} of them without an owner" if alone else "")
    return f"{told}; -o json shows all" if queues else ""


def member_rows(group: GroupLag) -> list[tuple[str, ...]]:
    """Rows of the table of members, in MEMBERS."""
    return [
        (each.name, iso(each.joined_at), str(each.queues), _subscription(each), each.last_error or "-")
        for each in group.members
    ]


def _subscription(member: MemberState) -> str:
    selectors = member.selectors
    return " ".join(f"{each} ({selectors[each]})" if each in selectors else each for each in member.topics)


def as_json(group: GroupLag) -> dict[str, Any]:
    """The group as docs/consumer.md describes it."""
    return {
        "group": group.group,
        "damaged": group.damaged,
        "written_at": None if group.written_at is None else iso(group.written_at),
        **_counts_json(group),
        "members": [_member_json(each) for each in group.members],
        "subscriptions_differ": group.differs,
        "topics": [
            {
                "topic": topic.topic,
                "damaged": topic.damaged,
                "subscribed": topic.subscribed,
                "missing": topic.missing,
                **_counts_json(topic),
                "missed_messages": topic.missed,
                "owned": topic.owned,
                "queues": [_queue_json(each) for each in topic.queues],
            }
            for topic in group.topics
        ],
    }


def _counts(lag: TopicLag | QueueLag, now: int) -> tuple[str, ...]:
    when = _when(lag.next_retry_at, now)
    behind = "?" if lag.seconds is None else span(lag.seconds) if lag.messages else "-"
    missing = isinstance(lag, TopicLag) and lag.missing
    return _MISSING if missing else _count(lag.messages), behind, _count(lag.retries), when, _count(lag.dead_letters)


def _when(due: int | None, now: int) -> str:
    return "-" if due is None else "now" if due <= now else f"in {span((due - now) / 1000)}"


def _place(held: Retry) -> str:
    return f"{held.message.half_queue_id}/{held.message.half_queue_offset}"


def _for_s(held: Retry, now: int) -> float:
    """For how long it has blocked its queue (s)."""
    return 0.0 if held.held_since is None else max(0, now - held.held_since) / 1000


def _count(count: int | None) -> str:
    return "?" if count is None else str(count)


def _counts_json(lag: GroupLag | TopicLag | QueueLag) -> dict[str, Any]:
    return {
        "lag_messages": lag.messages,
        "lag_s": lag.seconds,
        "retries": lag.retries,
        "next_retry_at": None if lag.next_retry_at is None else iso(lag.next_retry_at),
        "dead_letters": lag.dead_letters,
    }


def _queue_json(queue: QueueLag) -> dict[str, Any]:
    return {
        "queue_id": queue.queue_id,
        "owner": queue.owner,
        **_counts_json(queue),
        "held": None if queue.held is None else _held_json(queue.held),
        "position": _position_json(queue.position),
    }


def _held_json(held: Retry) -> dict[str, Any]:
    return {
        "half_queue_id": held.message.half_queue_id,
        "half_queue_offset": held.message.half_queue_offset,
        "since": None if held.held_since is None else iso(held.held_since),
        "failed_tries": held.times,
        "next_try_at": iso(held.due_at),
        "last_error": held.reason,
    }


def _member_json(member: MemberState) -> dict[str, Any]:
    return {
        "member": member.name,
        "joined_at": iso(member.joined_at),
        "topics": list(member.topics),
        "selectors": dict(member.selectors),
        "queues": member.queues,
        "last_error": member.last_error,
        "lives": member.lives,
    }


def _settled(position: Position) -> str:
    return "-" if position.settled_at is None else iso(position.settled_at)


def _position_json(position: Position) -> dict[str, Any]:
    part = position.part
    return {
        "settled_at": None if position.settled_at is None else iso(position.settled_at),
        "consumed": dict(position.consumed),
        "part": None
        if part is None
        else {
            "application": part.batch.application,
            "batch_id": part.batch.batch_id,
            "half_queue_id": part.half_queue_id,
            "half_queue_offset": part.half_queue_offset,
        },
    }
