"""Rows as JSON lines and CSV: each value as it is in the table."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from checkback.query.json_lines import csv_lines, json_lines

_PAIRS: list[Any] = [[("k", "v")], None, [], [("k", None)], [("k", "1"), ("l", "2")], []]
_ROWS = pa.table(
    {
        "at": pa.array([0, None, -1, 1_999, -(1 << 62), 1 << 62], pa.timestamp("us", tz="UTC")),
        "name": ["tx", None, "", "tx'; --\\\x1b[31m\u202e\n", "\u00e9\U0001f600", "0"],
        "number": pa.array([1, None, -(1 << 63), (1 << 63) - 1, 0, 2], pa.int64()),
        "age": [1.5, None, 2.0, -0.0, 1e300, 0.1],
        "map": pa.array(_PAIRS, pa.map_(pa.string(), pa.string())),
        "list": [["a"], None, [], [None], ["\n"], ["a", "b"]],
    }
)
_TIMES = [
    "1970-01-01T00:00:00.000Z",
    None,
    "1969-12-31T23:59:59.999Z",
    "1970-01-01T00:00:00.001Z",
    "0001-01-01T00:00:00.000Z",
    "9999-12-31T23:59:59.999Z",
]
_MAPS = [{"k": "v"}, None, {}, {"k": None}, {"k": "1", "l": "2"}, {}]


def test_each_row_is_a_json_object() -> None:
    """Times beyond Python's range too, in whatever pieces the table comes."""
    rows = pa.concat_tables([_ROWS.slice(0, 1), _ROWS.slice(1, 4), _ROWS.slice(5), _ROWS.slice(0, 0)])
    plain: list[dict[str, Any]] = _ROWS.drop(["at", "map"]).to_pylist()
    expected = [{"at": at, **row, "map": pairs} for at, row, pairs in zip(_TIMES, plain, _MAPS, strict=True)]
    assert [json.loads(line) for line in json_lines(rows)] == expected
    assert list(json_lines(_ROWS.slice(0, 0))) == []


def test_csv_has_the_same_values() -> None:
    header, *lines = csv_lines(_ROWS.slice(0, 2))
    assert header == "at,name,number,age,map,list"
    assert lines == ['1970-01-01T00:00:00.000Z,tx,1,1.5,"{""k"": ""v""}","[""a""]"', ",,,,,"]
