"""Lag: age of the oldest commit that no batch has read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.storage.files import table_files
from checkback.storage.files.table_files import commit_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.observe.progress import Progress
    from checkback.storage.tables import Tables


class Lag:
    """The lag of the sources, for tables in local folders: age of the log file of the first unread version.

    Computed on request, so that it grows while a query hangs.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        """``places``: the tables' folders or URIs, by source."""
        self._places = places
        self._unread: dict[str, int] = {}

    @classmethod
    def of(cls, tables: Tables) -> Lag:
        """For the sources ``half`` and ``op``; for none if only Spark can read the tables' logs."""
        names = ("half", "op") if tables.readable else ()
        return cls({name: tables.location(name) for name in names})

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources whose lag is known."""
        return tuple(self._places)

    def read(self, progress: Progress) -> None:
        """Record a completed batch."""
        for source in progress.sources:
            if source.unread is not None and source.name in self._places:
                self._unread[source.name] = source.unread

    def seconds(self, source: str, now: float) -> float:
        """Age of the oldest unread version in s; 0 = everything is read. NaN = not known yet."""
        if source not in self._unread:
            return float("nan")
        try:
            written = table_files.modified(commit_file(self._places[source], self._unread[source])) / 1000
        except OSError:
            return 0.0
        return max(0.0, now - written)
