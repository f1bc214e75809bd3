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
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    yield csv_line(rows.column_names)
    for row in json_rows(rows):
        yield csv_line(list(row.values()))


def csv_of(value: Any) -> Iterator[str]:
    """The leaves of a JSON value as CSV: a header, then a line each, named as `reconcile.at_work` or `groups.0.why`."""
    yield csv_line(["name", "value"])
    yield from map(csv_line, _leaves("", value))


def _leaves(name: str, value: Any) -> Iterator[list[Any]]:
    if not isinstance(value, (dict, list)):
        yield [name, value]
        return
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(f"{name}.{key}" if name else str(key), each)


def csv_objects(objects: Iterable[Mapping[str, Any]], names: Sequence[str] = ()) -> Iterator[str]:
    """A header with the names (default: the first object's), then each object, as CSV; what it lacks is empty."""
    known = list(names)
    if known:
        yield csv_line(known)
    for each in objects:
        if not known:
            known = list(each)
            yield csv_line(known)
        yield csv_line([each.get(name) for name in known])


def csv_table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    """A header, then each row, as CSV."""
    yield from map(csv_line, (list(cells) for cells in (columns, *rows)))


def csv_line(cells: list[Any]) -> str:
    """A line of CSV: null is empty, a list, object or truth value as JSON has it."""
    line = io.StringIO()
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
