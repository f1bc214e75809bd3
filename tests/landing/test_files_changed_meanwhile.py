"""Files that somebody removes or replaces while their batch lands: no message is lost or doubled without a word."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checkback.errors import CheckbackError
from checkback.landing import batch
from checkback.landing.batch import Landing
from checkback.landing.duplicates import BatchSummary, summarize
from checkback.landing.landing_queries import Landed
from landing.fixtures import Lakehouse, half, killed_before

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def test_file_that_is_removed_once_it_is_read_has_each_refused_line_in_rejected(
    lake: Lakehouse, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text is looked up in the file: without that, the row has none."""
    (inbox / "a.jsonl").write_text("\n".join(map(half, (0, 1))))
    assert lake.land(half=inbox) == Landed(half=2)
    gone = inbox / "b.jsonl"
    gone.write_text("\n".join(map(half, (0, 1, 2))))
    (inbox / "c.jsonl").write_text("\n".join(map(half, (0, 3))))

    def counted(parsed: DataFrame) -> BatchSummary:
        found = summarize(parsed)
        gone.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(batch, "summarize", counted)
    assert lake.land(half=inbox) == Landed(half=2, rejected=3)
    assert [row.queue_offset for row in lake.rows("half", "queue_offset")] == [0, 1, 2, 3]
    rows = lake.rows("rejected", "file", "reason", "rejected_at")
    repeated = [(name, f"repeated (queue_id, queue_offset) 0/{n}") for name, n in (("b", 0), ("b", 1), ("c", 0))]
    assert [(Path(row.file).stem, row.reason) for row in rows] == repeated
    assert len({row.rejected_at for row in rows}) == 1


def test_file_that_changes_while_a_batch_is_replayed_loses_and_doubles_nothing(
    lake: Lakehouse, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `rejected` has of the batch is found by the lines as they were parsed, whatever the file has since."""
    file = inbox / "b.jsonl"
    lines = [half(0, "repeated"), "bäd €", half(1, "good")]
    known = batch._known

    def begin(offset: int) -> None:
        lines[:] = [half(offset, "repeated"), "bäd €", half(offset + 1, "good")]
        file.write_text("\n".join(lines))
        with monkeypatch.context() as patch:
            killed_before(patch, "half")
            with pytest.raises(CheckbackError):
                lake.land(half=inbox)

    def replaced(*given: Any) -> DataFrame:
        file.write_text("\n".join(reversed(lines)))
        return known(*given)

    (inbox / "a.jsonl").write_text("\n".join(map(half, (0, 2))))
    assert lake.land(half=inbox) == Landed(half=2)
    begin(0)
    monkeypatch.setattr(batch, "_known", replaced)
    assert lake.land(half=inbox) == Landed(half=1, rejected=2)
    assert {row.queue_offset: bytes(row.body) for row in lake.rows("half")} == {0: b"hi", 1: b"good", 2: b"hi"}
    assert lake.rows("rejected", "raw") == [("bäd €",), (lines[0],)]

    file = inbox / "c.jsonl"
    begin(2)

    def removed(*given: Any) -> DataFrame:
        file.unlink()
        return known(*given)

    monkeypatch.setattr(batch, "_known", removed)
    assert lake.land(half=inbox) == Landed(half=1, rejected=2)
    assert len(lake.rows("half", "queue_offset")) == 4
    assert len(lake.rows("rejected", "file")) == 4


def test_refused_message_does_not_get_the_text_of_another(
    lake: Lakehouse, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file was replaced once it was parsed."""
    (inbox / "a.jsonl").write_text("\n".join([half(0), half(0, "again"), half(1)]))

    def counted(parsed: DataFrame) -> BatchSummary:
        found = summarize(parsed)
        (inbox / "a.jsonl").write_text("\n".join([half(0), half(1), half(0, "again")]))
        return found

    monkeypatch.setattr(batch, "summarize", counted)
    assert lake.land(half=inbox) == Landed(half=2, rejected=1)
    assert lake.rows("rejected", "reason", "raw") == [("repeated (queue_id, queue_offset) 0/0", None)]


def test_lost_block_of_the_cache_that_is_computed_from_a_changed_file_ends_the_batch(
    lake: Lakehouse, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor is lost, and the block is computed again from what the file has now."""
    (inbox / "a.jsonl").write_text("\n".join(map(half, (0, 1))))
    (inbox / "b.jsonl").write_text(half(2))
    write, spark = Landing._write, lake.spark.sparkContext

    def lose(landing: Landing, *given: Any) -> None:
        (inbox / "a.jsonl").write_text(half(0))
        jsc: Any = spark._jsc
        for rows in list(jsc.getPersistentRDDs().values()):
            rows.unpersist(True)
        write(landing, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Landing, "_write", lose)
        with pytest.raises(CheckbackError, match="3 rows have become 2; nothing was committed"):
            lake.land(half=inbox)
    assert lake.rows("half") == []
    assert lake.land(half=inbox) == Landed(half=2)
    assert lake.rows("half", "queue_offset") == [(0,), (2,)]
