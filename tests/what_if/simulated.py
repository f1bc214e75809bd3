"""A simulated history as a replay reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records import Kind, Reason, Source
from checkback.what_if.records import RECORDED, Answered, Row, State
from checkback.what_if.timeline import Timeline
from simulator.reconcile import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkback.reconcile.records import Records
    from simulator.world import World

_OUTCOMES = {outcome.name: outcome for outcome in Answered}


def timeline_of(world: World) -> tuple[Timeline, dict[int, int]]:
    """The batches that are in the tables, and the turn of each by its number."""
    query, rows = world.reconcile, world.tables.rows
    wrote = {row.batch for name in ("decisions", "deliveries", "check_requests") for row in rows[name]}
    numbers, applications, application = [], [], 0
    for number, planned in enumerate(query.offsets):
        application += planned.restored
        whole = number < query.committed and number not in query.void
        if not planned.restored and (whole or number in wrote):
            numbers.append(number)
            applications.append(application)
    planned = [query.offsets[number] for number in numbers]
    rules = tuple(dict.fromkeys(one.rules for one in planned))
    timeline = Timeline(
        np.array([one.time for one in planned], np.int64),
        np.array(applications, np.int64),
        rules,
        np.array([rules.index(one.rules) for one in planned], np.int64),
    )
    return timeline, {number: turn for turn, number in enumerate(numbers)}


def segments_of(world: World, turns: dict[int, int], size: int) -> dict[tuple[int, int], Records]:
    """RECORDED rows by (queue, segment number)."""
    found: dict[tuple[int, int], list[tuple[Any, ...]]] = {}
    for queue, row in _rows(world, turns):
        found.setdefault((queue, row[1] // size), []).append(row)
    return {key: np.array(rows, RECORDED) for key, rows in found.items()}


def _rows(world: World, turns: dict[int, int]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    rows = world.tables.rows
    for half in rows["half"]:
        kept = half.immunity, half.group, half.transaction, half.delay
        yield half.queue, (Row.HALF, half.offset, kind_of(half), 0, half.born, half.store, *kept, 0, 0, 0, 0)
    for op in rows["op"]:
        number = op.number
        if op.source == Source.CHECK and op.kind != Kind.DELIVERED:
            name = Kind(op.kind).name
            number = next(
                row.times
                for row in rows["check_answers"]
                if (row.queue, row.offset, row.outcome, row.at) == (op.queue, op.offset, name, op.born)
            )
        kept = op.born, op.store, number, op.group, op.transaction, 0
        yield op.queue, (Row.OP, op.offset, op.kind, op.source, *kept, 0, 0, 0, 0)
    for row in rows["decisions"]:
        state, reason = State[row.state], Reason[row.reason] if row.reason else 0
        source = Source.CHECKBACK if state == State.DISCARD else _source(world, row)
        kept = 0, 0, -1, row.group, row.transaction, row.deliver_at, row.times, reason, 0, turns[row.batch]
        yield row.queue, (Row.DECISION, row.offset, state, source, *kept)
    for row in rows["check_requests"]:
        kept = 0, 0, -1, row.group, row.transaction, 0, row.times, 0, 0, turns[row.batch]
        yield row.queue, (Row.REQUEST, row.offset, 0, 0, *kept)
    for row in rows["check_answers"]:
        kept = 0, 0, -1, row.group, row.transaction, 0, row.times, 0, row.at, 0
        yield row.queue, (Row.ANSWER, row.offset, _OUTCOMES[row.outcome], row.delivered, *kept)
    for row in rows["deliveries"]:
        kept = 0, 0, -1, row.group, row.transaction, row.deliver_at, 0, 0, 0, turns[row.batch]
        yield row.queue, (Row.DELIVERY, row.offset, 0, 0, *kept)


def _source(world: World, decision: Any) -> Source:
    """Whose op decided, which the simulator's decisions do not keep: the earliest that fits by its state."""
    kind = Kind.COMMIT if decision.state in ("COMMIT", "CANCEL") else Kind.ROLLBACK
    key = decision.queue, decision.offset
    halves = [half for half in world.tables.rows["half"] if half[:2] == key and half[5:7] == decision[2:4]]
    planned = world.reconcile.offsets[decision.batch]
    fits = [
        op
        for number, op in enumerate(world.tables.rows["op"])
        if (op.queue, op.offset) == key
        and op.kind == kind
        and op.group == decision.group
        and op.transaction in (0, decision.transaction)
        and number < planned.op[1]
    ]
    if min(halves, key=lambda half: half.store).committed or not fits:
        return Source.PRODUCER
    return Source(min(fits, key=lambda op: (op.store, op.born)).source)
