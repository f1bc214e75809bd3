"""Positions of a consumer group, set or dropped, as `group reset`, `remove-topic` and `remove` ask for.

The group's table is written in one commit, on condition that no living member consumes what it concerns; whoever joins
next begins there. Then `operations` gets a row for each topic.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from checkback.consumer.batch_log import BatchLog
from checkback.consumer.consume_from_where import StartFrom, parse_start, start_position
from checkback.consumer.dead_letter_requests import ResumptionLedger, dead_letters
from checkback.consumer.group.group_lag import lives
from checkback.consumer.group.group_reader import chosen_groups, no_such_group, read_group
from checkback.consumer.group.group_state import GroupState
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.group.lag_reader import unread_of
from checkback.consumer.group.rebalance import leave
from checkback.consumer.reconsume import without_recorded
from checkback.consumer.retry_or_dead_letter import RESUMED
from checkback.consumer.topic_reader import TopicReader
from checkback.errors import SettingsError, StorageError
from checkback.operate.operations import OperatorSignature, row_of_no_transaction
from checkback.operate.permissions import RefusedError
from checkback.storage.log.delta_log import AlteredError, DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.timestamps import time_of
from checkback.storage.valid_texts import CONSUMER_GROUP, CONSUMER_GROUP_END

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from checkback.consumer.group.group_state import MessageQueue, QueueState
    from checkback.consumer.position import Position
    from checkback.consumer.reconsume import Judged
    from checkback.storage.tables import Tables

RESET, REMOVE_TOPIC, REMOVE_GROUP = "RESET_POSITION", "REMOVE_TOPIC", "REMOVE_GROUP"
_LEDGER = "operations"
COLUMNS = ("topic", "lag", "consumed again", "skipped", "lag then", "retries", "retries dropped")


@dataclass(frozen=True)
class Request:
    """The options of a command. ``topic``: None = all; ``to``: of RESET, and ``said`` as it was given."""

    action: str
    group: str
    topic: str | None
    signed: OperatorSignature
    to: StartFrom = "first"
    said: str = ""

    @property
    def resumed_by(self) -> str:
        """Who resumes the dead letters whose message comes again."""
        return f"{RESUMED}{self.signed.actor}"

    @classmethod
    def reset(cls, group: str, topic: str | None, to: str, actor: str, reason: str) -> Request:
        """Validate the options. Raises SettingsError."""
        return cls(RESET, group, topic, OperatorSignature.of(actor, reason), parse_start(to, "--to"), to)

    @classmethod
    def remove(cls, group: str, topic: str | None, actor: str, reason: str) -> Request:
        """Validate the options; without a topic the whole group. Raises SettingsError."""
        action = REMOVE_GROUP if topic is None else REMOVE_TOPIC
        return cls(action, group, topic, OperatorSignature.of(actor, reason))


class TopicChange(NamedTuple):
    """What becomes of a topic: messages not consumed now and then, those consumed again or never; retries now.

    Counts are None if the topic's table cannot be read. ``dropped``: of the retries.
    """

    topic: str
    lag: int | None
    again: int | None
    skipped: int | None
    lag_then: int | None
    retries: int
    dropped: int


@dataclass(frozen=True)
class Plan:
    """What a command would do. ``silent``: heartbeats of members that are not heard of any more.

    ``position``: of RESET; ``in_database``: some positions are kept by SqlPositions. ``dead``: dead letters whose
    message comes again.
    """

    topics: tuple[TopicChange, ...]
    silent: Mapping[str, int]
    position: Position | None
    in_database: bool
    dead: tuple[Judged, ...] = ()


def look(tables: Tables, request: Request, now: int) -> Plan:
    """What the command would do. Read only. ``now``: ms.

    Raises SettingsError if there is no such group, topic or batch, RefusedError if a living member consumes it,
    StorageError.
    """
    chosen_groups(tables, request.group)
    stored = read_group(tables, request.group)
    state = stored.state
    if state.removed:
        raise no_such_group(tables, request.group)
    topics = sorted({queue.topic for queue in state.queues})
    if request.topic is not None and request.topic not in topics:
        raise SettingsError("the group has consumed no such topic", request.topic, f"it has {', '.join(topics[:10])}")
    silent = {name: each.heartbeat for name, each in state.members.items() if not lives(each, stored.written_at, now)}
    changed(state, request, silent, None, "")  # refused before anything is counted
    log = BatchLog(tables)
    log.refresh()
    position = start_position(log, request.to, "--to") if request.action == RESET else None
    chosen = _chosen(state, request)
    changes = [
        _change(tables, log, {queue: each for queue, each in chosen.items() if queue.topic == topic}, topic, position)
        for topic in sorted({queue.topic for queue in chosen})
    ]
    in_database = any(each.kept_by is not None for each in chosen.values())
    again: list[Judged] = []
    if position is not None:
        dead = dead_letters(tables, request.group, request.topic, (), request.resumed_by)
        again = [one for one in dead if one.deaths and one.key is not None and not position.has(one.key)]
    return Plan(tuple(changes), silent, position, in_database, tuple(again))


def changed(
    state: GroupState,
    request: Request,
    silent: Mapping[str, int],
    position: Position | None,
    reset_id: str,
    dead: Iterable[Judged] = (),
) -> GroupState:
    """The group's state after the command. Pure.

    Deaths of messages that come again are resumed by it: `reconsume` would have these consumed twice.
    Members in ``silent``, with these heartbeats, are taken for dead: one that comes back finds that it is no member,
    and joins again. Raises RefusedError if others subscribe to what is changed.
    """
    concerned = {
        name: each for name, each in state.members.items() if request.topic is None or request.topic in each.topics
    }
    living = sorted(name for name, each in concerned.items() if silent.get(name) != each.heartbeat)
    if living:
        more = f" and {len(living) - 1} more" if living[1:] else ""
        raise RefusedError(
            f"is being consumed by {living[0]}{more}",
            f"{request.group}{'' if request.topic is None else f', {request.topic}'}",
            "stop the members, then run it again; one that was killed counts for three of its sessions",
        )
    if request.action == REMOVE_GROUP:
        return GroupState()
    left = leave(state, *concerned)
    chosen = _chosen(left, request)
    if request.action == REMOVE_TOPIC:
        queues = {queue: each for queue, each in left.queues.items() if queue not in chosen}
        resumed = {death: by for death, by in left.resumed.items() if death.topic != request.topic}
        return replace(left, queues=queues, resumed=resumed)
    if position is None:
        return left
    resumed = {death: request.resumed_by for one in dead for death in one.deaths} | dict(left.resumed)
    reset = left.with_queues({queue: each.reset(position, reset_id) for queue, each in chosen.items()})
    return replace(reset, resumed=resumed)


def act(tables: Tables, request: Request, plan: Plan, now: int) -> None:
    """Do it, then record it. ``now``: ms. Raises RefusedError if a member has joined meanwhile, StorageError."""
    ledger = DeltaLog.created(_LEDGER, tables.location(_LEDGER), tables.sync)
    if not ledger.appendable():
        what = "somebody has clustered, partitioned or altered the table"
        raise AlteredError(what, tables.location(_LEDGER), "undo it, then run again")
    change = plan.silent, plan.position, uuid.uuid4().hex, plan.dead
    group = GroupTable(tables, request.group)
    group.update(lambda state: changed(state, request, *change))
    topics = [each.topic for each in plan.topics] or [""]
    try:
        with FileWriter(tables.root, sync=tables.sync) as writer:
            writer.write(_LEDGER, pa.concat_tables([_row(request, topic, now) for topic in topics]))
            files = writer.close()
        ledger.commit(files)
        if plan.dead:
            resumptions = ResumptionLedger(tables, request.group)
            resumptions.record(request.signed, plan.dead, now, ())
            group.update(lambda state: without_recorded(state, resumptions.recorded(state.resumed)))
    except StorageError as error:
        raise StorageError(f"it is done, but not recorded: {error.what}", error.where, error.fix) from error


def _row(request: Request, topic: str, now: int) -> pa.Table:
    """A row of `operations`."""
    about = f"{CONSUMER_GROUP}{request.group}{CONSUMER_GROUP_END}"
    to = f"to {request.said}: " if request.action == RESET else ""
    signed = request.signed._replace(reason=f"{about}{to}{request.signed.reason}")
    return row_of_no_transaction(time_of(now), request.action, signed, topic)


def _chosen(state: GroupState, request: Request) -> dict[MessageQueue, QueueState]:
    return {queue: each for queue, each in state.queues.items() if request.topic in (None, queue.topic)}


def _change(
    tables: Tables, log: BatchLog, queues: Mapping[MessageQueue, QueueState], topic: str, position: Position | None
) -> TopicChange:
    """``position``: None = the queues are dropped. Raises StorageError if messages to be set to cannot be counted."""
    retries = sum(len(each.retries) for each in queues.values())
    reader = TopicReader(tables, topic, log)
    try:
        now = unread_of(log, reader, {queue.queue_id: each.position for queue, each in queues.items()})
    except StorageError:
        if position is not None:
            raise
        return TopicChange(topic, None, None, None, None, retries, retries)
    lag = sum(each.messages for each in now.values())
    if position is None:
        return TopicChange(topic, lag, 0, lag, 0, retries, retries)
    then = unread_of(log, reader, {queue.queue_id: position for queue in queues})
    more = [
        (then[at].messages if at in then else 0) - (now[at].messages if at in now else 0)
        for at in (queue.queue_id for queue in queues)
    ]
    kept = sum(len(each.reset(position, "").retries) for each in queues.values())
    again, skipped = sum(each for each in more if each > 0), -sum(each for each in more if each < 0)
    return TopicChange(topic, lag, again, skipped, lag + again - skipped, retries, retries - kept)


# What is shown


def follows(request: Request, plan: Plan) -> str:
    """What the command will do."""
    if request.action == RESET:
        return (
            f"The group {request.group} goes on at {request.said} with these topics once a member runs. Messages are "
            "counted whether the members' selectors match or not. Retries of messages that come again are dropped, and "
            f"their dead letters ({len(plan.dead)}) count as resumed; others stay. A listener that uses idempotent() "
            "leaves out what it has a mark of: delete the group's marks (MessageApply) first."
        )
    what = "The group" if request.topic is None else f"The topic {request.topic}"
    again = "A member that subscribes to it later begins at its `start_from`; rows of `dead_letters` stay."
    return f"{what} is removed: positions and retries are dropped. {again}{_rows_of(request, plan)}"


def _rows_of(request: Request, plan: Plan) -> str:
    """What else is to be deleted if the positions are in a database, which this command does not know."""
    if not plan.in_database:
        return ""
    topic = "" if request.topic is None else f" and topic {request.topic!r}"
    return (
        " Its positions are also in the consumer's database (SqlPositions): delete the rows of consumer_group "
        f"{request.group!r}{topic} there, or it goes on from them."
    )


def as_json(request: Request, plan: Plan, done: bool) -> dict[str, Any]:
    """What is asked for, and what becomes of each topic."""
    names = ("topic", "lag_messages", "again", "skipped", "lag_messages_then", "retries", "retries_dropped")
    return {
        "done": done,
        "action": request.action,
        "group": request.group,
        "to": request.said or None,
        "actor": request.signed.actor,
        "reason": request.signed.reason,
        "topics": [dict(zip(names, each, strict=True)) for each in plan.topics],
        "follows": follows(request, plan),
    }
