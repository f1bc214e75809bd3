"""Which version of a table was current at a point in time. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

#: fix for a version that Delta can no longer read
TOO_LONG_AGO = (
    "ask for a later time; a longer maintain.retention, and delta.deletedFileRetentionDuration of the tables, keep more"
)


def version_at(oldest: int, newest: int, made_at: Callable[[int], int], at_ms: int) -> int | None:
    """The last version committed at or before ``at_ms``; None if all readable ones are younger.

    ``made_at``: commit time of a version (ms); called for about log2(newest - oldest) of them. Times should not
    decrease: if a clock was set back, the result is a version between one committed before and one committed after.
    """
    if made_at(oldest) > at_ms:
        return None
    # Invariant: made_at(first) <= at_ms; everything from `after` on is younger.
    first, after = oldest, newest + 1
    while after - first > 1:
        middle = (first + after) // 2
        if made_at(middle) <= at_ms:
            first = middle
        else:
            after = middle
    return first


def cleaned_up(table: str, readable_from: datetime) -> SettingsError:
    """The error for a point in time whose versions have been removed from the log."""
    return SettingsError(
        f"its log begins at {readable_from:%Y-%m-%dT%H:%M:%S}Z: older versions were cleaned up",
        table,
        f"ask for {readable_from:%Y-%m-%dT%H:%M:%S}Z or later; "
        "a longer maintain.log_retention, in a catalog delta.logRetentionDuration, keeps more",
    )
