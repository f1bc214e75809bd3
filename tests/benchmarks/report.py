"""What a benchmark says: figures as JSON lines on stdout, progress on stderr, and how much smaller than life it is."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGES = ("checkback", "pyspark", "delta-spark", "deltalake", "pyarrow")


def scale() -> float:
    """What every size and time is multiplied by: SCALE in the environment. Figures are those of SCALE=1."""
    return float(os.environ.get("SCALE", "1"))


def scaled(size: int, least: int) -> int:
    """A size as large as SCALE makes it, but not below ``least``."""
    return max(least, round(size * scale()))


def report(name: str, value: float, unit: str, n: int, **details: Any) -> None:
    """One JSON line: a figure. ``n``: what it was taken of, as rounds of a median or samples of a quantile."""
    line = {
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "n": n,
        **details,
        "scale": scale(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {_memory()} GB",
        "versions": {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}},
    }
    print(json.dumps(line), flush=True)


def say(text: str) -> None:
    """Progress, for whoever waits."""
    print(text, file=sys.stderr, flush=True)


def rounded(values: Sequence[float]) -> list[float]:
    """Each round's value, as the details of a figure show them."""
    return [round(value, 3) for value in values]


def p99(values: Sequence[float]) -> float:
    """The 99th percentile; of a single value that value."""
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def _memory() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30))
