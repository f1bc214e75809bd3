"""Milliseconds since 1970 and UTC datetimes."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from checkback.storage.timestamps import time_of

__all__ = ["ms_of", "time_of"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MS = timedelta(milliseconds=1)


def ms_of(time: datetime) -> int:
    """Whole milliseconds, rounded down. ``time``: aware, or UTC."""
    return ((time if time.tzinfo else time.replace(tzinfo=timezone.utc)) - _EPOCH) // _MS
