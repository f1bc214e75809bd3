"""Spark's StreamingQueryProgress as flat fields. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checkback.storage.schemas import SOURCES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
