"""The reconcile query as Spark runs it, on the real processor: offset log, state versions, commit log, replays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from checkback.reconcile.publish.half_lookup import HalfLookup, due_times
from checkback.reconcile.records.actions import KEPT, PUBLISHED, Actions
from checkback.reconcile.records.actions import pack as pack_actions
from checkback.reconcile.records.segment_records import EVENT, NOT_STATED, Action, Kind, Reason, Records
from checkback.reconcile.state.packed_events import EVENT_COLUMNS, pack
from checkback.reconcile.state.processor import SegmentProcessor
from simulator.store import BatchTime, Handle, State
from simulator.tables import Batch, Decision, Delivery, Discarded, Half, Op, Published, Rejected, Request, Tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from checkback.reconcile.segment import Rules

#: offsets of a segment
SIZE = 8
APP = "reconcile"


class CrashError(Exception):
    """The application dies here."""


class StuckError(Exception):
    """A batch that can never be published."""


class Planned(NamedTuple):
    """An entry of the offset log: rows of `half` and `op` from .. until, and the batch's time.

    ``rules``, ``max_checks``, ``max_deliveries``: what it was begun with. ``restored``: no batch, but what a rebuild
    takes from the tables instead: all rows until there. ``unread``, ``unread_halves``: ops and half messages that had
    landed then, from .. until, and were not read for a limit of which the batch is told.
    """

    half: tuple[int, int]
    op: tuple[int, int]
    time: int
    rules: Rules
    max_checks: int | None
    max_deliveries: int | None
    restored: bool = False
    unread: tuple[int, int] = (0, 0)
    unread_halves: tuple[int, int] = (0, 0)

    @property
    def behind(self) -> bool:
        """Were there more than it might read?"""
        return self.unread[0] < self.unread[1] or self.unread_halves[0] < self.unread_halves[1]


class Processor(SegmentProcessor):
    """The real one; its rows are not made pandas frames, which nothing here needs."""

    behind = False

    def _behind(self) -> bool:
        return self.behind

    def _frame(self, segment: tuple[int, int, int, int, int, int, int], actions: Records) -> Any:
        return {"block": [pack_actions(segment, actions)]}


class _First:
    """A pandas column of one value."""

    def __init__(self, value: bytes) -> None:
        self.iloc = [value]


class Reconcile:
    """Its checkpoint, and a batch at a time.

    ``offsets`` has the entries of all checkpoints there were, one after the other; ``first`` is the present one's
    batch 0. ``void``: entries that were not committed when their checkpoint was lost. ``most_ops``: that a batch reads.
    ``told_of_halves``: is a batch told of half messages that it leaves unread? Not with Spark Connect.
    """

    most_ops = 1 << 30
    told_of_halves = False

    def __init__(self, tables: Tables, rules: Rules) -> None:
        self.tables = tables
        self.rules = rules
        self.max_checks: int | None = None
        self.max_deliveries: int | None = None
        self.size = SIZE
        self.offsets: list[Planned] = []
        self.committed = 0
        self.first = 0
        self.void: set[int] = set()
        self.states: dict[int, State] = {0: State()}
        self.rebuilding = False
        self.together = True
        self._initial: dict[str, bytes] = {}

    @property
    def state(self) -> State:
        """After the last committed batch."""
        return self.states[self.committed]

    @property
    def under_way(self) -> bool:
        """Is there a batch to be done again?"""
        return len(self.offsets) > self.committed

    @property
    def rebuilt(self) -> bool:
        """Did the checkpoint begin with what a rebuild had restored?"""
        return self.first > 0

    def news(self, halves: int) -> tuple[int, int]:
        """How far the next batch would read `half` and `op`.

        Which of several half messages that landed together at one offset was read first, the tables do not tell:
        where there may be a rebuild they are read together.
        """
        rows = self.tables.landed["half"]
        until = min(self._read()[0] + halves, len(rows))
        while self.together and 0 < until < len(rows) and rows[until].store == rows[until - 1].store:
            until += 1
        ops = self.tables.landed["op"]
        read = min(self._read()[1] + self.most_ops, len(ops))
        while 0 < read < len(ops) and ops[read].store == ops[read - 1].store:  # of one file
            read += 1
        return until, read

    def has_news(self) -> bool:
        """Are there rows that no batch has read?"""
        return bool(self.tables.landed["half"] or self.tables.landed["op"]) and self.news(1 << 30) != self._read()

    def _read(self) -> tuple[int, int]:
        """How far `half` and `op` have been read."""
        return (self.offsets[-1].half[1], self.offsets[-1].op[1]) if self.offsets else (0, 0)

    def begin_anew(
        self, size: int, blocks: dict[str, bytes], until: tuple[int, int], read_from: tuple[int, int], clock: int
    ) -> None:
        """A new checkpoint with these segments instead of what landed ``until`` then, and its batch 0 under way."""
        broken_off = self.rebuilt and self.committed == self.first  # a rebuild before this one, with what it restored
        self.void |= {*range(self.committed - broken_off, len(self.offsets))}
        settings = self.rules, self.max_checks, self.max_deliveries
        self.offsets.append(Planned((0, until[0]), (0, until[1]), clock, *settings, restored=True))
        half, op = (len(self.tables.landed[name]) for name in ("half", "op"))
        self.offsets.append(Planned((read_from[0], half), (read_from[1], op), clock, *settings))
        self.size, self._initial = size, blocks
        self.first = self.committed = len(self.offsets) - 1
        self.states = {self.first: State()}

    @property
    def app(self) -> str:
        """Its query's id."""
        return f"{APP} {self.first}"

    def plan(self, clock: int, halves: int) -> None:
        """Write the next batch's entry of the offset log: all ops, or so many, and some half messages."""
        (half, op), (halves_read, ops_read) = self.news(halves), self._read()
        settings = self.rules, self.max_checks, self.max_deliveries
        unread = op, len(self.tables.landed["op"])
        halves_left = (half, len(self.tables.landed["half"])) if self.told_of_halves else (0, 0)
        entry = Planned((halves_read, half), (ops_read, op), clock, *settings, unread=unread, unread_halves=halves_left)
        self.offsets.append(entry)

    def is_behind(self, planned: Planned) -> bool:
        """What it has not read may have an op: nothing is checked or delivered, and ops wait for half messages."""
        return planned.behind

    def begun_with(self, planned: Planned) -> tuple[Rules, int | None, int | None]:
        """A batch that is done again is done by what it was begun with, whatever the settings are by now."""
        return planned.rules, planned.max_checks, planned.max_deliveries

    def replay_time(self, planned: Planned, clock: int) -> int:  # noqa: ARG002 - what a broken engine would take
        """A batch that is done again has the time of the offset log."""
        return planned.time

    def run(self, clock: int, order: int, crash: int | None) -> str:
        """Do the batch that is under way; what it wrote. Raises CrashError after ``crash`` writes.

        ``order`` picks one of the orders in which the tables, which are written side by side, may be committed.
        """
        number = self.committed
        planned = self.offsets[number]
        time = self.replay_time(planned, clock)
        before = self.offsets[number - 1].time if number > self.first else -1
        state, records = self._decide(planned, time, before)
        *writes, rejected = self._writes(Actions(records, time), number) if len(records) else [("rejected", [])]
        turn = order % max(1, len(writes))
        writes = [*writes[turn:], *writes[:turn], rejected, ("batches", [self.row_of(number, dict(writes), clock)])]
        done: list[str] = []
        for place, (name, rows) in enumerate(writes):
            if place == crash:
                raise CrashError(f"before {name}, after {', '.join(done) or 'nothing'}")
            self.tables.append(name, rows, self.app, number - self.first)
            if rows and name != "batches":
                done.append(f"{name} +{len(rows)}")
        if crash is not None and crash >= len(writes):
            raise CrashError(f"before the commit log, after {', '.join(done) or 'nothing'}")
        self.states = {number: self.states[number], number + 1: state}
        self.committed += 1
        return ", ".join(done) or "nothing"

    def row_of(self, number: int, wrote: Mapping[str, list[Any]], clock: int) -> Batch:
        """A batch's row in `batches`."""
        decided = [row for row in wrote.get("decisions", []) if row.state == "COMMIT"]
        counts = len(decided), sum(1 for row in decided if row.deliver_at), len(wrote.get("deliveries", []))
        return Batch(self.app, number, self.offsets[number].time, clock, *counts)

    def _decide(self, planned: Planned, time: int, before: int) -> tuple[State, Records]:
        """Data first, then the timers after the last batch's time and up to this one's, as Spark 4.2 looks for them."""
        handle = Handle(self.states[self.committed])
        rules, max_checks, max_deliveries = self.begun_with(planned)
        processor = Processor(rules, self.size, max_checks, max_deliveries)
        processor.behind = self.is_behind(planned)
        processor.init(handle)  # type: ignore[arg-type]
        frames: list[Any] = []
        for key, block in self._initial.items() if self.committed == self.first else ():
            handle.key = key
            initial = {"block": _First(block)}
            processor.handleInitialState((key,), initial, BatchTime(time))  # type: ignore[arg-type]
        for key, block in self._packed(planned):
            handle.key = key
            rows: Any = iter([{"events": [block]}])
            frames += processor.handleInputRows((key,), rows, BatchTime(time))  # type: ignore[arg-type]
        for timer in sorted(handle.timers):
            if before < timer[0] <= time and timer in handle.timers:
                handle.key = timer[1]
                at = BatchTime(time, timer[0])
                frames += processor.handleExpiredTimer((handle.key,), at, at)  # type: ignore[arg-type]
                handle.timers.discard(timer)
        blocks = pa.array([block for frame in frames for block in frame["block"]], pa.binary())
        actions, _ = Actions.of(pa.table({"block": blocks}))
        return handle.state(), actions.records

    def _packed(self, planned: Planned) -> Iterable[tuple[str, bytes]]:
        halves: list[Half] = self.tables.landed["half"][slice(*planned.half)]
        ops: list[Op] = self.tables.landed["op"][slice(*planned.op)]
        rows = [
            *(
                (h.queue, h.offset, kind_of(h), 0, h.born, h.store, h.immunity, h.group, h.transaction, h.delay, -1)
                for h in halves
            ),
            *(
                (o.queue, o.offset, o.kind, o.source, o.born, o.store, -1, o.group, o.transaction, 0, o.number)
                for o in ops
            ),
        ]
        if not rows:
            return ()
        assert len(EVENT_COLUMNS) == len(rows[0])
        events = np.array([row[1:] for row in rows], EVENT)
        return pack(np.array([row[0] for row in rows], np.int32), events, self.size)

    def _writes(self, actions: Actions, batch: int) -> Iterator[tuple[str, list[Any]]]:
        """Table and rows, as `Publisher` looks them up; `rejected` is the last."""
        halves: list[Half] = self.tables.rows["half"]
        wanted = HalfLookup.of(actions, batch)
        topics: list[Any] = []
        decisions: list[Any] = []
        deliveries: list[Any] = []
        discarded: list[Any] = []
        requests: list[Any] = []
        times_due = due_times(wanted.records)
        for half, place in self._found(halves, actions, wanted):
            record = wanted.records[place]
            action, key, times = Action(record["action"]), (half.queue, half.offset), int(record["check_times"])
            if action == Action.CHECK:
                requests.append(Request(*key, half.group, half.transaction, times, actions.batch_time, batch))
                continue
            at, due = actions.batch_time, int(times_due[place])
            if action in PUBLISHED:
                topics.append(Published(*key, half.group, half.transaction, half.body, at, batch))
            if action == Action.DELIVER:
                deliveries.append(Delivery(*key, half.group, half.transaction, due, at, batch))
                continue
            reason = Reason(record["detail"]).name if action == Action.DISCARD else ""
            state = "COMMIT" if action == Action.SCHEDULE else action.name
            due = due if action == Action.SCHEDULE else 0
            decisions.append(Decision(*key, half.group, half.transaction, state, reason, times, at, batch, due))
            if action in KEPT:
                named = half.group, half.transaction, half.body
                discarded.append(Discarded(*key, *named, reason or "CANCELLED", times, at, batch))
        yield "topics", topics
        yield "decisions", decisions
        yield "deliveries", deliveries
        yield "discarded", discarded
        yield "check_requests", requests
        yield "rejected", list(self._rejected(actions, halves, batch))

    def _found(self, halves: list[Half], actions: Actions, wanted: HalfLookup) -> list[tuple[Half, int]]:
        """The row of `half` for each record, and which it is. Raises StuckError unless each has just one."""
        if not len(wanted.records):
            return []
        found = self._look_up(halves, wanted)
        if len(found) > len(wanted.records) and wanted.identity is None:
            found = self._look_up(halves, self.looked_up_again(actions, wanted))
        if sorted(record for _, record in found) != list(range(len(wanted.records))):
            raise StuckError(f"of {len(wanted.records)} half messages that the batch acts on it found {len(found)}")
        return found

    def looked_up_again(self, actions: Actions, wanted: HalfLookup) -> HalfLookup:
        """As Publisher, where numbers alone find several rows: by identity."""
        return HalfLookup.of(actions, wanted.batch_id, by_identity=True)

    def _look_up(self, halves: list[Half], wanted: HalfLookup) -> list[tuple[Half, int]]:
        """Rows of `half`, and which record each fits."""
        identity = None
        if wanted.identity is not None:  # as half_rows.one_of_each
            halves = list({(h.queue, h.offset, h.store, h.group, h.transaction): h for h in reversed(halves)}.values())
            identity = np.array([h.group for h in halves]), np.array([h.transaction for h in halves])
        queue, offset, store = (np.array([half[place] for half in halves]) for place in range(3))
        rows, records = wanted.find(queue, offset, store, identity)
        return [(halves[row], record) for row, record in zip(rows.tolist(), records.tolist(), strict=True)]

    def _rejected(self, actions: Actions, halves: list[Half], batch: int) -> Iterator[Rejected]:
        """As rejected.rejected_ops and rejected_halves join them."""
        if not actions.count(Action.REJECT_OP, Action.LATE_OP, Action.REJECT_HALF):
            return
        about = actions.only(Action.REJECT_OP, Action.LATE_OP, Action.REJECT_HALF).records
        seen: set[tuple[int, ...]] = set()
        for record in about:
            action = Action(record["action"])
            row = tuple(int(record[name]) for name in ("queue_id", "offset", "store", "group", "transaction"))
            about_it = (action, int(record["detail"]), *row)
            if about_it in seen:
                continue
            seen.add(about_it)
            if action == Action.REJECT_HALF:
                alike = [h for h in halves if (h.queue, h.offset, h.store, h.group, h.transaction) == row]
                yield Rejected(alike[0], "repeated", batch, actions.batch_time)
                continue
            reason = Reason(record["detail"]) if action == Action.REJECT_OP else None
            for op in self.tables.rows["op"]:
                same = (op.queue, op.offset, op.store, op.group, op.transaction) == row
                if same and _is_about(reason, op):
                    why = self._reason(action, record, op, halves)
                    if why:
                        yield Rejected(op, why, batch, actions.batch_time)

    def _reason(self, action: Action, record: Any, op: Op, halves: list[Half]) -> str:
        if action == Action.REJECT_OP:
            return Reason(record["detail"]).name
        there = [h for h in halves if (h.queue, h.offset) == (op.queue, op.offset)]
        if not there:
            return Reason.NO_HALF.name
        owner = min(there, key=lambda h: h.store)
        if op.group != owner.group:
            return Reason.WRONG_GROUP.name
        return "" if op.transaction in (owner.transaction, NOT_STATED) else Reason.WRONG_TRANSACTION_ID.name


def kind_of(half: Half) -> Kind:
    """As event_columns.half_events."""
    return Kind.MESSAGE if half.committed else Kind.HALF


def _is_about(reason: Reason | None, op: Op) -> bool:
    """As rejected._is_about: ops that landed together may differ only in their state."""
    if op.kind == Kind.CANCEL:
        return reason not in (None, Reason.UNKNOWN_STATE)
    return (reason is Reason.UNKNOWN_STATE) == (op.kind == Kind.UNKNOWN) and reason is not Reason.NOT_SCHEDULED


class InPieces(Reconcile):
    """A backlog is read in pieces."""

    most_ops = 2
    told_of_halves = True
