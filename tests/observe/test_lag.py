"""The lag of a source, by its table's log."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import pytest

from checkback.observe.progress import Lag, Progress, Source
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pathlib import Path


def _read(version: int | None) -> Progress:
    return Progress("reconcile", 0, 1.0, (Source("half", 1, version), Source("ticks", 1, 3)))


def test_lag_is_the_age_of_the_first_unread_version(tmp_path: Path) -> None:
    backlog = Lag.of(Tables(root=str(tmp_path)))
    assert backlog.sources == {"half", "op", "check_requests"}
    assert math.isnan(backlog.seconds("half", 1000.0))
    backlog.read(_read(2))
    assert backlog.seconds("half", 1000.0) == 0.0
    log = tmp_path / "half/_delta_log"
    log.mkdir(parents=True)
    for version, written in ((1, 100), (2, 400), (3, 700)):
        file = log / f"{version:020}.json"
        file.touch()
        os.utime(file, (written, written))
    assert backlog.seconds("half", 1000.0) == pytest.approx(600.0)
    backlog.read(_read(None))
    assert backlog.seconds("half", 1010.0) == pytest.approx(610.0)
    backlog.read(_read(3))
    assert backlog.seconds("half", 1000.0) == pytest.approx(300.0)
    assert backlog.seconds("half", 600.0) == 0.0, "a clock that was put back"


@pytest.mark.parametrize("tables", [Tables(root="s3://bucket/x"), Tables(root="x", catalog="c", schema="s")])
def test_elsewhere_no_lag_is_told(tables: Tables) -> None:
    assert Lag.of(tables).sources == set()
