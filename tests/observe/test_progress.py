"""Spark's progress as flat fields."""

from __future__ import annotations

from typing import Any

import pytest

from checkback.observe.progress import Progress, Source, progress


def _offset(version: int) -> dict[str, Any]:
    return {"sourceVersion": 1, "reservoirId": "t", "reservoirVersion": version, "index": -1}


def _told(**other: Any) -> dict[str, Any]:
    """As StreamingQueryProgress.json of Spark 4.2 has it, shortened."""
    operator = {
        "operatorName": "transformWithStateInPandasExec",
        "numRowsTotal": 3,
        "memoryUsedBytes": 6348,
        "numRowsDroppedByWatermark": 0,
        "customMetrics": {"rocksdbSstFileSize": 3234, "numRegisteredTimers": 1},
    }
    sources = [
        {"description": "DeltaSource[...]", "endOffset": _offset(7), "numInputRows": 154},
        {"description": "DeltaSource[...]", "endOffset": _offset(9), "numInputRows": 91},
        {"description": "DeltaSource[...]", "endOffset": None, "numInputRows": 0},
    ]
    told = {"name": "reconcile", "batchId": 4, "durationMs": {"addBatch": 9, "triggerExecution": 1500}}
    return told | {"sources": sources, "stateOperators": [operator]} | other


def test_batch_of_reconcile() -> None:
    found = progress(_told())
    assert found == Progress(
        "reconcile",
        4,
        1.5,
        (Source("half", 154, 7), Source("op", 91, 9), Source("ticks", 0, None)),
        segments=3,
        state_bytes=6348 + 3234,
    )
    assert found.fields == {
        "query": "reconcile",
        "batch_id": 4,
        "seconds": 1.5,
        "half_rows": 154,
        "op_rows": 91,
        "ticks_rows": 0,
        "state_segments": 3,
        "state_bytes": 9582,
        "rows_dropped": 0,
    }


def test_batch_without_state_or_rows() -> None:
    found = progress({"name": "check", "batchId": 0, "batchDuration": 20, "sources": [{"numInputRows": -1}]})
    assert found == Progress("check", 0, 0.02, (Source("check_requests", 0, None),))
    assert "state_segments" not in found.fields


def test_dropped_rows_are_added_up() -> None:
    operators = [{"numRowsTotal": 1, "numRowsDroppedByWatermark": 2}, {"numRowsTotal": 1}]
    assert progress(_told(stateOperators=operators)).dropped == 2


@pytest.mark.parametrize("told", [{}, {"name": "reconcile"}, _told(sources=[{"endOffset": {"reservoirVersion": "x"}}])])
def test_what_is_no_progress_is_an_error(told: dict[str, Any]) -> None:
    with pytest.raises((KeyError, ValueError, TypeError)):
        progress(told)
