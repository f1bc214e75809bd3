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
    """Minimum, maximum and number of nulls by column, while the file is being written."""

    def __init__(self) -> None:
        self._spans: dict[str, tuple[Any, Any]] = {}
        self._nulls: dict[str, int] = {}

    def add(self, column: str, values: pa.ChunkedArray) -> None:
        """Include these values."""
        self._nulls[column] = self._nulls.get(column, 0) + values.null_count
        found = pc.min_max(values).as_py()
        if found["min"] is not None:
            least, most = self._spans.get(column, (found["min"], found["max"]))
            self._spans[column] = min(least, found["min"]), max(most, found["max"])

    def json(self, rows: int) -> str:
        """As in the log, for a file of this many rows.

        Each column is in ``nullCount``: deltalake's datasets (delta-rs 1.6) take one that is missing there, also from
        empty maps, for a column without any value, and skip the file.
        """
        if not self._nulls:
            return json.dumps({"numRecords": rows})
        return json.dumps(
            {
                "numRecords": rows,
                "minValues": {column: _plain(least) for column, (least, _) in self._spans.items()},
                "maxValues": {
                    column: _plain(most + _UP if isinstance(most, datetime) else most)
                    for column, (_, most) in self._spans.items()
                },
                "nullCount": self._nulls,
            }
        )


def _plain(value: Any) -> Any:
    return iso(value) if isinstance(value, datetime) else value
