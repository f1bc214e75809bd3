"""Table `batches` as records for `checkback.inspect.batches`, and cuts of the tables that batches write."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql import functions as F

from checkback.inspect.batches import BATCH, UNKNOWN, BatchSelection, cut_at, in_order, members, turns
from checkback.storage.schemas import BATCH_TIMES, TOPIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from checkback.inspect.batches import BatchRange, Records
    from checkback.storage.tables import Tables

NAME = "batches"
_EPOCH = datetime.fromtimestamp(0, timezone.utc)


@dataclass(frozen=True)
class WholeBatch:
    """A complete batch, from its row in `batches`. Times are UTC."""

    batch_id: int
    batch_time: datetime
    finished_at: datetime

    @classmethod
    def of(cls, record: Records) -> WholeBatch:
        """From a BATCH record."""
        time, finished = (_EPOCH + timedelta(milliseconds=int(record[name])) for name in ("time", "finished"))
        return cls(int(record["batch_id"]), time, finished)


@dataclass(frozen=True)
class BatchTable:
    """The batches that have a row, as BATCH records. ``applications``: hashes, ordered by their start."""

    applications: tuple[int, ...]
    rows: Records

    @property
    def batches(self) -> Records:
        """The batches in order, without duplicates."""
        return in_order(self.rows)

    def others(self, applications: Sequence[int], batches: Records) -> Records:
        """The batches that are not among ``batches``, whose application indexes refer to ``applications``."""
        places = np.array([self.applications.index(name) for name in applications], np.int64)
        known = batches.copy()
        known["application"] = places[batches["application"]]
        mine = self.batches
        return mine[~np.isin(turns(mine), turns(known))]


def batch_time(name: str) -> str | None:
    """The column with the time of the batch that wrote a row; None = no batch of `reconcile` writes the table."""
    return "committed_at" if name.startswith(TOPIC_PREFIX) else BATCH_TIMES.get(name)


def read_batches(spark: SparkSession, tables: Tables) -> BatchTable:
    """The current rows of `batches`; empty if there is no such table. A small Spark job."""
    versions = tables.history(spark, NAME, 1)
    if not versions:
        return BatchTable((), np.empty(0, BATCH))
    columns = {
        "application": hashed(),
        "batch_id": F.col("batch_id"),
        "time": F.unix_millis("batch_time"),
        "finished": F.unix_millis(F.coalesce("finished_at", "batch_time")),
        "timeout": F.col("timeout_ms"),
        "check_interval": F.col("check_interval_ms"),
        "reserved": F.col("reserved_ms"),
        "jitter": F.col("check_jitter_ms"),
        "check_max": F.col("check_max"),
    }
    rows = tables.read(spark, NAME, max(versions)).where("batch_id IS NOT NULL AND batch_time IS NOT NULL")
    found = rows.select(*(column.cast("bigint").alias(name) for name, column in columns.items())).toArrow()
    records = np.empty(found.num_rows, BATCH)
    for name in columns:
        records[name] = found.column(name).fill_null(UNKNOWN).to_numpy()
    return _by_place(records)


def _by_place(records: Records) -> BatchTable:
    """The records with application hashes replaced by indexes."""
    applications, which = np.unique(records["application"], return_inverse=True)
    begun = np.full(len(applications), np.iinfo(np.int64).max)
    np.minimum.at(begun, which, records["finished"])
    order = np.argsort(begun, kind="stable")
    records["application"] = np.argsort(order)[which]
    return BatchTable(tuple(int(application) for application in applications[order]), records)


def hashed() -> Column:
    """Hash of the application; null is hashed as the empty string."""
    return F.xxhash64(F.coalesce("application", F.lit("")))


def place_of(applications: Iterable[int]) -> Column:
    """Index of the row's application among the applications."""
    pairs = [F.lit(part).cast("bigint") for place, name in enumerate(applications) for part in (name, place)]
    return F.element_at(F.create_map(*pairs), hashed())


@dataclass(frozen=True)
class Cut:
    """The rows of all batches up to ``batch``. None: only those before the first batch, of the previous release."""

    batch: WholeBatch | None
    members: BatchSelection

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
        time = batch_time(name)
        if time is None:
            return rows
        past = F.col(time) < F.timestamp_millis(F.lit(self.members.past_until))
        if self.members.later:
            past = past & ~_within(self.members.later, time)
        return rows.where(past | _within(self.members.boxes, time) if self.members.boxes else past)


def _within(boxes: Iterable[BatchRange], time: str) -> Column:
    # Plain columns, without expressions: their statistics allow file skipping.
    return reduce(
        or_,
        (
            F.col("batch_id").between(box.first_id, box.last_id)
            & F.col(time).between(F.timestamp_millis(F.lit(box.first_time)), F.timestamp_millis(F.lit(box.last_time)))
            for box in boxes
        ),
    )
