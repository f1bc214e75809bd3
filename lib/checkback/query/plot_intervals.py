"""Intervals for readable plots: a limited number, of a usual length. Pure."""

from __future__ import annotations

from datetime import timedelta

#: most bars of a plot
MOST = 90
_SECOND, _MINUTE, _HOUR, _DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
#: lengths of intervals: each divides the next larger unit, so that bars begin at round times
LENGTHS = (
    *(number * _SECOND for number in (1, 2, 5, 10, 15, 30)),
    *(number * _MINUTE for number in (1, 2, 5, 10, 15, 30)),
    *(number * _HOUR for number in (1, 2, 3, 6, 12)),
    _DAY,
)


def interval_for(span: timedelta, most: int = MOST) -> timedelta:
    """The shortest usual interval that divides the span into at most ``most``: 1 s to 1 d, then whole days."""
    for length in LENGTHS:
        if span <= most * length:
            return length
    return -(-span // (most * _DAY)) * _DAY


def in_words(seconds: float) -> str:
    """A duration for display: 0.4 s, 12 s, 3 min, 2.5 h, 3 d."""
    for unit, name, until in ((1, "s", 120), (60, "min", 120 * 60), (3600, "h", 48 * 3600)):
        if abs(seconds) < until:
            return f"{_short(seconds / unit)} {name}"
    return f"{_short(seconds / 86400)} d"


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0") if abs(number) < 10 else f"{number:,.0f}"
