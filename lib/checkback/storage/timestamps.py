"""Timestamps in Python's range, years 1 to 9999. Delta, Spark and Arrow reach beyond it, up to the year 294247."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pyarrow.compute as pc

from checkback.errors import SettingsError
from checkback.messages.limits import MS_MAX

#: us: 0001-01-01 and the last millisecond of the year 9999, which is also the maximum in a producer's message
LEAST, MOST = -62_135_596_800_000_000, MS_MAX * 1000
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MS = timedelta(milliseconds=1)
_WITH_ZONE = "give it a time zone: datetime.now(timezone.utc)"


def aware(time: object, name: str) -> datetime:
    """A time that a caller gives as ``name``. Raises SettingsError if it is none, or has no time zone."""
    if not isinstance(time, datetime):
        raise SettingsError(f"{str(time)[:60]!r} is not a time", name, _WITH_ZONE)
    if time.utcoffset() is None:  # UTC or the machine's own: it would mean another moment to each reader
        raise SettingsError(f"{str(time)[:60]!r} has no time zone", name, _WITH_ZONE)
    return time


def time_of(ms: int) -> datetime:
    """The time in UTC of ms since the epoch, clamped to Python's range."""
    return EPOCH + timedelta(milliseconds=min(max(ms, LEAST // 1000), MS_MAX))


def ms_of(time: datetime) -> int:
    """Whole ms since the epoch, rounded down. ``time``: aware, or UTC."""
    return ((time if time.tzinfo else time.replace(tzinfo=timezone.utc)) - EPOCH) // _MS


def time_of_us(us: int) -> datetime:
    """The time in UTC of us since the epoch, which must be in Python's range."""
    return EPOCH + timedelta(microseconds=us)


def us_of(time: datetime) -> int:
    """Us since the epoch of an aware time."""
    return (time - EPOCH) // timedelta(microseconds=1)


def iso(at: datetime | int) -> str:
    """A time in JSON: UTC, ISO 8601, milliseconds. ``at``: aware, or ms since the epoch."""
    time = time_of(at) if isinstance(at, int) else at.astimezone(timezone.utc)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def python_times(rows: pa.Table) -> pa.Table:
    """The rows with timestamps clamped to Python's range; other writers' rows may exceed it.

    Needed before `to_pylist`, which fails for timestamps out of range.
    """
    for place, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "us":
            times = rows.column(place).cast(pa.int64())
            span = pc.min_max(times)
            if pc.less(span["min"], LEAST).as_py() or pc.greater(span["max"], MOST).as_py():
                times = pc.max_element_wise(times, LEAST, skip_nulls=False)
                times = pc.min_element_wise(times, MOST, skip_nulls=False)
                rows = rows.set_column(place, field, times.cast(field.type))
    return rows
