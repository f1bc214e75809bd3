"""Runs of batches: one row of `batches` that stands for consecutive ones. Pure: no I/O, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

#: a run of several batches has no more published messages, and lasts no longer (us): a consumer reads it at once
MOST_MESSAGES, MOST_US = 100_000, 86_400_000_000
_RULES = (
    "checkback_version",
    "timeout_ms",
    "check_interval_ms",
    "check_max",
    "max_age_ms",
    "check_jitter_ms",
    "count_undelivered",
)
#: null = none, where other counts are known
_NONE_IF_NULL = ("scheduled", "delivered", "cancelled")
_COUNTS = ("committed", "rolled_back", "discarded", *_NONE_IF_NULL, "checks", "rejected", "unpublished")
_LOWEST = np.iinfo(np.int64).min


def runs_of(rows: pa.Table) -> pa.Table:
    """The rows of `batches` with runs of consecutive batches made one row each, by application and batch id.

    A run has batches of one application with consecutive ids, non-decreasing times and the same rules, at most
    MOST_MESSAGES published ones and MOST_US long, and no other of the rows is between its ids and times. A batch
    without an application, counts or `table_versions` stays by itself, as do several rows of one batch. In a run's row
    counts are sums, `table_versions` has the last known version of each table, and `read_ranges` begin with the first
    and end with the last batch. Rows that are runs already can be part of a longer one.

    ``rows``: with the columns of `batches`, of which all but application, batch_id, batch_time, finished_at, committed,
    scheduled, delivered, table_versions, first_batch_id and first_batch_time may be missing.
    """
    rows = _sorted(rows)
    if not len(rows):
        return rows
    part = _Columns(rows)
    starts = _limited(part, part.starts())
    apart = _crossed(part, starts)
    if apart.any():
        starts |= apart
        starts[1:] |= apart[:-1]
    return _merged(rows, part, np.flatnonzero(starts))


def ambiguous(rows: pa.Table) -> bool:
    """True if a batch of one application is between the ids and times of another's run. Columns as for `runs_of`."""
    rows = _sorted(rows)
    return len(rows) > 0 and bool(_crossed(_Columns(rows), np.ones(len(rows), bool)).any())


def _sorted(rows: pa.Table) -> pa.Table:
    return rows.combine_chunks().sort_by([(name, "ascending") for name in ("application", "batch_id", "finished_at")])


class _Columns:
    """The columns by which runs are found, as integers. Times: us."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        self.application = _codes(rows.column("application"))
        self.last_id, self.last_time = _integers(rows, "batch_id"), _integers(rows, "batch_time")
        self.first_id = _or(_integers(rows, "first_batch_id"), self.last_id)
        self.first_time = _or(_integers(rows, "first_batch_time"), self.last_time)
        self.finished = _or(_integers(rows, "finished_at"), self.last_time)
        known = {name: _integers(rows, name) for name in ("committed", "scheduled", "delivered")}
        self.published = (
            known["committed"] - np.maximum(known["scheduled"], 0) + np.maximum(known["delivered"], 0)  # null: lowest
        )
        self.alone: Flags = (
            (self.application < 0)
            | (self.last_id == _LOWEST)
            | (self.last_time == _LOWEST)
            | (known["committed"] == _LOWEST)
            | ~_valid(rows, "table_versions")
        )

    def starts(self) -> Flags:
        """Which rows cannot continue the run of the one before."""
        last = slice(None, -1)
        starts: Flags = self.alone.copy()
        starts[1:] |= self.alone[last]
        starts[0] = True
        same = self.application[1:] == self.application[last]
        starts[1:] |= ~same | (self.first_id[1:] != self.last_id[last] + 1)
        starts[1:] |= (self.first_time[1:] < self.last_time[last]) | (self.finished[1:] < self.finished[last])
        twice = np.flatnonzero(same & (self.first_id[1:] <= self.last_id[last])) + 2
        starts[twice[twice < len(starts)]] = True
        for name in _RULES:
            if name in self.rows.schema.names:
                rule = _codes(self.rows.column(name))
                starts[1:] |= rule[1:] != rule[last]
        if "restored_at" in self.rows.schema.names:
            starts |= _valid(self.rows, "restored_at")
        return starts


def _limited(part: _Columns, starts: Flags) -> Flags:
    """``starts``, and those of runs that would be too large."""
    published = np.cumsum(np.where(part.alone, 0, np.maximum(part.published, 0)))
    begins = np.flatnonzero(starts)
    found: Flags = starts.copy()
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(starts)], strict=True):
        at = begin
        while at < end:
            found[at] = True
            before = published[at - 1] if at else 0
            last = int(np.searchsorted(published[at:end], before + MOST_MESSAGES, "right"))
            last = min(last, int(np.searchsorted(part.last_time[at:end], part.first_time[at] + MOST_US, "right")))
            at += max(1, last)
    return found


def _crossed(part: _Columns, starts: Flags) -> Flags:
    """The rows of runs between whose ids and times there is a row of another application: after a clock set back."""
    found: Flags = np.zeros(len(starts), bool)
    if (part.application == part.application[0]).all():
        return found
    run = np.cumsum(starts) - 1
    begins = np.flatnonzero(starts)
    ends = np.append(begins[1:], len(starts)) - 1
    first_time, last_time = part.first_time[begins], part.last_time[ends]
    order = np.argsort(first_time, kind="stable")
    latest = np.maximum.accumulate(last_time[order])
    crossed = np.zeros(len(begins), bool)
    for place, one in enumerate(order.tolist()):
        # Those that begin earlier and may last until then, and those that begin before its end.
        low = int(np.searchsorted(latest, first_time[one]))
        high = int(np.searchsorted(first_time[order], last_time[one], "right")) if ends[one] > begins[one] else place
        for other in order[low:high].tolist():
            mine, its = begins[one], begins[other]
            if (
                part.application[mine] != part.application[its]
                and last_time[other] >= first_time[one]
                and part.last_id[ends[other]] >= part.first_id[mine]
                and part.first_id[its] <= part.last_id[ends[one]]
            ):
                crossed[one] = crossed[other] = True
    found |= crossed[run]
    return found


def _merged(rows: pa.Table, part: _Columns, begins: Integers) -> pa.Table:
    """The runs that begin there, a row each."""
    ends = np.append(begins[1:], len(rows)) - 1
    several = ends > begins
    if not several.any():
        return rows
    last = rows.take(pa.array(ends))
    first = pa.array(begins)
    columns = {name: last.column(name) for name in rows.schema.names}
    for name, values in (("first_batch_id", part.first_id), ("first_batch_time", part.first_time)):
        own = columns[name].combine_chunks()
        columns[name] = pc.if_else(pa.array(several), pa.array(values[begins]).cast(own.type), own)
    for name in _COUNTS:
        if name in columns:
            columns[name] = _sums(rows, name, begins, columns[name].type)
    run = np.repeat(np.arange(len(begins)), ends - begins + 1)
    columns["table_versions"] = _united(rows.column("table_versions"), run, len(begins))
    if "read_ranges" in columns:
        columns["read_ranges"] = _united(rows.column("read_ranges"), run, len(begins))
    if "restored_at" in columns:
        columns["restored_at"] = rows.column("restored_at").take(first)
    return pa.Table.from_arrays(list(columns.values()), schema=rows.schema)


def _sums(rows: pa.Table, name: str, begins: Integers, kind: pa.DataType) -> pa.Array:
    """A count's sum in each run; null if one is not known."""
    values, valid = _integers(rows, name), _valid(rows, name)
    sums = np.add.reduceat(np.where(valid, values, 0), begins)
    known = np.logical_or if name in _NONE_IF_NULL else np.logical_and
    return pa.array(sums, mask=~known.reduceat(valid, begins)).cast(kind)


def _united(column: pa.ChunkedArray, run: Integers, count: int) -> pa.Array:
    """The maps of each run's rows as one: of a range its first beginning and last end, of a version the last known."""
    maps = _one(column)
    offsets = maps.offsets.to_numpy()
    keys, items = (each.slice(offsets[0], offsets[-1] - offsets[0]) for each in (maps.keys, maps.items))
    runs = run[np.repeat(np.arange(len(maps)), np.diff(offsets))]
    codes = _codes(keys)
    known = np.ones(len(runs), bool) if pa.types.is_struct(items.type) else items.to_numpy(zero_copy_only=False) >= 0
    order = np.lexsort((known, codes, runs))
    changed = (np.diff(runs[order]) != 0) | (np.diff(codes[order]) != 0)
    begins = np.flatnonzero(np.append(True, changed)) if len(order) else np.zeros(0, np.int64)
    last = pa.array(order[np.append(begins[1:], len(order)) - 1] if len(order) else begins)
    found = items.take(last)
    if pa.types.is_struct(items.type):
        first = items.take(pa.array(order[begins]))
        fields = [
            (first if field.name.startswith("from_") else found).field(place) for place, field in enumerate(items.type)
        ]
        found = pa.StructArray.from_arrays(fields, fields=list(items.type))
    numbers = np.bincount(runs[order[begins]], minlength=count) if len(order) else np.zeros(count, np.int64)
    valid = np.zeros(count, bool)
    valid[run[np.flatnonzero(maps.is_valid().to_numpy(zero_copy_only=False))]] = True
    bounds = np.append(0, np.cumsum(numbers)).astype(np.int32)
    # A null map is one whose offset is null.
    starts = pa.array(bounds, mask=np.append(~valid, False))
    return pa.MapArray.from_arrays(starts, keys.take(last), found, type=maps.type)


def _one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _codes(column: pa.ChunkedArray | pa.Array) -> Integers:
    """A number for each value; -1 = null."""
    found: Integers = pc.fill_null(_one(column).dictionary_encode().indices, -1).to_numpy().astype(np.int64)
    return found


def _integers(rows: pa.Table, name: str) -> Integers:
    """A column's integers; the lowest = null."""
    column = rows.column(name)
    kind = pa.int64()
    found: Integers = pc.fill_null(_one(column).cast(kind), _LOWEST).to_numpy()
    return found


def _or(values: Integers, instead: Integers) -> Integers:
    return np.where(values == _LOWEST, instead, values)


def _valid(rows: pa.Table, name: str) -> Flags:
    found: Flags = _one(rows.column(name)).is_valid().to_numpy(zero_copy_only=False)
    return found
