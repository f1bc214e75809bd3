"""Delta's statistics of a data file (PROTOCOL.md of delta-io/delta, Per-file Statistics)."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from checkback.storage.timestamps import iso

if TYPE_CHECKING:
    import pyarrow as pa

#: timestamps are truncated to milliseconds: a maximum is rounded up, so that data skipping loses no rows
_UP = timedelta(microseconds=999)


class FileStatistics:
    """Minimum and maximum by column, while the file is being written."""

    def __init__(self) -> None:
        self._spans: dict[str, tuple[Any, Any] | None] = {}

    def add(self, column: str, values: pa.ChunkedArray) -> None:
        """Include these values. A column with nulls gets no statistics: it is never used for data skipping."""
        found = pc.min_max(values).as_py()
        span = found["min"], found["max"]
        known = self._spans.setdefault(column, span)
        if known is not None:
            self._spans[column] = None if values.null_count else (min(known[0], span[0]), max(known[1], span[1]))

    def json(self, rows: int) -> str:
        """As in the log, for a file of this many rows."""
        spans = {column: span for column, span in self._spans.items() if span is not None}
        return json.dumps(
            {
                "numRecords": rows,
                "minValues": {column: _plain(least) for column, (least, _) in spans.items()},
                "maxValues": {
                    column: _plain(most + _UP if isinstance(most, datetime) else most)
                    for column, (_, most) in spans.items()
                },
                "nullCount": dict.fromkeys(spans, 0),
            }
        )


def _plain(value: Any) -> Any:
    return iso(value) if isinstance(value, datetime) else value
