"""Durations as text: in settings and messages (500ms, 6s, 1m, 72h, 2d), and on screen (3m 20s)."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = (
    ("d", timedelta(days=1)),
    ("h", timedelta(hours=1)),
    ("m", timedelta(minutes=1)),
    ("s", timedelta(seconds=1)),
    ("ms", timedelta(milliseconds=1)),
)
_DURATION = re.compile(r"([0-9]{1,18})(ms|s|m|h|d)")
#: With at most a century every computed timestamp is in the range of Spark, pandas and Python.
LONGEST = timedelta(days=36500)


def parse_duration(text: str) -> timedelta:
    """Parse text such as ``6s``, ``500ms``, ``1m``, ``72h`` or ``2d``. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration")
    number, unit = match.groups()
    # Compare before multiplying: timedelta overflows.
    if int(number) > LONGEST / dict(_UNITS)[unit]:
        raise ValueError(f"{text!r} is longer than {format_duration(LONGEST)}")
    return int(number) * dict(_UNITS)[unit]


def format_duration(duration: timedelta) -> str:
    """The shortest text that ``parse_duration`` parses to the same whole number of milliseconds."""
    for unit, length in _UNITS:
        if duration and not duration % length:
            return f"{duration // length}{unit}"
    return f"{duration // timedelta(milliseconds=1)}ms" if duration else "0s"


def seconds_of(name: str, duration: timedelta) -> float:
    """The seconds of an argument of that name. Raises TypeError for a plain number, which has no unit."""
    if not isinstance(duration, timedelta):
        raise TypeError(f"{name} is a timedelta, such as timedelta(seconds=20)")
    return duration.total_seconds()


def span(seconds: float) -> str:
    """A duration as people are shown it: 12s, 3m 20s, 2h 5m, 3d 4h."""
    whole = max(0, int(seconds))
    for size, unit, less, part in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // less
            return f"{whole // size}{unit}" + (f" {rest}{part}" if rest else "")
    return f"{whole}s"
