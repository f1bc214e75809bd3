"""The first batch, whichever way the tables are read: what a crash leaves of it is done again with the same rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema
from reconcile.test_batch_rules import Lakehouse, _interrupt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _land_in_files(lake: Lakehouse, *offsets: int) -> None:
    """One commit, with a file for each half message."""
    common = {"queue_id": 0, "producer_group": "g", "real_topic": "t"}
    files = []
    for offset in offsets:
        row = common | {
            "queue_offset": offset,
            "transaction_id": f"t{offset}",
            "born_timestamp": 0,
            "store_timestamp": 0,
        }
        with FileWriter(lake.root) as writer:
            writer.write("half", pa.Table.from_pylist([row], arrow_schema("half")))
            files += writer.close()
    DeltaLog("half", f"{lake.root}/half").commit(files)


@pytest.mark.parametrize("snapshot", [False, True])
def test_first_batch_that_was_begun_is_done_again_with_the_same_rows(
    spark: SparkSession, tmp_path: Path, snapshot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends within a commit, and meanwhile small files have become one."""
    lake = Lakehouse(spark, tmp_path)
    settings = lake.settings()
    settings = settings.model_copy(update={"reconcile": settings.reconcile.model_copy(update={"max_files": 3})})
    lake.half(0, 1)
    lake.half(2)
    if snapshot:
        DeltaTable(f"{lake.root}/half").optimize.compact()
    _land_in_files(lake, 3, 4, 5)
    lake.commit(*range(6))
    _interrupt(lake, settings, "publish", monkeypatch)
    (_, _, half, *_) = Path(lake.tables.checkpoint("reconcile"), "offsets/0").read_text().splitlines()
    end = json.loads(half)
    assert end["isStartingVersion"] is snapshot
    assert end["index"] >= 0
    DeltaTable(f"{lake.root}/half").optimize.compact()
    lake.run(settings)
    assert lake.fates() == {offset: ["topics/t"] for offset in range(6)}
    assert lake.rows("decisions", "queue_offset") == [(offset,) for offset in range(6)]
