"""Lines of a file become rows: types, places, and what is kept of a line that is no message."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from checkback.landing import parser as module
from checkback.landing.parser import DIGEST_OF, LINES, Kind, digest, parser
from checkback.messages.limits import RAW_MAX
from landing.fixtures import half, op

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
TIME = pa.timestamp("us", tz="UTC")

_MAX_DELAY = 40 * 86_400_000


def batch_of(*texts: bytes, file: str = "file:///in/a%20b.jsonl") -> pa.RecordBatch:
    number = len(texts)
    return pa.RecordBatch.from_pydict(
        {
            "line": pa.array(texts, pa.binary()),
            "fault": pa.nulls(number, pa.string()),
            "file": pa.array([file] * number),
            "file_time": pa.array([AT] * number, TIME),
            "file_block": pa.array([0] * number, pa.int64()),
            "row": pa.array(range(number), pa.int64()),
            "store_timestamp": pa.array([AT] * number, TIME),
        }
    )


def parse(kind: Kind, *batches: pa.RecordBatch) -> list[dict[str, object]]:
    return [row for batch in parser(kind, LINES[kind], _MAX_DELAY)(iter(batches)) for row in batch.to_pylist()]


def test_half_row() -> None:
    line = half(7, body="hello", properties={"a": "1", "b": "2"}, check_immunity="9s").encode()
    (row,) = parse("half", batch_of(line))
    assert row == {
        "queue_id": 0,
        "queue_offset": 7,
        "transaction_id": "t7",
        "producer_group": "orders",
        "real_topic": "orders_created",
        "real_queue_id": 1,
        "tags": None,
        "keys": None,
        "properties": [("a", "1"), ("b", "2")],
        "body": b"hello",
        "born_timestamp": datetime(2023, 11, 14, 22, 13, 20, tzinfo=timezone.utc),
        "check_immunity_s": 9,
        "delay_ms": None,
        "deliver_at": None,
        "committed": None,
        "raw": None,
        "reason": None,
        "digest": digest(line.decode()),
        "file": "/in/a b.jsonl",
        "file_time": AT,
        "file_block": 0,
        "row": 0,
        "store_timestamp": AT,
    }


def test_delay_is_kept_unless_it_is_too_long() -> None:
    """The longest counts from when it lands; in RocketMQ's properties, too."""
    now = int(AT.timestamp() * 1000)
    told: list[dict[str, Any]] = [
        {"delay_level": 3, "committed": True},
        {"delay": f"{_MAX_DELAY}ms"},
        {"deliver_at": now + _MAX_DELAY, "committed": False},
        {"properties": {"TIMER_DELAY_SEC": "7"}},
        {"delay": "41d"},
        {"deliver_at": now + _MAX_DELAY + 1},
        {"properties": {"TIMER_DELAY_MS": str(2**63)}},
        {"committed": "yes"},
    ]
    rows = parse("half", batch_of(*(half(number, **more).encode() for number, more in enumerate(told))))
    assert [(row["delay_ms"], row["committed"]) for row in rows[:4]] == [
        (10_000, True),
        (_MAX_DELAY, None),
        (None, None),
        (7_000, None),
    ]
    assert rows[2]["deliver_at"] == AT.replace(microsecond=678_000) + timedelta(milliseconds=_MAX_DELAY)
    assert [str(row["reason"]).partition(":")[0] for row in rows] == [
        *["None"] * 4,
        "delay",
        "deliver_at",
        "TIMER_DELAY_MS",
        "committed",
    ]


def test_rows_keep_the_places_of_their_lines() -> None:
    texts = [b"", op(1).encode(), b"\r", b"\xff", op(5).encode()]
    batched = op(0, queue_offsets="8,9,").replace('"queue_offset": 0, ', "").encode()
    rows = parse("op", batch_of(*texts, batched), batch_of(op(3).encode()))
    assert [(row["row"], row["queue_offset"], row["reason"]) for row in rows] == [
        (1, 1, None),
        (3, None, "not JSON: byte 0 is not UTF-8"),
        (4, 5, None),
        (5, 8, None),
        (5, 9, None),
        (0, 3, None),
    ]


def test_rejected_line_keeps_its_text_up_to_a_limit() -> None:
    rows = parse("half", batch_of(b"\xff\xfe{}", b"x" * (RAW_MAX + 1)))
    assert [row["raw"] for row in rows] == ["\ufffd\ufffd{}", "x" * RAW_MAX]


@pytest.mark.parametrize("text", ["ä", "x" * (DIGEST_OF + 1), "ä" * (DIGEST_OF - 1), "\ufeff€\U0001f600" * DIGEST_OF])
def test_digest_of_a_line_is_that_of_its_text(text: str) -> None:
    assert digest(text.encode()) == digest(text) == digest(text[:DIGEST_OF])


def test_batches_are_cut_and_empty_ones_left_out(monkeypatch: object) -> None:
    blank, full = batch_of(b"", b" "), batch_of(*[half(number).encode() for number in range(25_000)])
    batches = [*parser("half", LINES["half"], _MAX_DELAY)(iter([blank, full]))]
    assert [batch.num_rows for batch in batches] == [module._ROWS_MAX, module._ROWS_MAX, 5_000]


def test_paths_of_other_stores_are_kept() -> None:
    (row,) = parse("half", batch_of(b"?", file="s3a://bucket/in/a%2Bb.gz"))
    assert row["file"] == "s3a://bucket/in/a+b.gz"


@pytest.mark.parametrize("kind", ["half", "op"])
def test_file_of_invalid_lines_has_few_rows(kind: Kind) -> None:
    """The rest of them have one, wherever batches end; good lines, other files and a file's fault are as without."""
    first, second = (half(1), half(2)) if kind == "half" else (op(1), op(2))
    fault = batch_of(b"", file="file:/bad").set_column(0, "line", pa.array([None], pa.binary()))
    fault = fault.set_column(1, "fault", pa.array(["file: cut short"]))
    batches = [
        batch_of(b"x", b"y", first.encode(), file="file:/bad"),
        batch_of(b"x", b"x", b" ", b"[]", second.encode(), b"x", file="file:/bad"),
        batch_of(b"x", b"x", b"x", file="file:/other"),
        fault,
        batch_of(b"x", file="file:/bad"),
    ]
    reader = LINES[kind]._replace(most_rejected=3)
    found = [batch for batch in parser(kind, reader, _MAX_DELAY)(iter(batches)) if batch.num_rows]
    assert {batch.schema for batch in found} == {found[0].schema}
    rows = [row for batch in found for row in batch.to_pylist()]
    assert len([row for row in rows if row["reason"] is None]) == 2
    kept = [(row["file"], row["raw"]) for row in rows if row["raw"] is not None]
    assert kept == [("/bad", "x"), ("/bad", "y"), ("/bad", "x"), *[("/other", "x")] * 3]
    fault_row, more = [row for row in rows if row["reason"] is not None and row["raw"] is None]
    assert fault_row["reason"] == "file: cut short"
    assert more["reason"].startswith("file: 4 invalid lines after 3 others are not kept; the first: not JSON")
    assert (more["file"], more["row"], more["file_time"]) == ("/bad", 1, AT)
