"""The state's own view: the same as the tables', but for what was tampered with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.application.queries import reconcile
from checkback.query.frames import Frames
from checkback.query.state_store import state_differences, state_pending
from checkback.settings import Settings
from checkback.storage.checkpoints.checkpoint import last_done
from checkback.storage.tables import Tables
from conftest import TRACE
from support.lines import land_lines
from support.query_times import append
from support.stories import Transaction

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_state_and_tables_agree(spark: SparkSession, tmp_path: Path) -> None:
    """What landed since is no difference; a decision that no batch made is one."""
    settings = Settings.model_validate(
        {
            "storage": {"root": str(tmp_path)},
            "transaction": {"timeout": "36500d", "max_age": "36500d"},
            "reconcile": {"partitions": 2, "segment_size": 64},
        }
    )
    land_lines(tmp_path, TRACE / "half.jsonl", TRACE / "op.jsonl")
    reconcile(spark, settings, available_now=True)
    append(tmp_path, "half", [Transaction(77, 0).half()[1]])
    key = ["queue_id", "queue_offset", "check_times"]
    state = state_pending(spark, settings).select(*key, "registered", "batch_id").collect()
    by_tables = Frames(settings, spark).pending().where("queue_id != 77").select(*key).collect()
    assert sorted(tuple(row)[:3] for row in state) == sorted(map(tuple, by_tables))
    assert {row["registered"] for row in state} == {True}
    done = last_done(spark, Tables.of(settings.storage).checkpoint("reconcile"))
    assert {row["batch_id"] for row in state} == {done}
    assert state_differences(spark, settings).isEmpty()

    gone = state[0]["queue_offset"]
    append(tmp_path, "decisions", [Transaction(state[0]["queue_id"], gone).decision()[1]])
    (row,) = state_differences(spark, settings).collect()
    assert (row["queue_offset"], row["in_state"], row["in_tables"]) == (gone, True, False)
