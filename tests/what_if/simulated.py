"""A simulated history as a replay reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records.segment_records import Action, Kind, Reason, Source
from checkback.what_if.records import RECORDED, Answered, Row, State
from checkback.what_if.timeline import Timeline
from simulator.reconcile import Planned, Reconcile, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkback.reconcile.records.actions import Actions
    from checkback.reconcile.records.segment_records import Records
    from checkback.reconcile.segment import Rules
    from simulator.tables import Tables
    from simulator.world import World

_OUTCOMES = {outcome.name: outcome for outcome in Answered}


class Engine(Reconcile):
    """Notes by place whose op decided, which the simulator's decisions do not keep."""

    def __init__(self, tables: Tables, rules: Rules) -> None:
        super().__init__(tables, rules)
        self.sources: dict[tuple[int, int], Source] = {}

    def _writes(self, actions: Actions, batch: int) -> Iterator[tuple[str, list[Any]]]:
        for record in actions.only(Action.COMMIT, Action.SCHEDULE, Action.ROLLBACK).records:
            self.sources[int(record["queue_id"]), int(record["offset"])] = Source(record["detail"])
        return super()._writes(actions, batch)


def timeline_of(world: World) -> tuple[Timeline, dict[int, int]]:
    """The batches that are in the tables, and the turn of each by its number."""
    query, rows = world.reconcile, world.tables.rows
    wrote = {row.batch for name in ("decisions", "deliveries", "check_requests") for row in rows[name]}
    numbers = []
    for number, planned in enumerate(query.offsets):
        whole = number < query.committed and number not in query.void
        if not planned.restored and (whole or number in wrote):
            numbers.append(number)
    entries: list[Planned] = [query.offsets[number] for number in numbers]
    rules = tuple(dict.fromkeys(one.rules for one in entries))
    which = np.array([rules.index(one.rules) for one in entries], np.int64)
    timeline = Timeline(np.array([one.time for one in entries], np.int64), rules, which)
    return timeline, {number: turn for turn, number in enumerate(numbers)}


def segments_of(world: World, turns: dict[int, int], size: int) -> dict[tuple[int, int], Records]:
    """RECORDED rows by (queue, segment number)."""
    found: dict[tuple[int, int], list[tuple[Any, ...]]] = {}
    for queue, row in _rows(world, turns):
        found.setdefault((queue, row[1] // size), []).append(row)
    return {key: np.array(rows, RECORDED) for key, rows in found.items()}


def _rows(world: World, turns: dict[int, int]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    rows, engine = world.tables.rows, world.reconcile
    assert isinstance(engine, Engine)
    kept: tuple[Any, ...]
    for half in rows["half"]:
        kept = half.immunity, half.group, half.transaction, half.delay, -1, 0, 0, 0, 0
        yield half.queue, (Row.HALF, half.offset, kind_of(half), 0, half.born, half.store, *kept)
    for op in rows["op"]:
        number = op.number
        if op.source == Source.CHECK and op.kind != Kind.COUNTED:
            name = Kind(op.kind).name
            number = next(
                row.times
                for row in rows["check_answers"]
                if (row.queue, row.offset, row.outcome, row.at) == (op.queue, op.offset, name, op.born)
            )
        kept = op.born, op.store, -1, op.group, op.transaction, 0, number, 0, 0, 0, 0
        yield op.queue, (Row.OP, op.offset, op.kind, op.source, *kept)
    for row in rows["decisions"]:
        state, reason = State[row.state], Reason[row.reason] if row.reason else 0
        source = Source.CHECKBACK if state == State.DISCARD else engine.sources.get(row[:2], Source.PRODUCER)
        kept = 0, 0, -1, row.group, row.transaction, row.deliver_at, -1, row.times, reason, 0, turns[row.batch]
        yield row.queue, (Row.DECISION, row.offset, state, source, *kept)
    for row in rows["check_requests"]:
        kept = 0, 0, -1, row.group, row.transaction, 0, -1, row.times, 0, 0, turns[row.batch]
        yield row.queue, (Row.REQUEST, row.offset, 0, 0, *kept)
    for row in rows["check_answers"]:
        kept = 0, 0, -1, row.group, row.transaction, 0, -1, row.times, 0, row.at, 0
        yield row.queue, (Row.ANSWER, row.offset, _OUTCOMES[row.outcome], row.delivered, *kept)
