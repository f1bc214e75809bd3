"""The check query as Spark runs it, step by step as `CheckBatches`, on its real pure parts."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from checkback.check.query import op_rows
from checkback.check.recorded_answers import answers_to, deduplicate_requests, key_numbers
from checkback.reconcile.records.segment_records import Kind, Source
from simulator.producers import NO_ANSWER, NOBODY
from simulator.reconcile import CrashError
from simulator.tables import Answer, Op, Request, Tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from checkback.reconcile.segment import Rules

APP = "check"
#: crash points of a batch, in its order
POINTS = ("before the answers", "before the ops", "before the commit log")
_SKIPPED = "SKIPPED"
_KEYS = {"queue_id": "queue", "queue_offset": "offset", "check_times": "times"}
_KEYS |= {"producer_group": "group", "transaction_id": "transaction"}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Asked(Protocol):
    """Who is asked: `Producers`."""

    def ask(self, key: tuple[int, int]) -> str:
        """What comes of a check this time."""


class Check:
    """Its checkpoint, and a batch at a time."""

    def __init__(self, tables: Tables, producers: Asked) -> None:
        self.tables = tables
        self.producers = producers
        self.begun = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """A new checkpoint: all requests come again, in a query with another id."""
        self.begun += 1
        self.offsets: list[tuple[int, int]] = []
        self.committed = 0
        self._snapshot: list[Request] = []

    @property
    def app(self) -> str:
        """Its query's id."""
        return f"{APP} {self.begun}"

    @property
    def under_way(self) -> bool:
        """Is there a batch to be done again?"""
        return len(self.offsets) > self.committed

    def has_news(self) -> bool:
        """Are there requests that no batch has read?"""
        return len(self.tables.landed["check_requests"]) > (self.offsets[-1][1] if self.offsets else 0)

    def plan(self) -> None:
        """Write the next batch's entry of the offset log: the first batch reads what is left of the table."""
        if not self.offsets:
            self._snapshot = list(self.tables.rows["check_requests"])
        self.offsets.append((self.offsets[-1][1] if self.offsets else 0, len(self.tables.landed["check_requests"])))

    def run(self, clock: int, crash: int | None, rules: Rules) -> str:
        """Do the batch that is under way; what came of it. Raises CrashError at POINTS[crash].

        ``rules``: as they are now, not as they were when the requests were made.
        """
        number = self.committed
        requests: list[Request] = self.tables.landed["check_requests"][slice(*self.offsets[number])]
        requests = requests if number else self._snapshot
        # Step 1
        table = deduplicate_requests(_as_arrow(requests, {**_KEYS, "requested_at": "at", "row": None}))
        recorded: list[Answer] = self.tables.rows["check_answers"]
        columns = {**_KEYS, "answered_at": "at", "delivered": "delivered", "batch_id": "batch", "row": None}
        own = number if self.tables.last_version("check_answers", self.app) == number else None
        known = answers_to(table, _as_arrow(recorded, columns), own)
        answers = [recorded[row] for row in known.column("row").to_pylist()]
        # Step 2
        wanted, answered = key_numbers(table, known)
        left = [requests[row] for row in table.filter(~np.isin(wanted, answered)).column("row").to_pylist()]
        asked = [self._ask(row, clock, rules, number) for row in left]
        if crash == 0:
            raise CrashError(POINTS[0])
        self.tables.append("check_answers", asked, self.app, number)
        # Step 3
        if crash == 1:
            raise CrashError(POINTS[1])
        self.tables.append("op", self._ops([*answers, *asked], clock, rules), self.app, number)
        if crash == 2:
            raise CrashError(POINTS[2])
        self.committed += 1
        return ", ".join(f"{row.queue}/{row.offset} check {row.times}: {row.outcome}" for row in asked) or "nothing"

    def _ask(self, row: Request, clock: int, rules: Rules, number: int) -> Answer:
        """As overtaken.overtaken_by: what a newer request or a decision has overtaken is skipped."""
        overtaken = row.at <= clock - rules.check_interval and (
            any(other[:2] == row[:2] and other.at > row.at for other in self.tables.rows["check_requests"])
            or any(other[:2] == row[:2] and other.at >= row.at for other in self.tables.rows["decisions"])
        )
        said = _SKIPPED if overtaken else self.producers.ask((row.queue, row.offset))
        outcome = NO_ANSWER if said == NOBODY else said
        return Answer(*row[:5], outcome, said not in (_SKIPPED, NOBODY), clock, number)

    def _ops(self, answers: Sequence[Answer], clock: int, rules: Rules) -> list[Op]:
        last = rules.check_max if rules.count_undelivered else None
        fields = {
            "queue_id": np.array([row.queue for row in answers], np.int32),
            "queue_offset": np.array([row.offset for row in answers]),
            "transaction_id": [str(row.transaction) for row in answers],
            "producer_group": [str(row.group) for row in answers],
            "outcome": pa.array([row.outcome for row in answers], pa.string()),
            "check_times": np.array([row.times for row in answers], np.int32),
            "delivered": pa.array([row.delivered for row in answers], pa.bool_()),
            "answered_at": [_EPOCH + timedelta(milliseconds=row.at) for row in answers],
        }
        found = op_rows(pa.table(fields), _EPOCH + timedelta(milliseconds=clock), last).to_pylist()
        return [
            Op(
                row["queue_id"],
                row["queue_offset"],
                Kind[row["state"]],
                Source[row["source"].upper()],
                _us(row["store_timestamp"]),
                _us(row["born_timestamp"]) // 1000,
                int(row["producer_group"]),
                int(row["transaction_id"]),
                int(row["remark"].removeprefix("check ")),
            )
            for row in found
        ]


def _as_arrow(rows: Sequence[Request] | Sequence[Answer], columns: Mapping[str, str | None]) -> pa.Table:
    """The rows' fields by the names of their columns; None = which row it is."""
    found = {
        name: range(len(rows)) if field is None else [getattr(row, field) for row in rows]
        for name, field in columns.items()
    }
    kinds = {"delivered": pa.bool_()}
    return pa.table({name: pa.array(values, kinds.get(name, pa.int64())) for name, values in found.items()})


def _us(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(microseconds=1)
