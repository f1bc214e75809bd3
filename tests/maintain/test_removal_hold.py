"""Nothing is removed from tables in a catalog whose checkpoint is not the one that the settings name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

import pytest

from checkback.maintain.streams import LOST, OTHERS, REBUILDING, removal_hold
from checkback.storage.log import spark_log
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

OWNED = {"checkback.checkpoint": "second", "checkback.checkpoints": "2", "checkback.segment_size": "64"}


@pytest.mark.parametrize(
    ("properties", "query_id", "rebuilding", "expected"),
    [
        (OWNED, "second", False, None),
        (OWNED, None, False, LOST),
        (OWNED, "first", False, OTHERS),
        (OWNED, "second", True, REBUILDING),
        ({}, None, False, None),  # reconcile never ran
        (None, None, False, None),
        (None, None, True, REBUILDING),
    ],
)
def test_hold_in_a_catalog(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    properties: dict[str, str] | None,
    query_id: str | None,
    rebuilding: bool,
    expected: str | None,
) -> None:
    """``properties``: those of `decisions`, None = there is no such table; what Spark says of it is given."""
    tables = Tables(root=str(tmp_path), catalog="main", schema="checkback", checkpoints=str(tmp_path))
    monkeypatch.setattr(Tables, "exists", lambda *_: properties is not None)
    monkeypatch.setattr(spark_log, "properties", lambda _spark, _table: properties)
    if query_id is not None:
        (tmp_path / "reconcile").mkdir()
        (tmp_path / "reconcile/metadata").write_text(json.dumps({"id": query_id}))
    if rebuilding:
        (tmp_path / "reconcile.rebuilding").mkdir()
    assert removal_hold(tables, cast("SparkSession", None)) == expected
