"""Arrow streams as requests: the same messages as JSON's, row by row; and streams of any shape, bounded."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkback.gateway.deduplication.fingerprints import fingerprint, fingerprints
from checkback.gateway.problems import Problem
from checkback.gateway.requests import json_decoder
from checkback.gateway.requests.arrow_decoder import HalfColumns, halves_of_stream, ops_of_stream
from checkback.gateway.requests.half_blocks import SENT
from checkback.gateway.tables import half_rows
from checkback.messages.half import Half
from checkback.messages.limits import PROPERTIES_MAX
from gateway.arrow import HALVES, OPS, SHAPE, columns, stream
from gateway.process import half, op

NOW = 1_795_227_064_579
MOST = 1 << 20
ASSIGNED = ["queue_id", "queue_offset", "store_timestamp"]


def said(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def refused(taken: Any) -> tuple[str, Any]:
    """The code of a refusal, and its field."""
    assert isinstance(taken, Problem), taken
    return taken.code, taken.more.get("field")


def messages_of(taken: HalfColumns) -> list[Half | Problem]:
    """As `json_decoder` has them."""
    columns = {name: taken.rows.column(name).to_pylist() for name in SENT.names}
    columns["properties"] = list(map(dict, columns["properties"]))
    for name in ("born_timestamp", "deliver_at"):
        columns[name] = pc.divide(taken.rows.column(name).cast(pa.int64()), 1000).to_pylist()
    halves = [Half(-1, -1, *half) for half in zip(*(columns[name] for name in Half._fields[2:]), strict=True)]
    by_number = dict(zip(taken.numbers.tolist(), halves, strict=True)) | taken.problems
    return [by_number[number] for number in sorted(by_number)]


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(HALVES, SHAPE, st.sampled_from([None, True]))
def test_half_messages_are_those_of_json(messages: list[dict[str, Any]], shape: Any, committed: bool | None) -> None:
    which, rows, compression = shape
    taken = halves_of_stream(stream(columns(messages, which), rows, compression), NOW, MOST, committed)
    assert isinstance(taken, HalfColumns), taken
    expected = [json_decoder.half(said(fields), NOW, committed) for fields in messages]
    assert messages_of(taken) == expected
    valid = [one for one in expected if not isinstance(one, Problem)]
    assert taken.numbers.tolist() == [n for n, one in enumerate(expected) if not isinstance(one, Problem)]
    if valid:
        assert taken.rows.equals(half_rows(valid, 0, 0, 0).drop_columns(ASSIGNED))
        assert fingerprints(taken.rows).tolist() == [fingerprint(half) for half in valid]
    assert taken.transaction_ids.to_pylist() == [fields.get("transaction_id") for fields in messages]


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(OPS, SHAPE)
def test_ops_are_those_of_json(messages: list[dict[str, Any]], shape: Any) -> None:
    which, rows, compression = shape
    taken = ops_of_stream(stream(columns(messages, which), rows, compression), NOW, MOST)
    assert not isinstance(taken, Problem), taken
    assert taken.messages() == [json_decoder.op(said(fields), NOW) for fields in messages]
    assert taken.transaction_ids.to_pylist() == [fields.get("transaction_id") for fields in messages]


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(HALVES, SHAPE, st.data())
def test_any_bytes_are_taken_or_refused(messages: list[dict[str, Any]], shape: Any, data: st.DataObject) -> None:
    """Streams that are cut off, or in which bytes are changed."""
    which, rows, compression = shape
    body = bytearray(stream(columns(messages, which), rows, compression))
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.integers(0, len(body)))]
    for taken in (halves_of_stream(bytes(body), NOW, MOST), ops_of_stream(bytes(body), NOW, MOST)):
        if isinstance(taken, Problem):
            assert taken.code in ("malformed", "unfit", "body_too_large")
        elif isinstance(taken, HalfColumns):
            messages_of(taken)


@pytest.mark.parametrize("values", [pa.array(["a"]), pa.nulls(1), pa.array([[1]])])
@pytest.mark.parametrize("name", ["tag", "queue_offset", "__index_level_0__"])
def test_unknown_column_is_refused(name: str, values: pa.Array) -> None:
    """As an unknown field of JSON is."""
    taken = halves_of_stream(stream({**columns([half()]), name: values}), NOW, MOST)
    assert refused(taken) == ("unfit", name)
    assert isinstance(taken, Problem)
    assert taken == json_decoder.half({**half(), name: None}, NOW) or name == "queue_offset"
    assert refused(ops_of_stream(stream({**columns([op(0)]), name: values}), NOW, MOST)) == ("unfit", name)


def test_nothing_is_nothing_said() -> None:
    taken = halves_of_stream(stream({"tags": pa.nulls(2)}), NOW, MOST)
    assert isinstance(taken, HalfColumns)
    assert [refused(one) for one in messages_of(taken)] == [("unfit", "transaction_id")] * 2


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("transaction_id", pa.array([1])),
        ("transaction_id", pa.array([b"x"])),
        ("real_topic", pa.array([["x"]])),
        ("body", pa.array(["text"])),
        ("real_queue_id", pa.array([1.0])),
        ("real_queue_id", pa.array([True])),
        ("born_timestamp", pa.array([1], pa.timestamp("us"))),
        ("born_timestamp", pa.array(["2026"])),
        ("properties", pa.array([{"a": "b"}])),
        ("properties", pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32()))),
        ("tags", pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["x"]))),
        ("deliver_at", pa.array([1], pa.duration("ms"))),
    ],
)
def test_type_that_a_column_cannot_have(name: str, values: pa.Array) -> None:
    assert refused(halves_of_stream(stream({**columns([half()]), name: values}), NOW, MOST)) == ("unfit", name)


def test_columns_of_one_name() -> None:
    table = pa.Table.from_arrays([pa.array(["a"])] * 2, ["tags", "tags"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert refused(halves_of_stream(sink.getvalue().to_pybytes(), NOW, MOST)) == ("unfit", "tags")
    both = {**columns([half()]), "delay": pa.array([1]), "delay_ms": pa.array([1])}
    assert refused(halves_of_stream(stream(both), NOW, MOST)) == ("unfit", "delay")


@pytest.mark.parametrize("rows", [0, 1001, 3_000_000])
def test_number_of_rows(rows: int) -> None:
    body = stream({"queue_id": pa.nulls(rows, pa.int32())}, rows=max(1, rows))
    assert refused(halves_of_stream(body, NOW, 64 << 20))[0] == "unfit"
    assert refused(ops_of_stream(body, NOW, 64 << 20))[0] == "unfit"


def test_number_of_messages_and_fields() -> None:
    assert refused(halves_of_stream(stream(columns([half()] * 300), rows=1), NOW, MOST))[0] == "unfit"
    wide = stream({f"c{number}": pa.array([1]) for number in range(300)})
    assert refused(halves_of_stream(wide, NOW, MOST))[0] == "unfit"
    kind: pa.DataType = pa.int8()
    for _ in range(40):
        kind = pa.list_(kind)
    deep = stream({**columns([half()]), "tags": pa.array([None], kind)})
    assert refused(halves_of_stream(deep, NOW, MOST)) == ("unfit", "tags")


@pytest.mark.parametrize("kind", ["compressed", "else", "dictionary", "view", "stated"])
def test_little_that_becomes_much(kind: str) -> None:
    """Compression, one value many times, or a false size of a compressed buffer: refused before it takes memory."""
    large = b"\0" * (1 << 20)
    body = columns([half()] * 1000)
    compression = None
    if kind in ("compressed", "else", "stated"):
        body["body" if kind == "compressed" else "else"] = pa.array([large] * 30 + [b""] * 970)
        compression = "zstd"
    elif kind == "dictionary":
        body["body"] = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int16()), pa.array([large]))
    else:
        once = pa.array([large], pa.binary_view())
        views = np.tile(np.frombuffer(once.buffers()[1], "u1"), 1000)
        body["body"] = pa.Array.from_buffers(
            pa.binary_view(), 1000, [None, pa.py_buffer(views.tobytes()), once.buffers()[2]]
        )
    sent = stream(body, compression=compression)
    if kind == "stated":
        size = struct.pack("<q", 30 << 20)
        assert size in sent
        sent = sent.replace(size, struct.pack("<q", 1 << 45))
    assert len(sent) < 2 << 20
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        assert refused(halves_of_stream(sent, NOW, 16 << 20))[0] == "body_too_large"
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
        assert pa.total_allocated_bytes() - before < 8 << 20
    finally:
        tracemalloc.stop()


def test_property_twice_is_the_last_one() -> None:
    """As in JSON."""
    pairs = pa.array([[("a", "1"), ("b", "2"), ("a", "3")]], pa.map_(pa.string(), pa.string()))
    taken = halves_of_stream(stream({**columns([half()]), "properties": pairs}), NOW, MOST)
    assert isinstance(taken, HalfColumns)
    assert taken.rows.column("properties").to_pylist() == [[("a", "3"), ("b", "2")]]


def test_null_in_properties_is_named() -> None:
    pairs = pa.array([[("a", None)], []], pa.map_(pa.string(), pa.string()))
    taken = halves_of_stream(stream({**columns([half()] * 2), "properties": pairs}), NOW, MOST)
    assert isinstance(taken, HalfColumns)
    assert refused(taken.problems[0]) == ("unfit", "properties")
    assert taken.numbers.tolist() == [1]


def test_text_that_is_no_utf8_is_malformed() -> None:
    body = stream(columns([half("abcdefgh")])).replace(b"abcdefgh", b"abc\xffefgh")
    assert refused(halves_of_stream(body, NOW, MOST))[0] == "malformed"
    body = stream(columns([op(0, "abcdefgh")])).replace(b"abcdefgh", b"abc\xffefgh")
    assert refused(ops_of_stream(body, NOW, MOST))[0] == "malformed"


_END = struct.pack("<iI", -1, 0)


@pytest.mark.parametrize("more", [b"x", b"{}", _END, _END[:4], stream(columns([half("second")]))])
@pytest.mark.parametrize("end", [_END, bytes(4)])
def test_bytes_after_the_end_are_malformed(more: bytes, end: bytes) -> None:
    """Arrow would ignore them, and the messages of a second stream with them."""
    for taken in (
        halves_of_stream(stream(columns([half()])).removesuffix(_END) + end + more, NOW, MOST),
        ops_of_stream(stream(columns([op(0)])).removesuffix(_END) + end + more, NOW, MOST),
    ):
        assert isinstance(taken, Problem)
        assert (taken.code, taken.detail) == ("malformed", f"{len(more)} bytes after the end of the Arrow IPC stream")


@pytest.mark.parametrize("end", [b"", _END, bytes(4), bytes(8), _END + bytes(8), _END + bytes(60)])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_any_end_of_a_stream_is_taken(end: bytes, compression: str | None) -> None:
    """None, that of today, that of Arrow before 0.15, and padding."""
    body = stream(columns([half()] * 3), 2, compression)
    assert body.endswith(_END)
    taken = halves_of_stream(body.removesuffix(_END) + end, NOW, MOST)
    assert isinstance(taken, HalfColumns)
    assert taken.numbers.tolist() == [0, 1, 2]


def test_views_with_bytes_behind_the_last_one_are_taken() -> None:
    """A buffer may be larger than its values, by any number of bytes; the metadata says by how many."""
    sink = pa.BufferOutputStream()
    ids = pa.array(["t-1"], pa.string_view())
    rows = pa.table({"transaction_id": ids, "producer_group": ["orders"], "real_topic": ["pay"], "body": [b"1"]})
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    content, one = sink.getvalue().to_pybytes(), struct.pack("<q", 16)
    places = [at for at in range(len(content)) if content.startswith(one, at)]
    taken = [halves_of_stream(content[:at] + struct.pack("<q", 20) + content[at + 8 :], NOW, MOST) for at in places]
    assert [each for each in taken if isinstance(each, HalfColumns)]
    for each in taken:
        assert isinstance(each, Problem) or each.transaction_ids.to_pylist() == ["t-1"]


def test_very_many_properties_are_refused_before_they_are_objects() -> None:
    """A stream of 13 MB may have a million of them, for which the event loop would wait."""
    rows = [{f"p{number}": "" for number in range(count)} for count in (2000, 500_000, PROPERTIES_MAX // 2)]
    pairs = pa.array([list(row.items()) for row in rows], pa.map_(pa.string(), pa.string()))
    body = stream({**columns([half()] * 3), "properties": pairs})
    tracemalloc.start()
    try:
        taken = halves_of_stream(body, NOW, 16 * MOST)
        assert tracemalloc.get_traced_memory()[1] < 24 * MOST
    finally:
        tracemalloc.stop()
    assert isinstance(taken, HalfColumns)
    assert taken.numbers.tolist() == [0]
    slowly = json_decoder.half(said(half() | {"properties": rows[2]}), NOW)
    assert isinstance(slowly, Problem)
    assert taken.problems[2] == slowly
    assert taken.problems[1].detail == f"properties: 500000 of them, over {PROPERTIES_MAX // 2}"
    assert refused(taken.problems[1]) == refused(slowly)
