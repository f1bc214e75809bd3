"""A group's state as the rows of its table ``consumer_groups/<group>``. Pure: no clock, no I/O."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.consumer.group.group_state import Death, GroupState, Member, MessageQueue, QueueState
from checkback.consumer.position import QUEUES, BatchKey, MessageKey, Position
from checkback.consumer.retry_or_dead_letter import DeadLetter, Retry
from checkback.storage.schemas import GROUP_PREFIX, arrow_schema, in_schema
from checkback.storage.timestamps import ms_of, time_of

if TYPE_CHECKING:
    from datetime import datetime


def to_rows(state: GroupState) -> pa.Table:
    """The columns of CONSUMER_GROUP: one row for each member, subscription, queue, retry and death."""
    rows = [*map(_member_row, state.members.values())]
    for member in state.members.values():
        rows += [_subscription_row(member, topic) for topic in sorted(member.topics)]
    for queue, found in sorted(state.queues.items()):
        rows.append(_queue_row(queue, found))
        rows += [_retry_row(queue, retry) for retry in found.retries]
        rows += [_dead_row(queue, number, dead) for number, dead in found.dead]
    rows += [_resumed_row(death, by) for death, by in state.resumed.items()]
    return pa.Table.from_pylist(rows, arrow_schema(GROUP_PREFIX))


def from_rows(rows: pa.Table) -> GroupState:
    """The state that `to_rows` has written. Without a queue's row, or a member's, its others are forgotten as well."""
    members: dict[str, Member] = {}
    queues: dict[MessageQueue, QueueState] = {}
    retries: dict[MessageQueue, list[Retry]] = {}
    dead: dict[MessageQueue, list[tuple[int, DeadLetter]]] = {}
    topics: dict[str, dict[str, str | None]] = {}
    resumed: dict[Death, str] = {}
    for row in in_schema(rows, arrow_schema(GROUP_PREFIX)).to_pylist():
        if row["kind"] == "MEMBER":
            joined = _ms(row["settled_at"]) or 0
            about = row["counter"], joined, frozenset[str](), row["reason"], row["session_timeout_ms"]
            members[row["member"]] = Member(row["member"], *about, in_database=row["kept_by"] is not None)
        elif row["kind"] == "SUBSCRIPTION":
            topics.setdefault(row["member"], {})[row["topic"]] = row["selector"]
        elif row["kind"] == "QUEUE":
            part = None if row["batch_id"] is None else _message(row)
            position = Position(dict(row["consumed"]), part, _ms(row["settled_at"]), _times(row))
            ids = {name: row[name] for name in ("kept_by", "reset_id")}
            state = QueueState(position, (), (), row["dead_letters"], row["member"], row["counter"], **ids)
            queues[MessageQueue(row["topic"], row["queue_id"])] = state
        elif row["kind"] == "RETRY":
            due_at, held_since = _ms(row["due_at"]) or 0, _ms(row["held_since"])
            retry = Retry(_message(row), row["reconsume_times"], due_at, row["reason"], held_since)
            retries.setdefault(MessageQueue(row["topic"], row["queue_id"]), []).append(retry)
        elif row["kind"] == "DEAD_LETTER":
            letter = DeadLetter(_message(row), row["reconsume_times"], _ms(row["due_at"]) or 0, row["reason"])
            dead.setdefault(MessageQueue(row["topic"], row["queue_id"]), []).append((row["counter"], letter))
        elif row["kind"] == "RESUMED":
            half = row["topic"], row["half_queue_id"], row["half_queue_offset"]
            resumed[Death(*half, _ms(row["due_at"]) or 0)] = row["reason"]
    queues |= {queue: replace(queues[queue], dead=tuple(found)) for queue, found in dead.items() if queue in queues}
    waiting = {queue: tuple(found) for queue, found in retries.items() if queue in queues}
    queues |= {queue: replace(queues[queue], retries=found) for queue, found in waiting.items()}
    for name, found in ((name, found) for name, found in topics.items() if name in members):
        selectors = {topic: selector for topic, selector in found.items() if selector is not None}
        members[name] = replace(members[name], topics=frozenset(found), selectors=selectors)
    return GroupState(members, queues, resumed)


def queue_of(real_queue_id: int | None) -> int:
    """The consume queue of a message."""
    return (real_queue_id or 0) % QUEUES


def _member_row(member: Member) -> dict[str, Any]:
    return {
        "kind": "MEMBER",
        "member": member.name,
        "counter": member.heartbeat,
        "settled_at": _time(member.joined_at),
        "reason": member.last_error,
        "session_timeout_ms": member.session_timeout_ms,
        "kept_by": "SqlPositions" if member.in_database else None,
    }


def _subscription_row(member: Member, topic: str) -> dict[str, Any]:
    selector = member.selectors.get(topic)
    return {"kind": "SUBSCRIPTION", "member": member.name, "topic": topic, "selector": selector}


def _queue_row(queue: MessageQueue, state: QueueState) -> dict[str, Any]:
    position = state.position
    row = {
        "kind": "QUEUE",
        "member": state.owner,
        "topic": queue.topic,
        "queue_id": queue.queue_id,
        "consumed": list(position.consumed.items()),
        "consumed_times": [(application, time_of(ms)) for application, ms in position.times.items()],
        "counter": state.epoch,
        "dead_letters": state.dead_letters,
        "kept_by": state.kept_by,
        "reset_id": state.reset_id,
        "settled_at": _time(position.settled_at),
    }
    return row if position.part is None else row | _message_columns(position.part)


def _retry_row(queue: MessageQueue, retry: Retry) -> dict[str, Any]:
    return {
        "kind": "RETRY",
        "topic": queue.topic,
        "queue_id": queue.queue_id,
        **_message_columns(retry.message),
        "reconsume_times": retry.times,
        "due_at": _time(retry.due_at),
        "reason": retry.reason,
        "held_since": _time(retry.held_since),
    }


def _dead_row(queue: MessageQueue, number: int, dead: DeadLetter) -> dict[str, Any]:
    row = _retry_row(queue, Retry(dead.message, dead.times, dead.dead_at, dead.reason))
    return row | {"kind": "DEAD_LETTER", "counter": number}


def _resumed_row(death: Death, by: str) -> dict[str, Any]:
    about = {"topic": death.topic, "due_at": _time(death.dead_at), "reason": by}
    half = {"half_queue_id": death.half_queue_id, "half_queue_offset": death.half_queue_offset}
    return {"kind": "RESUMED", **about, **half}


def _message_columns(message: MessageKey) -> dict[str, Any]:
    return {
        "application": message.batch.application,
        "batch_id": message.batch.batch_id,
        "batch_time": _time(message.batch.batch_time),
        "half_queue_id": message.half_queue_id,
        "half_queue_offset": message.half_queue_offset,
    }


def _times(row: dict[str, Any]) -> dict[str, int]:
    return {application: ms_of(time) for application, time in row["consumed_times"] or ()}


def _message(row: dict[str, Any]) -> MessageKey:
    batch = BatchKey(row["application"], row["batch_id"], _ms(row["batch_time"]) or 0)
    return MessageKey(batch, row["half_queue_id"], row["half_queue_offset"])


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else time_of(ms)


def _ms(time: datetime | None) -> int | None:
    return None if time is None else ms_of(time)
