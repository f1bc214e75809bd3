"""Table `batches` as records for `checkback.query.versions.batches`, and cuts of the tables that batches write."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from checkback.query.engines.question import Question
from checkback.query.versions.batches import (
    BATCH,
    UNKNOWN,
    BatchRange,
    cut_at,
    first_ids,
    first_times,
    in_order,
    members,
    turns,
)
from checkback.storage.schemas import BATCH_TIMES, TOPIC_PREFIX
from checkback.storage.timestamps import time_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from checkback.query.engines.engine import Engine
    from checkback.query.versions.batches import Records
    from checkback.storage.checkpoints.checkpoint import Batch

NAME = "batches"
#: The newest batch first. Of batches with equal times the higher id.
ORDER = "finished_at DESC, batch_id DESC"


@dataclass(frozen=True)
class WholeBatch:
    """A complete batch, from its row in `batches`. Times are UTC."""

    batch_id: int
    batch_time: datetime
    finished_at: datetime

    @classmethod
    def of(cls, record: Records) -> WholeBatch:
        """From a BATCH record."""
        time, finished = (time_of(int(record[name])) for name in ("time", "finished"))
        return cls(int(record["batch_id"]), time, finished)


@dataclass(frozen=True)
class BatchTable:
    """The batches that have a row, as BATCH records. ``applications``: ordered by their start."""

    applications: tuple[str, ...]
    rows: Records

    @cached_property
    def batches(self) -> Records:
        """The batches in order, without duplicates."""
        return in_order(self.rows)

    def has(self, batch: Batch) -> bool:
        """Whether the batch has a row."""
        there = (first_ids(self.rows) <= batch.batch_id) & (batch.batch_id <= self.rows["batch_id"])
        return bool((there & (first_times(self.rows) <= batch.time) & (batch.time <= self.rows["time"])).any())

    def others(self, applications: Sequence[str], batches: Records) -> Records:
        """The batches that are not among ``batches``, whose application indexes refer to ``applications``."""
        places = np.array([self.applications.index(name) for name in applications], np.int64)
        known = batches.copy()
        known["application"] = places[batches["application"]]
        mine = self.batches
        found, of = turns(mine), np.sort(turns(known))
        there = np.searchsorted(of, found)
        new: Records = mine[np.append(of, -1)[there] != found]
        return new


def batch_time(name: str) -> str | None:
    """The column with the time of the batch that wrote a row; None = no batch of `reconcile` writes the table."""
    return "published_at" if name.startswith(TOPIC_PREFIX) else BATCH_TIMES.get(name)


#: SQL: a batch's application. One that is not known is of this batch alone: another such batch may have its id.
OF_BATCH = "coalesce(application, 'unknown ' || CAST(unix_millis(batch_time) AS STRING))"
_BATCHES = f"""
    SELECT {OF_BATCH} AS application, batch_id, unix_millis(batch_time) AS time,
        unix_millis(coalesce(finished_at, batch_time)) AS finished, timeout_ms AS timeout,
        check_interval_ms AS check_interval, max_age_ms AS max_age, check_jitter_ms AS jitter, check_max,
        coalesce(batch_id - first_batch_id, 0) AS before,
        coalesce(unix_millis(batch_time) - unix_millis(first_batch_time), 0) AS lasted
    FROM {{batches}} WHERE batch_id IS NOT NULL AND batch_time IS NOT NULL
"""


def read_batches(engine: Engine) -> BatchTable:
    """The current rows of `batches`; empty if there is no such table."""
    if not engine.exists(NAME):
        return BatchTable((), np.empty(0, BATCH))
    found = engine.arrow(engine.query(_BATCHES, {NAME: engine.read(NAME)}, {}))
    applications = found.column("application").combine_chunks().dictionary_encode()
    records = np.empty(found.num_rows, BATCH)
    records["application"] = applications.indices.to_numpy()
    for name in found.column_names[1:]:
        records[name] = found.column(name).fill_null(UNKNOWN).to_numpy()
    return _by_place(applications.dictionary.to_pylist(), records)


def stops_question(near: int, far: int) -> Question:
    """batch_id, finished_at of the ``near`` newest batches, of up to ``far`` evenly chosen older ones, and the first.

    The number of stops does not grow with that of the batches: ten thousand are an hour and a half at a trigger of
    500 ms.
    """
    return Question(
        f"""
        SELECT batch_id, finished_at FROM (
            SELECT batch_id, finished_at, row_number() OVER (ORDER BY {ORDER}) AS place,
                count(*) OVER () AS number
            FROM {{batches}}) AS placed
        WHERE place <= :near OR place = number
            OR (place - :near) % greatest(1, CAST(ceil((number - :near) / :far) AS BIGINT)) = 0""",
        ORDER,
        {"near": near, "far": far},
    )


def _by_place(names: Sequence[str], records: Records) -> BatchTable:
    """The records with indexes of the applications in the order of their start."""
    begun = np.full(len(names), np.iinfo(np.int64).max)
    np.minimum.at(begun, records["application"], records["finished"])
    order = sorted(range(len(names)), key=lambda index: (begun[index], names[index]))
    records["application"] = np.argsort(np.array(order, np.int64))[records["application"]]
    return BatchTable(tuple(names[index] for index in order), records)


@dataclass(frozen=True)
class Cut:
    """The rows of all batches up to ``batch``, by batch id and batch time. None: no batch, no rows."""

    batch: WholeBatch | None
    members: tuple[BatchRange, ...]

    @classmethod
    def at(cls, whole: BatchTable, at: int | None, since: BatchTable | None = None) -> Cut | None:
        """The cut at the last batch complete at a time (ms; None = now); None if no batch has a row.

        ``since``: the batches as known later; those that are new in it are left out.
        """
        batches = whole.batches
        if not len(batches):
            return None
        count = cut_at(batches, at)
        others = (since or whole).others(whole.applications, batches[:count])
        return cls(WholeBatch.of(batches[count - 1]) if count else None, members(batches[:count], others))

    def of(self, rows: DataFrame, name: str) -> DataFrame:
        """The rows of a table that belong to the cut; all rows of a table that no batch writes."""
        condition = self.condition(name)
        return rows if condition is None else rows.where(condition)

    def condition(self, name: str) -> str | None:
        """SQL that is true for the rows of a table that belong to the cut; None = all do: no batch writes it."""
        time = batch_time(name)
        if time is None:
            return None
        # Plain columns, without expressions: their statistics allow file skipping.
        within = " OR ".join(
            f"(batch_id BETWEEN {box.first_id} AND {box.last_id}"
            f" AND {time} BETWEEN timestamp_millis({box.first_time}) AND timestamp_millis({box.last_time}))"
            for box in self.members
        )
        return f"({within})" if within else "FALSE"
