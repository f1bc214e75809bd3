"""Spark's StreamingQueryProgress as flat fields, and the lag: the age of the oldest commit that no batch has read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checkback.storage.files import table_files
from checkback.storage.files.table_files import commit_file
from checkback.storage.schemas import SOURCES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

    from checkback.storage.tables import Tables


@dataclass(frozen=True)
class Source:
    """A source after a batch, with the number of input rows.

    ``unread``: the first version of its table that is not completely read; None = unknown.
    """

    name: str
    rows: int
    unread: int | None


@dataclass(frozen=True)
class Progress:
    """A completed batch. ``seconds``: from its trigger to its commit. State sizes are those of the whole query.

    ``dropped``: rows dropped by Spark's watermark; the protocol does not use one, so this stays 0.
    """

    query: str
    batch_id: int
    seconds: float
    sources: tuple[Source, ...]
    segments: int | None = None
    state_bytes: int | None = None
    dropped: int = 0

    @property
    def fields(self) -> dict[str, Any]:
        """Flat fields for a log line."""
        found: dict[str, Any] = {"query": self.query, "batch_id": self.batch_id, "seconds": round(self.seconds, 3)}
        for source in self.sources:
            found[f"{source.name}_rows"] = source.rows
        if self.segments is not None:
            found |= {"state_segments": self.segments, "state_bytes": self.state_bytes, "rows_dropped": self.dropped}
        return found


def progress(told: Mapping[str, Any]) -> Progress:
    """From the JSON of org.apache.spark.sql.streaming.StreamingQueryProgress. Raises KeyError, TypeError, ValueError.

    The end offset is Delta's (DeltaSourceOffset); the state's size on disk is RocksDB's rocksdbSstFileSize.
    """
    name = str(told["name"])
    sources = told.get("sources", ())
    operators: Sequence[Mapping[str, Any]] = told.get("stateOperators", ())
    sizes = [_number(each.get("customMetrics", {}).get("rocksdbSstFileSize")) for each in operators]
    return Progress(
        query=name,
        batch_id=int(told["batchId"]),
        seconds=_number(told.get("durationMs", {}).get("triggerExecution", told.get("batchDuration"))) / 1000,
        sources=tuple(_source(*each) for each in zip(_names(name, len(sources)), sources, strict=True)),
        segments=sum(int(each["numRowsTotal"]) for each in operators) if operators else None,
        state_bytes=sum(_number(each.get("memoryUsedBytes")) for each in operators) + sum(sizes) if operators else None,
        dropped=sum(int(each.get("numRowsDroppedByWatermark", 0)) for each in operators),
    )


def _names(query: str, count: int) -> tuple[str, ...]:
    known = SOURCES.get(query, ())
    return known if len(known) == count else tuple(f"source_{number}" for number in range(count))


def _source(name: str, told: Mapping[str, Any]) -> Source:
    end = told.get("endOffset")
    return Source(
        name,
        rows=max(0, int(told.get("numInputRows", 0))),
        unread=int(end["reservoirVersion"]) if isinstance(end, dict) and "reservoirVersion" in end else None,
    )


def _number(value: object) -> int:
    """A number of Spark's, which may be a string, missing, or -1 for unknown."""
    return max(0, int(float(str(value)))) if value not in (None, "") else 0


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
        """For what lands and for checks; for none if only Spark can read the tables' logs."""
        names = ("half", "op", "check_requests") if tables.readable else ()
        return cls({name: tables.location(name) for name in names})

    @property
    def sources(self) -> Set[str]:
        """The sources whose lag is known."""
        return self._places.keys()

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
