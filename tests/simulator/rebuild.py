"""`checkback rebuild` in plain Python, step by step as application/rebuild.py, on the real `restore`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records.segment_records import NOT_STATED, Kind
from checkback.reconcile.state.packed_events import segment_key
from checkback.reconcile.state.state_codec import encode
from checkback.reconcile.state.state_restore import ROW, Known, restore
from checkback.storage.horizon import HORIZON
from simulator.reconcile import CrashError, kind_of
from simulator.tables import Decision, Delivery, Discarded, Published

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simulator.reconcile import Reconcile
    from simulator.tables import Half, Op, Tables

Key = tuple[int, int]
#: a place, group and transaction
Checked = tuple[int, int, int, int]
#: crash points before those of its batch, and in it
STEPS, _BATCH = 8, 7
POINTS = STEPS + _BATCH + 1
#: tables that a batch writes, and that tell of one that was broken off
_OF_BATCHES = ("topics", "decisions", "deliveries", "discarded", "check_requests")


class Rebuild:
    """One rebuild, from its beginning. A mutant has one of its steps wrong."""

    def __init__(self, query: Reconcile, size: int, crash: int | None) -> None:
        """``size``: of the new segments. ``crash``: the step before which it dies."""
        self.query = query
        self.tables: Tables = query.tables
        self.size = size
        self.crash = crash
        self._step = 0

    def run(self, clock: int, order: int, meanwhile: Callable[[], object]) -> str:
        """Do it; in words what its batch wrote. ``meanwhile`` happens once it has noted what it restores.

        Raises CrashError: the query is `rebuilding` then, and only another rebuild goes on.
        """
        self.query.rebuilding = True
        for name, rows in self.finish():
            self._point(name)
            self.tables.append(name, rows)
        self._conclude(clock)
        self._point("restoring")
        until = self.noted()
        meanwhile()
        blocks = dict(self.blocks(*until, clock))
        self._point("the batch")
        self.query.begin_anew(self.size, blocks, until, self.read_from(until), clock)
        last = self.crash is not None and self.crash >= STEPS + _BATCH
        written = self.query.run(clock, order, None if self.crash is None or last else self.crash - STEPS)
        if last:
            raise CrashError("before its end")
        self.query.rebuilding = False
        return f"{len(blocks)} segments of {self.size}; {written}"

    def _conclude(self, clock: int) -> None:
        """As rebuild._conclude: an interrupted batch that has written something is complete now."""
        number, first, rows = self.query.committed, self.query.first, self.tables.rows
        wrote = {name: [row for row in rows[name] if row.batch == number] for name in _OF_BATCHES}
        if self.query.under_way and any(wrote.values()):
            self.tables.append("batches", [self.query.row_of(number, wrote, clock)], self.query.app, number - first)

    def _point(self, name: str) -> None:
        if self._step == self.crash:
            raise CrashError(f"before {name}")
        self._step += 1

    def noted(self) -> tuple[int, int]:
        """How far `half` and `op` are restored."""
        return len(self.tables.landed["half"]), len(self.tables.landed["op"])

    def read_from(self, until: tuple[int, int]) -> tuple[int, int]:
        """From where the query reads `half` and `op`."""
        return until

    def finish(self) -> Iterator[tuple[str, list[Any]]]:
        """As unfinished.finish: decisions that messages lack, then messages that decisions lack."""
        since = {name: self.tables.last_version(name, HORIZON) or 0 for name in ("half", "topics", "discarded")}
        rows = {**self.tables.rows}
        for name in ("topics", "discarded"):  # as horizon.since_horizon
            rows[name] = [row for row in rows[name] if row.at >= since["half"]]
        halves = _first(rows["half"])

        def decided() -> set[Key]:
            return {(row.queue, row.offset) for row in rows["decisions"]}

        checks: dict[Checked, int] = {}
        for row in rows["check_requests"]:  # as unfinished._check_times
            checks[row[:4]] = max(checks.get(row[:4], 0), row.times)
        yield (
            "decisions",
            [
                Decision(
                    row.queue,
                    row.offset,
                    row.group,
                    row.transaction,
                    "COMMIT",
                    "",
                    checks.get(row[:4], 0),
                    row.at,
                    row.batch,
                )
                for row in rows["topics"]
                if (row.queue, row.offset) not in decided()
            ],
        )
        yield (
            "decisions",
            [
                Decision(row.queue, row.offset, row.group, row.transaction, "DISCARD", *row[5:])
                for row in rows["discarded"]
                if row.reason != "CANCELLED" and (row.queue, row.offset) not in decided()
            ],
        )
        yield (
            "decisions",
            [
                Decision(row.queue, row.offset, row.group, row.transaction, "CANCEL", "", *row[6:])
                for row in rows["discarded"]
                if row.reason == "CANCELLED" and (row.queue, row.offset) not in self.cancelled()
            ],
        )
        delivered = {(row.queue, row.offset) for row in rows["deliveries"]}
        yield (
            "deliveries",
            [
                Delivery(row.queue, row.offset, row.group, row.transaction, row.deliver_at, message.at, message.batch)
                for row in rows["decisions"]
                if row.deliver_at and (row.queue, row.offset) not in delivered
                for message in rows["topics"]
                if (message.queue, message.offset) == (row.queue, row.offset)
            ],
        )
        published = {(row.queue, row.offset) for row in rows["topics"]}
        discarded = {(row.queue, row.offset) for row in rows["discarded"]}
        yield (
            "topics",
            [
                Published(row.queue, row.offset, row.group, row.transaction, halves[row[:4]].body, row.at, row.batch)
                for row in [
                    *(row for row in rows["decisions"] if row.state == "COMMIT" and not row.deliver_at),
                    *rows["deliveries"],
                ]
                if (row.queue, row.offset) not in published and row.at >= max(since["half"], since["topics"])
            ],
        )
        yield (
            "discarded",
            [
                Discarded(
                    row.queue,
                    row.offset,
                    row.group,
                    row.transaction,
                    halves[row[:4]].body,
                    reason,
                    row.times,
                    row.at,
                    row.batch,
                )
                for row in rows["decisions"]
                for reason in ["CANCELLED" if row.state == "CANCEL" else row.reason]
                if row.state in ("DISCARD", "CANCEL")
                and (row.queue, row.offset) not in discarded
                and row.at >= max(since["half"], since["discarded"])
            ],
        )

    def blocks(self, halves: int, ops: int, now: int) -> Iterator[tuple[str, bytes]]:
        """As rebuild.segment_blocks: key and block of each segment that something depends on."""
        rows = [*self.halves(halves, now), *self.ops(ops)]
        by_segment: dict[Key, list[tuple[Any, ...]]] = {}
        for queue, *row in rows:
            by_segment.setdefault((queue, row[0] // self.size), []).append(tuple(row))
        for (queue, number), found in sorted(by_segment.items()):
            records = np.array(found, ROW)
            segment = self.restore(number * self.size, records, now)
            if segment is not None:
                yield segment_key(queue, number), encode(segment)

    def restore(self, base: int, rows: Any, now: int) -> Any:
        """The real one."""
        return restore(base, self.size, rows, now, self.query.rules)

    def halves(self, until: int, now: int) -> Iterator[tuple[Any, ...]]:
        """As rebuild._halves: queue, then ROW."""
        decided = {(row.queue, row.offset): row.at for row in self.tables.rows["decisions"]}
        scheduled = {row[:4]: row.deliver_at for row in self.tables.rows["decisions"] if row.deliver_at}
        ended = self.cancelled() | {(row.queue, row.offset) for row in self.tables.rows["deliveries"]}
        checks = self.checks()
        since = now - self.query.rules.max_age
        for half in self.tables.until("half", until):
            key = half.queue, half.offset
            times, asked, at = checks.get((*key, half.group, half.transaction), (0, 0, 0))
            known = Known.DECIDED if key in decided else Known.UNDECIDED
            at, delay = decided.get(key, at), half.delay
            named = (*key, half.group, half.transaction)
            if key not in ended and named in scheduled:
                known, delay = Known.SCHEDULED, scheduled[named]
            if known != Known.DECIDED or half.store >= since * 1000 or at >= since:
                event = kind_of(half), 0, half.born, half.store, half.immunity, half.group, half.transaction, delay, -1
                yield (*key, known, *event, times, asked, at)

    def cancelled(self) -> set[Key]:
        """Where there is a decision CANCEL."""
        return {(row.queue, row.offset) for row in self.tables.rows["decisions"] if row.state == "CANCEL"}

    def checks(self) -> dict[Checked, tuple[int, int, int]]:
        """As checks.checks_so_far: how many count, how many there were, and when the last one was."""
        found: dict[Checked, tuple[int, int, int]] = {}
        for row in sorted(self.tables.rows["check_requests"], key=lambda row: (row.at, row.times)):
            key = row.queue, row.offset, row.group, row.transaction
            found[key] = row.times, found.get(key, (0, 0, 0))[1] + 1, row.at
        received, rules = self.received(), self.query.rules
        if not rules.count_undelivered:
            return {key: (min(received.get(key, 0), asked), asked, at) for key, (_, asked, at) in found.items()}
        for key, (last, asked, at) in found.items():
            if last >= rules.check_max and received.get(key, 0) < last:
                found[key] = max(received.get(key, 0), rules.check_max - 1), asked, at
        return found

    def received(self) -> dict[Checked, int]:
        """The greatest number that somebody has received."""
        told: dict[Checked, int] = {}
        for op in self.tables.rows["op"]:
            if op.number >= 0:
                key = op.queue, op.offset, op.group, op.transaction
                told[key] = max(told.get(key, 0), op.number)
        return told

    def ops(self, until: int) -> Iterator[tuple[Any, ...]]:
        """As rebuild._ops: queue, then ROW."""
        rows = self.tables.rows
        dealt = {_raw(row.row) for row in rows["rejected"] if hasattr(row.row, "kind")}
        owners = {(row.queue, row.offset): (row.group, row.transaction) for row in rows["decisions"]}
        for op in self.tables.until("op", until):
            owner = owners.get((op.queue, op.offset))
            own = owner is not None and op.group == owner[0] and op.transaction in (owner[1], NOT_STATED)
            if op.kind == Kind.CANCEL:
                own = own and (op.queue, op.offset) in self.cancelled()
            elif op.kind >= Kind.COUNTED:
                continue
            if _raw(op) not in dealt and not own:
                event = op.kind, op.source, op.born, op.store, -1, op.group, op.transaction, 0, -1
                yield (op.queue, op.offset, Known.OP, *event, 0, 0, 0)


def _raw(op: Op) -> tuple[int, ...]:
    """As rejected.raw_op: what `rejected` quotes of an op, all but its store_timestamp."""
    return op._replace(store=0)


def _first(halves: list[Half]) -> dict[tuple[int, ...], Half]:
    """By queue, offset, group and transaction the half message that landed first."""
    found: dict[tuple[int, ...], Half] = {}
    for half in sorted(halves, key=lambda half: half.store):
        found.setdefault((half.queue, half.offset, half.group, half.transaction), half)
    return found
