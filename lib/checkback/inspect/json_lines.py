"""Rows as lines of JSON or CSV, as the commands print them: timestamps are UTC, ISO 8601, milliseconds."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from checkback.storage.timestamps import python_times

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CHUNK = 10_000
_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def json_rows(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """Each row as values for JSON, by column."""
    names = rows.column_names
    for batch in python_times(rows).to_batches(_CHUNK):
        for row in zip(*map(_values, batch.columns), strict=True):
            yield dict(zip(names, row, strict=True))


def json_lines(rows: pa.Table) -> Iterator[str]:
    """Each row as a JSON object."""
    return map(_encoded, json_rows(rows))


def csv_lines(rows: pa.Table) -> Iterator[str]:
    """A header, then each row as CSV (RFC 4180), without line ends; null is empty, a list is JSON."""
    yield _csv(rows.column_names)
    for row in json_rows(rows):
        yield _csv(list(row.values()))


def csv_of(value: Any) -> Iterator[str]:
    """The leaves of a JSON value as CSV: a header, then a line each, named as `reconcile.at_work` or `groups.0.why`."""
    yield _csv(["name", "value"])
    yield from map(_csv, _leaves("", value))


def _leaves(name: str, value: Any) -> Iterator[list[Any]]:
    if not isinstance(value, (dict, list)):
        yield [name, value]
        return
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(f"{name}.{key}" if name else str(key), each)


def csv_table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    """A header, then each row, as CSV."""
    yield from map(_csv, (list(cells) for cells in (columns, *rows)))


def _csv(cells: list[Any]) -> str:
    line = io.StringIO()
    # As JSON has them; null is empty.
    texts = [json.dumps(cell) if isinstance(cell, (list, dict, bool)) else cell for cell in cells]
    csv.writer(line, lineterminator="").writerow(texts)
    return line.getvalue()


def _values(column: pa.Array) -> list[Any]:
    """A column's values for JSON. Times all at once: one by one they took longer than all the rest of a row."""
    if pa.types.is_string(column.type):  # for a tenth of the time
        texts: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return texts
    if not pa.types.is_timestamp(column.type):
        values: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
        return values
    ms = column.cast(pa.timestamp("us")).cast(pa.int64()).fill_null(0).to_numpy() // 1000
    times = np.datetime_as_string(ms.astype("M8[ms]"), timezone="UTC").tolist()
    return [time if known else None for time, known in zip(times, column.is_valid().to_pylist(), strict=True)]
