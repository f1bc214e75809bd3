"""A point in time, as `as_of` takes it. Pure: the clock is an argument."""

from __future__ import annotations

import re
from datetime import datetime, time, timezone

from checkback.errors import SettingsError
from checkback.messages.durations import parse_duration

_AGO = re.compile(r"([0-9]+(?:ms|s|m|h|d)) ago")
_TODAY = re.compile(r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{3,6})?)?")
_FORMS = "write 2026-11-20T15:00 (UTC, or with +01:00), 15:00 (today, UTC), or 10m ago"


def parse_as_of(as_of: datetime | str | None, now: datetime | None = None, name: str = "as_of") -> datetime | None:
    """The point in time, in UTC; None (now) for None.

    A naive datetime is UTC. A string is ISO 8601 with date and time, a time of day today, or a duration and "ago".
    ``now`` replaces the clock. Raises SettingsError, which names the formats, and the value as ``name``.
    """
    if as_of is None:
        return None
    if isinstance(as_of, str):
        as_of = _parsed(as_of.strip(), now or datetime.now(timezone.utc), name)
    try:
        return as_of.replace(tzinfo=timezone.utc) if as_of.tzinfo is None else as_of.astimezone(timezone.utc)
    except OverflowError as error:
        raise _refused(str(as_of), name) from error


def _parsed(text: str, now: datetime, name: str) -> datetime:
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            return now - parse_duration(ago[1])
        if _TODAY.fullmatch(text):
            return datetime.combine(now.astimezone(timezone.utc), time.fromisoformat(text))
        # Python 3.10 does not parse Z. A date alone would mean midnight, which is rarely intended.
        if re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}", text):
            return datetime.fromisoformat(text.removesuffix("Z") + ("+00:00" if text.endswith("Z") else ""))
    except (ValueError, OverflowError) as error:
        raise _refused(text, name) from error
    raise _refused(text, name)


def _refused(text: str, name: str) -> SettingsError:
    return SettingsError(f"{text[:60]!r} is not a time", name, _FORMS)
