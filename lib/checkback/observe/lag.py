"""Lag: age of the oldest commit that no batch has read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from checkback.storage.paths import local_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.observe.progress import Progress
    from checkback.storage.tables import Tables


class Lag:
    """The lag of the sources, for tables in local folders: age of the log file of the first unread version.

    Computed on request, so that it grows while a query hangs.
    """

    def __init__(self, logs: Mapping[str, str]) -> None:
        self._logs = logs
        self._unread: dict[str, int] = {}

    @classmethod
    def of(cls, tables: Tables) -> Lag:
        """For the sources ``half`` and ``op``; for none if the tables are not in local folders."""
        places = {} if tables.catalog else {name: local_path(tables.location(name)) for name in ("half", "op")}
        return cls({name: f"{place}/_delta_log" for name, place in places.items() if place is not None})

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources whose lag is known."""
        return tuple(self._logs)

    def read(self, progress: Progress) -> None:
        """Record a completed batch."""
        for source in progress.sources:
            if source.unread is not None and source.name in self._logs:
                self._unread[source.name] = source.unread

    def seconds(self, source: str, now: float) -> float:
        """Age of the oldest unread version in s; 0 = everything is read. NaN = not known yet."""
        if source not in self._unread:
            return float("nan")
        try:
            written = os.stat(f"{self._logs[source]}/{self._unread[source]:020}.json").st_mtime
        except OSError:
            return 0.0
        return max(0.0, now - written)
