"""The check query as Spark runs it, step by step as `Dispatch`, on its real pure parts."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from checkback.check.dispatch import op_rows
from checkback.check.recorded import KEY, once
from checkback.reconcile.segment import Kind, Source
from simulator.reconcile import CrashError
from simulator.tables import Answer, Op, Request, Tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.producers import Producers

APP = "check"
#: crash points of a batch, in its order
POINTS = ("before the answers", "before the ops", "before the commit log")
_KEYS = ("queue", "offset", "times", "at")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Check:
    """Its checkpoint, and a batch at a time."""

    def __init__(self, tables: Tables, producers: Producers) -> None:
        self.tables = tables
        self.producers = producers
        self.begun = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """A new checkpoint: all requests come again, in a query with another id."""
        self.begun += 1
        self.offsets: list[tuple[int, int]] = []
        self.committed = 0

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
        return len(self.tables.rows["check_requests"]) > (self.offsets[-1][1] if self.offsets else 0)

    def plan(self) -> None:
        """Write the next batch's entry of the offset log."""
        self.offsets.append((self.offsets[-1][1] if self.offsets else 0, len(self.tables.rows["check_requests"])))

    def run(self, clock: int, crash: int | None) -> str:
        """Do the batch that is under way; what came of it. Raises CrashError at POINTS[crash]."""
        number = self.committed
        requests: list[Request] = self.tables.rows["check_requests"][slice(*self.offsets[number])]
        # Step 1
        table = once(_as_arrow(requests, _KEYS, ("queue_id", "queue_offset", "check_times", "requested_at")))
        wanted = set(zip(*(table.column(name).to_pylist() for name in KEY), strict=True))
        answers = [row for row in self.tables.rows["check_answers"] if (row.queue, row.offset, row.times) in wanted]
        # Step 2
        known = {(row.queue, row.offset, row.times) for row in answers}
        rows = {(row.queue, row.offset, row.times): row for row in requests}
        asked = [
            Answer(*row[:5], self.producers.ask((row.queue, row.offset)), clock, number)
            for key, row in rows.items()
            if key not in known
        ]
        if crash == 0:
            raise CrashError(POINTS[0])
        self.tables.append("check_answers", asked, self.app, number)
        # Step 3
        if crash == 1:
            raise CrashError(POINTS[1])
        self.tables.append("op", self._ops([*answers, *asked], clock), self.app, number)
        if crash == 2:
            raise CrashError(POINTS[2])
        self.committed += 1
        return ", ".join(f"{row.queue}/{row.offset} check {row.times}: {row.outcome}" for row in asked) or "nothing"

    def _ops(self, answers: Sequence[Answer], clock: int) -> list[Op]:
        if not any(answer.outcome in ("COMMIT", "ROLLBACK") for answer in answers):
            return []
        fields = {
            "queue_id": np.array([row.queue for row in answers], np.int32),
            "queue_offset": np.array([row.offset for row in answers]),
            "transaction_id": [str(row.transaction) for row in answers],
            "producer_group": [str(row.group) for row in answers],
            "outcome": [row.outcome for row in answers],
            "check_times": np.array([row.times for row in answers], np.int32),
            "delivered": pa.nulls(len(answers), pa.bool_()),
            "answered_at": [_EPOCH + timedelta(milliseconds=row.at) for row in answers],
        }
        found = op_rows(pa.table(fields), _EPOCH + timedelta(milliseconds=clock)).to_pylist()
        return [
            Op(
                row["queue_id"],
                row["half_offset"],
                Kind[row["state"]],
                Source[row["source"].upper()],
                _us(row["store_timestamp"]),
                _us(row["born_timestamp"]) // 1000,
                int(row["producer_group"]),
                int(row["transaction_id"]),
            )
            for row in found
        ]


def _as_arrow(rows: Sequence[Request], fields: Sequence[str], names: Sequence[str]) -> pa.Table:
    return pa.table({name: [getattr(row, field) for row in rows] for field, name in zip(fields, names, strict=True)})


def _us(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(microseconds=1)
