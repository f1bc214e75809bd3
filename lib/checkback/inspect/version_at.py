"""Which version of a table was the newest at a moment. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

#: what to do about a version that Delta does not read any more
TOO_LONG_AGO = "ask for a later time; a longer delta.deletedFileRetentionDuration of the tables keeps more"


def version_at(oldest: int, newest: int, made_at: Callable[[int], int], at_ms: int) -> int | None:
    """The last version made at or before ``at_ms``; None when all that can be read are younger.

    ``made_at``: when a version was made (ms); asked for about log2(newest - oldest) of them. The times should not
    fall: where a clock was put back, it is a version between two of which one was made before and one after.
    """
    if made_at(oldest) > at_ms:
        return None
    # made_at(first) <= at_ms always; everything from `after` on is younger.
    first, after = oldest, newest + 1
    while after - first > 1:
        middle = (first + after) // 2
        if made_at(middle) <= at_ms:
            first = middle
        else:
            after = middle
    return first


def cleaned_up(table: str, readable_from: datetime) -> SettingsError:
    """The error for a moment whose versions are gone from the log."""
    return SettingsError(
        f"its log begins at {readable_from:%Y-%m-%dT%H:%M:%S}Z: older versions were cleaned up",
        table,
        f"ask for {readable_from:%Y-%m-%dT%H:%M:%S}Z or later; a longer delta.logRetentionDuration keeps more",
    )
