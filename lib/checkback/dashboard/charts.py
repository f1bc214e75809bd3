"""Charts as the coordinates of inline SVG: stacked bars, lines, a transaction's events in time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: size of a chart in SVG units
WIDTH, HEIGHT = 640, 160
#: the first and last time of charts that are compared
Axis: TypeAlias = "tuple[datetime, datetime] | None"
_LAST = datetime.max.replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class Bar:
    """A rectangle; ``kind`` chooses its colour, ``title`` is what a pointer shows."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str


@dataclass(frozen=True)
class Chart:
    """``bars``, or a ``line`` as points; the first and last time, and the value of the upper edge."""

    bars: tuple[Bar, ...]
    line: str
    begin: datetime | None
    end: datetime | None
    top: int
    kinds: tuple[str, ...] = ()


def axis(every: timedelta, *series: Sequence[Mapping[str, Any]]) -> Axis:
    """The time of several charts: from the first interval of all rows to the end of the last; None = no times."""
    minutes = [row["minute"] for rows in series for row in rows if row["minute"] is not None]
    return (min(minutes), min(max(minutes), _LAST - every) + every) if minutes else None


def stacked(rows: Sequence[Mapping[str, Any]], kind: str, count: str, every: timedelta, over: Axis = None) -> Chart:
    """Bars of each interval, stacked by ``kind``. Rows: minute, ``kind``, ``count``; ``over``: of `axis`."""
    found: dict[datetime, dict[str, int]] = {}
    for row in rows:
        if row["minute"] is not None:
            of = found.setdefault(row["minute"], {})
            of[str(row[kind])] = of.get(str(row[kind]), 0) + int(row[count])
    over = over or axis(every, rows)
    if not found or over is None:
        return Chart((), "", None, None, 0)
    begin, end = over
    top = max(sum(of.values()) for of in found.values())
    kinds = tuple(sorted({name for of in found.values() for name in of}))
    scale = WIDTH / ((end - begin) / every)
    bars = []
    for minute, of in sorted(found.items()):
        y = float(HEIGHT)
        for name in kinds:
            if name in of:
                height = of[name] / top * HEIGHT
                y -= height
                title = f"{minute:%Y-%m-%d %H:%M:%S}: {of[name]} {name}"
                x = (minute - begin) / every * scale
                bars.append(
                    Bar(round(x, 1), round(y, 1), round(max(scale * 0.86, 1), 1), round(height, 1), name, title)
                )
    return Chart(tuple(bars), "", begin, end, top, kinds)


def line(rows: Sequence[Mapping[str, Any]], count: str, every: timedelta, over: Axis = None) -> Chart:
    """A line through the sum of ``count`` at each interval's end. Rows: minute, ``count``; ``over``: of `axis`."""
    found: dict[datetime, int] = {}
    for row in rows:
        if row["minute"] is not None:
            found[row["minute"]] = found.get(row["minute"], 0) + int(row[count])
    over = over or axis(every, rows)
    if not found or over is None:
        return Chart((), "", None, None, 0)
    begin, end = over
    top = max(1, *found.values())
    points = [
        f"{((minute - begin) + every) / (end - begin) * WIDTH:.1f},{HEIGHT - value / top * HEIGHT:.1f}"
        for minute, value in sorted(found.items())
    ]
    return Chart((), " ".join(points), begin, end, top)


def positions(times: Sequence[datetime | None]) -> list[float]:
    """Where events lie between the first (0) and the last (100), in percent; those without a time at the end."""
    known = [at for at in times if at is not None]
    if not known:
        return [100.0] * len(times)
    begin, length = min(known), max(known) - min(known)
    if not length:
        return [0.0] * len(times)
    return [100.0 if at is None else round((at - begin) / length * 100, 2) for at in times]
