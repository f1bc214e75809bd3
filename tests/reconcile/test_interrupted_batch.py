"""Which batch was broken off. The tables are those that a crash or a set-back clock leaves."""

from __future__ import annotations

from datetime import datetime, timezone
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from checkback.reconcile.checkpoint_owner import last_owner
from checkback.reconcile.lost_checkpoint.interrupted_batch import (
    BatchRows,
    InterruptedBatch,
    LastBatch,
    broken_off,
    find,
)
from checkback.reconcile.publish.batch_row import batch_row
from checkback.storage.schemas import BATCH_TIMES, SCHEMAS, arrow_schema
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_LAST = LastBatch("q", 4, 1000)


@pytest.mark.parametrize(
    ("rows", "concluded", "written", "found"),
    [
        ([], [_LAST], [], None),
        # The next batch has begun to write; whatever the clock says.
        ([BatchRows(5, 2000)], [_LAST], [_LAST], InterruptedBatch("q", BatchRows(5, 2000))),
        ([BatchRows(5, 500)], [_LAST], [_LAST], InterruptedBatch("q", BatchRows(5, 500))),
        # It has only published late what had waited: no version of its own says so.
        ([BatchRows(5, 2000)], [_LAST], [], InterruptedBatch("q", BatchRows(5, 2000))),
        # Batches that have lost their rows in `batches`.
        ([BatchRows(0, 10), BatchRows(1, 20), BatchRows(5, 60)], [_LAST], [], None),
        ([BatchRows(5, 60), BatchRows(5, 2000)], [_LAST], [_LAST], InterruptedBatch("q", BatchRows(5, 2000))),
        # A new checkpoint's first, which nobody knows the name of any more.
        (
            [BatchRows(0, 10), BatchRows(0, 2000)],
            [_LAST, LastBatch(None, -1, 1000)],
            [],
            InterruptedBatch(None, BatchRows(0, 2000)),
        ),
        # There is no row: the very first batch, or all are lost.
        ([BatchRows(0, 10)], [], [], InterruptedBatch("q", BatchRows(0, 10), first=True)),
        ([BatchRows(0, 10), BatchRows(1, 20)], [], [], InterruptedBatch("q", BatchRows(1, 20))),
    ],
)
def test_batch_that_was_broken_off(
    rows: list[BatchRows], concluded: list[LastBatch], written: list[LastBatch], found: InterruptedBatch | None
) -> None:
    assert broken_off(rows, concluded, written, "q") == found


@pytest.mark.parametrize("seed", range(200))
def test_the_last_one_is_found_whatever_the_clocks_say(seed: int) -> None:
    """Lost rows, rebuilds, clocks that leap: of what has no row it is the one that was broken off, or none."""
    random = Random(seed)
    past = [BatchRows(number, random.randrange(1, 500)) for number in range(random.randrange(4))]
    times = random.sample(range(500, 2000), 8)
    last = random.randrange(6)
    concluded = [LastBatch("new", -1, max(times)), LastBatch("old", last, max(times))]
    broken = random.choice([None, *concluded])
    rows = past if broken is None else [*past, BatchRows(broken.batch_id + 1, random.randrange(500, 2000))]
    random.shuffle(rows)
    found = broken_off(rows, concluded, [] if broken is None else [broken], "new")
    if broken is None:
        assert found is None
    else:
        assert found is not None
        assert (found.application, found.rows.batch_id) == (broken.application, broken.batch_id + 1)
        assert found.rows.time >= 500


def test_the_last_owner_is_the_one_of_the_greatest_number(tmp_path: Path) -> None:
    """Not one that is unknown to `batches`, and none where nobody noted any."""
    no_spark: Any = None
    tables = Tables(root=str(tmp_path), by_files=True)
    tables.create(no_spark, "decisions")
    assert last_owner(no_spark, tables, ["old", "new"]) is None
    _own(tables, "old", 1)
    _own(tables, "new", 2)
    assert last_owner(no_spark, tables, ["old", "new"]) == "new"
    assert last_owner(no_spark, tables, ["old"]) is None


@pytest.mark.parametrize(("batch_id", "application"), [(4, "new"), (0, None)])
def test_found_without_the_checkpoint_after_a_clock_was_set_back(
    spark: SparkSession, tmp_path: Path, batch_id: int, application: str | None
) -> None:
    """The owner before began and ended an hour later than the last one, by the clock that it had.

    Also the first batch of a rebuild, which nobody knows the name of.
    """
    hour, now = 3_600_000, 1_800_000_000_000
    tables = Tables(root=str(tmp_path), by_files=True)
    tables.create(spark, *SCHEMAS)
    _own(tables, "old", 1)
    _own(tables, "new", 2)
    for query, number, at in (("old", 7, now + hour), ("new", 3, now)):
        tables.append_arrow(spark, batch_row(query, number, at, at), "batches", f"{query}/batches", number)
    decided_at = datetime.fromtimestamp(now // 1000 + 5, timezone.utc)
    row = {"queue_id": 0, "queue_offset": 9, "decided_at": decided_at, "batch_id": batch_id}
    decided = pa.Table.from_pylist([row], schema=arrow_schema("decisions"))
    tables.append_arrow(spark, decided, "decisions", f"{application or 'unknown'}/decisions", batch_id)
    assert find(spark, tables) == InterruptedBatch(application, BatchRows(batch_id, now + 5000))


@pytest.mark.parametrize("table", sorted(BATCH_TIMES))
def test_batch_is_known_by_the_only_table_that_it_has_written(spark: SparkSession, tmp_path: Path, table: str) -> None:
    """Its clock had been set back: its rows look older than the batch before it."""
    now = 1_800_000_000_000
    tables = Tables(root=str(tmp_path), by_files=True)
    tables.create(spark, *SCHEMAS)
    tables.append_arrow(spark, batch_row("q", 3, now, now), "batches", "q/batches", 3)
    row = {"batch_id": 4, BATCH_TIMES[table]: datetime.fromtimestamp(now // 1000 - 5, timezone.utc)}
    rows = pa.Table.from_pylist([row], schema=arrow_schema(table))
    tables.append_arrow(spark, rows, table, f"q/{table}", 4)
    assert find(spark, tables) == InterruptedBatch("q", BatchRows(4, now - 5000))


def _own(tables: Tables, query: str, number: int) -> None:
    found = tables.log("decisions").versions(["checkpoint"])
    tables.log("decisions").commit_after([], found, {"checkpoint": number, f"checkpoint/{query}": number})
