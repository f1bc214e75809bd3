"""Rows as lines of JSON or CSV, as the commands print them: timestamps are UTC, ISO 8601, milliseconds."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from checkback.storage.timestamps import python_times

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

_CHUNK = 10_000


def json_rows(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """Each row as values for JSON, by column."""
    for batch in python_times(rows).to_batches(_CHUNK):
        for row in batch.to_pylist(maps_as_pydicts="lossy"):
            yield {name: _value(value) for name, value in row.items()}


def json_lines(rows: pa.Table) -> Iterator[str]:
    """Each row as a JSON object."""
    return (json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in json_rows(rows))


def csv_lines(rows: pa.Table) -> Iterator[str]:
    """A header, then each row as CSV (RFC 4180), without line ends; null is empty, a list is JSON."""
    yield _csv(rows.column_names)
    for row in json_rows(rows):
        yield _csv([json.dumps(cell) if isinstance(cell, (list, dict)) else cell for cell in row.values()])


def _csv(cells: list[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03}Z"
    return value
