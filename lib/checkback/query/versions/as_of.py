"""A point in time, as `as_of` takes it. Pure."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta, timezone

from checkback.errors import SettingsError
from checkback.messages.durations import parse_duration
from checkback.storage.timestamps import aware

_AGO = re.compile(r"([0-9]+(?:ms|s|m|h|d)) ago")
_TODAY = re.compile(r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{3,6})?)?")
#: how far ahead of this clock a time may be: that of another machine, which wrote what is asked for
_AHEAD = timedelta(minutes=1)
_FORMS = "write 2026-11-20T15:00 (UTC, or with +01:00), 15:00 (today, UTC), or 10m ago"


def parse_as_of(as_of: datetime | str | None, now: datetime | None = None, name: str = "as_of") -> datetime | None:
    """The point in time, in UTC; None (now) for None.

    A datetime has a time zone. A string, UTC without one, is ISO 8601 with date and time, a time of day today, or a
    duration and "ago"; not in the future, where 23:50, asked for at 00:10, would be. ``now`` replaces the clock. Raises
    SettingsError, which names the formats, and the value as ``name``; also for a datetime without a time zone.
    """
    if as_of is None:
        return None
    if not isinstance(as_of, str):
        return _in_utc(aware(as_of, name), str(as_of), name)
    now = now or _now()
    text = as_of.strip()
    moment = _in_utc(_parsed(text, now, name), text, name)
    if moment - now > _AHEAD:
        day_before = f"{moment - timedelta(days=1):%Y-%m-%dT%H:%M}"
        fix = f"for the day before write {day_before}" if _TODAY.fullmatch(text) else "ask for a time that is over"
        raise SettingsError(
            f"{text[:60]!r} is in the future: it is {now.astimezone(timezone.utc):%H:%M} UTC", name, fix
        )
    return moment


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _in_utc(moment: datetime, text: str, name: str) -> datetime:
    try:
        return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)
    except OverflowError as error:
        raise _refused(text, name) from error


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
