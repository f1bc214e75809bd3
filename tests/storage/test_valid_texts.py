"""Rows whose text is not UTF-8, as another writer may store them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from checkback.storage.schemas import arrow_schema
from checkback.storage.timestamps import MOST
from checkback.storage.valid_texts import python_values, valid_texts
from support.odd_rows import BAD, REPLACED, bad_texts

#: a value of each kind, with b"bad" where text is not UTF-8
VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), ["bad", "good", None, ""]),
    (pa.map_(pa.string(), pa.string()), [[("bad", "a"), ("b", "bad")], None, [], [("k", None), ("bad", "bad")]]),
    (
        pa.list_(pa.struct([("endpoint", pa.string()), ("error", pa.string())])),
        [[{"endpoint": "bad", "error": None}], None, [], [{"endpoint": "e", "error": "bad"}, None]],
    ),
    (pa.struct([("tags", pa.string()), ("body", pa.binary())]), [{"tags": "bad", "body": b"\xff"}, None]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[str(kind) for kind, _ in VALUES])
@pytest.mark.parametrize("first", [0, 1])
def test_what_is_not_utf8_is_replaced_and_nothing_else(kind: pa.DataType, values: list[Any], first: int) -> None:
    """In whatever part of whatever column, in a slice, too."""
    rows = pa.table({"n": pa.array(range(2 * len(values))), "text": pa.array(values * 2, kind)}).slice(first)
    odd = bad_texts(rows)
    assert valid_texts(rows) is rows
    if first == 0 or pa.types.is_string(kind):
        with pytest.raises((UnicodeDecodeError, pa.ArrowInvalid)):
            odd.validate(full=True)
    found = valid_texts(odd)
    found.validate(full=True)
    assert found.schema == rows.schema
    told = repr(rows.to_pylist()).replace("'bad'", repr(REPLACED))
    assert repr(found.to_pylist()) == told


def test_times_and_texts_together() -> None:
    """As `to_pylist` needs them."""
    far = pa.array([MOST + 1, 0], pa.int64()).cast(pa.timestamp("us", "UTC"))
    texts = pa.array([BAD, b"ok"], pa.binary()).view(pa.string())
    schema = arrow_schema("half")
    rows = pa.table({"transaction_id": texts, "born_timestamp": far})
    assert rows.schema.field("born_timestamp").type == schema.field("born_timestamp").type
    first, second = python_values(rows).to_pylist()
    assert (first["transaction_id"], first["born_timestamp"].year) == (REPLACED, 9999)
    assert second == {"transaction_id": "ok", "born_timestamp": datetime.fromtimestamp(0, timezone.utc)}
