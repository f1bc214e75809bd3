"""A scheduled run leaves the timers of its state to the next one, which so need not read the state."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from application.test_delay import LATER, NEVER, Lake
from checkback.application import queries as run
from checkback.errors import SettingsError
from checkback.reconcile.start.idle_run import FILE, noted_timers
from checkback.reconcile.state.registered_timers import timers_of
from reconcile.messages import half

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _first_timers(lake: Lake) -> dict[tuple[int, int], int]:
    """Of each segment, as Spark's state has them."""
    first: dict[tuple[int, int], int] = {}
    for queue, segment, at in timers_of(lake.spark, lake.tables):
        first[queue, segment] = min(at, first.get((queue, segment), at))
    return first


def _noted(lake: Lake) -> dict[tuple[int, int], int]:
    return {(queue, segment): at for queue, segment, at in noted_timers(lake.tables) or pytest.fail("none noted")}


def test_what_is_noted_is_what_the_state_has(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After each run: of segments that it touched, and that it left alone; from the first one on."""
    lake, read = Lake(spark, tmp_path), Mock(side_effect=timers_of)
    monkeypatch.setattr(run, "timers_of", read)
    lake.land(half(0), half(64) | NEVER, half(128) | LATER, half(192), half(193) | NEVER)
    lake.end("COMMIT", 64, 128, 193)
    lake.reconcile()  # 128 is due in the next run, and then known for three days
    assert _noted(lake) == _first_timers(lake)
    assert _noted(lake).keys() == {(0, 0), (0, 1), (0, 2), (0, 3)}
    lake.land(half(256))
    lake.end("COMMIT", 192)
    lake.reconcile()
    assert _noted(lake) == _first_timers(lake)
    assert _noted(lake).keys() == {(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)}
    lake.end("ROLLBACK", 0)
    lake.reconcile()
    assert _noted(lake) == _first_timers(lake)
    read.assert_not_called()
    lake.end("COMMIT", 256)
    (Path(lake.settings.storage.checkpoints_root) / FILE).unlink()
    lake.reconcile()
    read.assert_called_once()
    assert _noted(lake) == _first_timers(lake)
    assert not caplog.records


def test_unfit_settings_are_refused_where_nothing_is_to_be_checked(spark: SparkSession, tmp_path: Path) -> None:
    """And no query is started for it: it has read all that there is."""
    lake = Lake(spark, tmp_path)
    lake.land(half(0))
    lake.reconcile()
    assert not Path(lake.tables.checkpoint("check")).exists()
    unfit = lake.settings.check.model_copy(update={"ca_file": "/nonexistent.pem"})
    lake.settings = lake.settings.model_copy(update={"check": unfit})
    with pytest.raises(SettingsError, match=re.escape("check.ca_file: /nonexistent.pem")):
        lake.reconcile()
