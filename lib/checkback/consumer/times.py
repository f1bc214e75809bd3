"""Milliseconds since 1970 and UTC datetimes."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MS = timedelta(milliseconds=1)


def time_of(ms: int) -> datetime:
    """The time, UTC."""
    return _EPOCH + ms * _MS


def ms_of(time: datetime) -> int:
    """Whole milliseconds, rounded down. ``time``: aware, or UTC."""
    return ((time if time.tzinfo else time.replace(tzinfo=timezone.utc)) - _EPOCH) // _MS
