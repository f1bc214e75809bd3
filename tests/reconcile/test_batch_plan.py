"""Two plans of one batch: a process that was stopped while it wrote its own, and wakes up after its successor's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkback.application.rebuild import rebuild
from checkback.errors import FencedError, StateError
from checkback.reconcile.checkpointed_rules import forget_state
from checkback.storage.checkpoints.checkpoint import Batch, plan_recorded, plan_versions, refuse_other_plan
from reconcile.test_batch_rules import Lakehouse, _crash, _interrupt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_batch_that_another_process_has_planned_is_not_begun() -> None:
    entry = Batch(5, 1_000, ())
    for time in (1_000, 0):  # 0: the batch has no segments
        refuse_other_plan(entry, time, "place")
    with pytest.raises(FencedError, match="another process has planned batch 5"):
        refuse_other_plan(entry, 999, "place")


def test_plan_is_recorded_with_a_commit() -> None:
    assert plan_recorded("q/decisions", plan_versions("q/decisions", 5, 1_000).get) == (5, 1_000)
    assert plan_recorded("q/decisions", {"q/decisions": 5}.get) is None  # by Spark


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lakehouse:
    return Lakehouse(spark, tmp_path)


def _replace(entry: Path, content: str) -> None:
    entry.with_name(f".{entry.name}.crc").unlink()  # object stores have none
    entry.write_text(content)


def test_batch_is_not_completed_by_another_plan(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first plan 0 is committed, by its successor's, which has reached a topic, 0 and 1.

    Completed by the first one, the batch would lack the decision on 1, and the next batch publish it again.
    """
    settings, place = lake.settings(), lake.tables.checkpoint("reconcile")
    lake.half(0, 1)
    lake.run(settings)
    lake.commit(0)
    batch = _interrupt(lake, settings, "__call__", monkeypatch)
    entry = Path(place, "offsets", str(batch))
    late = entry.read_text()
    # It is still under way when the successor starts.
    entry.unlink()
    entry.with_name(f".{entry.name}.crc").unlink()
    forget_state(lake.spark, place, batch)
    lake.commit(1)
    assert _crash(lake, settings, "decisions", monkeypatch) == batch
    assert lake.fates() == {0: ["topics/t"], 1: ["topics/t"]}
    _replace(entry, late)
    with pytest.raises(StateError, match=rf"written by another batch {batch} than the checkpoint has") as refused:
        lake.run(settings)
    assert "checkback rebuild" in refused.value.fix
    assert rebuild(lake.spark, settings, print) is not None
    lake.run(settings)
    assert lake.fates() == {0: ["topics/t"], 1: ["topics/t"]}
    assert lake.rows("decisions", "queue_offset", "state") == [(0, "COMMIT"), (1, "COMMIT")]


def test_batch_that_is_done_and_was_replaced_is_noticed(lake: Lakehouse) -> None:
    """The next batch would read from another place on."""
    settings = lake.settings()
    lake.half(0)
    lake.run(settings)
    newest = max(Path(lake.tables.checkpoint("reconcile"), "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    version, about, *sources = newest.read_text().splitlines()
    earlier = about.replace('"batchTimestampMs":1', '"batchTimestampMs":2')
    assert earlier != about
    _replace(newest, "\n".join([version, earlier, *sources]))
    with pytest.raises(StateError, match=f"another batch {newest.name}"):
        lake.run(settings)


def test_batch_that_has_only_rejected_is_not_completed_by_another_plan(
    lake: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = lake.settings(timeout="1h")
    lake.half(0)
    lake.run(settings)
    lake.land("op", {"queue_offset": 0, "transaction_id": "t0", "state": "COMMIT", "producer_group": "another"})
    batch = _crash(lake, settings, "batches", monkeypatch)
    assert len(lake.rows("rejected", "reason")) == 1
    assert lake.rows("decisions", "queue_offset") == []
    entry = Path(lake.tables.checkpoint("reconcile"), "offsets", str(batch))
    _replace(entry, entry.read_text().replace('"batchTimestampMs":1', '"batchTimestampMs":2'))
    with pytest.raises(StateError, match=f"written by another batch {batch} than the checkpoint has"):
        lake.run(settings)
