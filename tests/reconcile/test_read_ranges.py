"""What a batch has read, from the offset log: by itself, and by the real query."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from checkback import Checkback
from checkback.application.rebuild import rebuild
from checkback.errors import CheckbackError
from checkback.reconcile.publish.batch_row import ReadRange, read_ranges
from checkback.storage.checkpoints.checkpoint import Batch, StreamPosition
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables
from reconcile.test_batch_rules import Lakehouse
from support.rows import rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from checkback.settings import Settings


def _at(version: int, index: int = -1, starting: bool = False) -> StreamPosition:
    return StreamPosition("table", version, index, starting)


def _batch(*positions: StreamPosition | None) -> Batch:
    return Batch(7, 1000, positions)


def test_a_batch_reads_from_the_end_of_the_one_before() -> None:
    before, batch = _batch(_at(3), _at(5, 1), _at(9)), _batch(_at(4, 0), _at(5, 1), _at(10))
    assert read_ranges(batch, before) == {"half": ReadRange(3, -1, 4, 0), "op": ReadRange(5, 1, 5, 1)}


def test_the_first_reads_from_the_beginning_or_from_what_was_restored() -> None:
    batch = _batch(_at(4), None, _at(1))
    assert read_ranges(batch, None) == {"half": ReadRange(0, -1, 4, -1), "op": ReadRange(0, -1, 0, -1)}
    restored = {"half": 3, "op": 8, "ticks": 2}
    assert read_ranges(batch, None, restored) == {"half": ReadRange(3, -1, 4, -1), "op": ReadRange(8, -1, 8, -1)}


def test_delta_s_mark_of_no_file_is_no_file() -> None:
    assert read_ranges(_batch(_at(4, -100)), _batch(_at(3, -100)))["half"] == ReadRange(3, -1, 4, -1)


@pytest.mark.parametrize("place", ["begin", "end"])
def test_files_of_a_first_snapshot_have_no_numbers(place: str) -> None:
    """The snapshot's files are in another order than in the commits that added them."""
    inside, after = _at(4, 2, starting=True), _at(5)
    before, batch = (inside, after) if place == "begin" else (None, inside)
    assert "half" not in read_ranges(_batch(batch, _at(1)), _batch(before, _at(0)))


class _Lake(Lakehouse):
    """Each half message is a file of its own."""

    def files(self, *offsets: int) -> int:
        """One commit; its version."""
        now, found = datetime.now(timezone.utc), []
        for offset in offsets:
            row = {"queue_id": 0, "queue_offset": offset, "transaction_id": f"t{offset}", "producer_group": "g"}
            row |= {"real_topic": "t", "born_timestamp": now, "store_timestamp": now}
            with FileWriter(self.root) as writer:
                writer.write("half", pa.Table.from_pylist([row], arrow_schema("half")))
                found += writer.close()
        log = self.tables.log("half")
        log.commit(found)
        return log.version()


def _ranges(lake: Lakehouse, name: str) -> list[tuple[int, tuple[int, ...]]]:
    """By batch, of those that read anything."""
    rows = rows_of(lake.root, "batches", "application", "batch_id", "finished_at", "read_ranges")
    rows.sort(key=lambda row: row.finished_at)
    ranges = [(row.batch_id, tuple(dict(row.read_ranges)[name].values())) for row in rows]
    return [(batch, found) for batch, found in ranges if found[:2] != found[2:]]


def _settings(lake: Lakehouse, max_files: int) -> Settings:
    settings = lake.settings(timeout="1h")
    return settings.model_copy(update={"reconcile": settings.reconcile.model_copy(update={"max_files": max_files})})


def test_batches_say_which_files_they_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit read by two batches; one done again after a crash; one that a rebuild finished, and what it restored."""
    lake = _Lake(spark, tmp_path)
    first = lake.files(0)
    lake.commit(*range(20))
    lake.run(_settings(lake, 2))
    assert _ranges(lake, "half") == [(0, (0, -1, first + 1, -1))]
    three = lake.files(1, 2, 3)
    lake.run(_settings(lake, 2))
    _, second, third = _ranges(lake, "half")
    assert (second[1], third[1]) == ((first + 1, -1, three, 1), (three, 1, three + 1, -1))
    decided = dict(lake.rows("decisions", "queue_offset", "batch_id"))
    assert decided == {0: 0, 1: second[0], 2: second[0], 3: third[0]}

    commit = Tables.commit

    def break_off(before: str) -> None:
        def broken(self: Tables, spark: SparkSession, name: str, *more: Any) -> None:
            if name == before:
                raise ConnectionError
            commit(self, spark, name, *more)

        with monkeypatch.context() as patch:
            patch.setattr(Tables, "commit", broken)
            with pytest.raises(CheckbackError):
                lake.run(_settings(lake, 2))

    lake.files(4)
    break_off("decisions")
    lake.files(5)
    lake.run(_settings(lake, 2))
    assert [found for _, found in _ranges(lake, "half")][3:] == [
        (three + 1, -1, three + 2, -1),
        (three + 2, -1, three + 3, -1),
    ]

    died = lake.files(7)
    break_off("batches")
    pending = lake.files(30)
    assert rebuild(spark, _settings(lake, 2), print) is not None
    lake.files(6)
    lake.run(_settings(lake, 2))
    (restored,) = (dict(found) for (found,) in rows_of(lake.root, "batches", "restored_at") if found is not None)
    assert restored.keys() == {"half", "op"}
    assert restored["half"] > pending
    assert (died, -1, died + 1, -1) in [found for _, found in _ranges(lake, "half")]
    found = Checkback(settings=_settings(lake, 2)).what_if({}).total
    assert (found.recorded.states, found.not_reproduced) == ({"COMMIT": 8, "PENDING": 1}, 0)
    *_, last = _ranges(lake, "half")
    assert last[1][0] >= restored["half"]
    assert last[1] == (last[1][0], -1, lake.tables.log("half").version() + 1, -1)
