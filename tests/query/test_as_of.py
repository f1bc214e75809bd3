"""As of a moment: what a model in plain Python says was pending then, at every commit and between them."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from checkback.errors import SettingsError
from checkback.query.answers import Answers
from checkback.query.engines.duckdb_engine import DuckDBEngine
from checkback.query.versions.view import View
from checkback.settings import Settings
from checkback.storage.tables import Tables
from support.examples import DEAR
from support.query_times import append, made_at, table
from support.stories import Transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Delta goes back a week, no further: the histories are of two hours ago.
_START = (round(time.time()) - 7200) * 1000
_SEEDS = st.integers(0, 2**32)


class History:
    """Half messages and decisions that were committed at random times; and what was pending when."""

    def __init__(self, root: Path, random: Random, commits: int) -> None:
        self._commits: list[tuple[int, set[int], set[int]]] = []
        self.times: list[int] = []
        self._now = _START
        for name in ("half", "decisions"):
            made_at(table(root, name), 0, self._now)
        offsets = iter(range(10_000))
        open_ones: set[int] = set()
        for _ in range(commits):
            self._now += random.choice((1, 1, 7, 60_000))
            ended = set(random.sample(sorted(open_ones), random.randrange(len(open_ones) + 1)))
            begun = {next(offsets) for _ in range(random.randrange(1, 4))}
            decides = bool(ended) and random.random() < 0.6
            if decides:
                self._append(root, "decisions", [Transaction(0, offset).decision()[1] for offset in ended])
                self._commits.append((self._now, set(), ended))
                open_ones -= ended
            else:
                rows = [Transaction(0, offset).half()[1] for offset in begun]
                if random.random() < 0.3:
                    rows.append(rows[0])  # a producer that sends it again
                self._append(root, "half", rows)
                self._commits.append((self._now, begun, set()))
                open_ones |= begun
            self.times.append(self._now)

    def pending(self, ms: int) -> set[int]:
        """The offsets that were pending."""
        found: set[int] = set()
        for at, begun, ended in self._commits:
            if at <= ms:
                found = (found | begun) - ended
        return found

    def _append(self, root: Path, name: str, rows: list[dict[str, Any]]) -> None:
        made_at(str(root / name), append(root, name, rows), self._now)


def _moment(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=ms)


def _offsets(root: Path, name: str, version: int | None) -> set[int]:
    if version is None:
        return set()
    rows = DeltaTable(str(root / name), version=version).to_pyarrow_table(columns=["queue_offset"])
    return set(rows.column("queue_offset").to_pylist())


@pytest.mark.slow
@DEAR
@given(_SEEDS)
def test_versions_of_a_moment_are_those_of_the_model(seed: int) -> None:
    """At each commit, a moment before it, and a moment after it. Without Spark."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        history = History(root, Random(seed), 12)
        offsets = cache(_offsets)
        with DuckDBEngine(Tables(root=folder, by_files=True)) as engine:
            for ms in {at + near for at in [_START, *history.times] for near in (-1, 0, 1)}:
                view = View(engine, _moment(ms))
                half, decisions = (offsets(root, name, view.version(name)) for name in ("half", "decisions"))
                assert half - decisions == history.pending(ms)


def test_pending_as_of_is_what_the_model_says(tmp_path: Path) -> None:
    """From before the first commit to long after the last."""
    seed = int(os.environ.get("SEED", "0")) or Random().randrange(1, 10**9)
    print(f"run it again with SEED={seed}")
    random = Random(seed)
    history = History(tmp_path, random, 12)
    answers = Answers(Settings.model_validate({"storage": {"root": str(tmp_path)}}))
    for ms in [_START - 1, *random.sample(history.times, 2), history.times[-1] - 1, history.times[-1] + 10**9]:
        found = answers.pending(_moment(ms)).column("queue_offset").to_pylist()
        assert sorted(found) == sorted(history.pending(ms))


def test_moment_whose_versions_are_gone_is_told_from_when_on(tmp_path: Path) -> None:
    """The log was cleaned up to a checkpoint; what is left can be read."""
    Path(table(tmp_path, "half"))
    for number in range(4):
        append(tmp_path, "half", [Transaction(0, number).half()[1]])
        if number == 2:
            DeltaTable(str(tmp_path / "half")).create_checkpoint()
    for version in range(5):
        made_at(str(tmp_path / "half"), version, _START + 1000 * version)
    for version in range(3):
        (tmp_path / f"half/_delta_log/{version:020d}.json").unlink()
    tables = Tables(root=str(tmp_path), by_files=True)
    with DuckDBEngine(tables) as engine:
        assert View(engine, _moment(_START + 3000)).version("half") == 3
    since = f"{_moment(_START + 3000):%Y-%m-%dT%H:%M:%S}"
    with DuckDBEngine(tables) as engine, pytest.raises(SettingsError, match=f"begins at {since}Z.*ask for {since}Z"):
        View(engine, _moment(_START + 2999)).version("half")


def test_moment_that_delta_does_not_read_any_more_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """Delta keeps the files of old versions for a week: they are read for as long as they are there."""
    for _ in range(2):
        append(tmp_path, "half", [Transaction(0, 0).half()[1]])
    for version in range(3):
        made_at(str(tmp_path / "half"), version, _START - 8 * 86_400_000 + version)
    checkback = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    view = View.of(spark, checkback, _moment(_START - 8 * 86_400_000 + 1))
    assert view.read("half").count() == 1
    for file in tmp_path.glob("half/*.parquet"):
        file.unlink()
    with pytest.raises(SettingsError, match=r"is too long ago.*maintain\.retention.*deletedFileRetentionDuration"):
        view.read("half")


def test_table_that_only_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    """By Delta's own history; before its first version there was none."""
    storage = {"root": str(tmp_path), "writer": "spark"}
    checkback = Settings.model_validate({"storage": storage, "reconcile": {"partitions": 2}})
    History(tmp_path, Random(1), 3)
    view = View.of(spark, checkback, _moment(_START))
    assert (view.version("half"), View.of(spark, checkback, _moment(_START - 1)).version("half")) == (0, None)
    assert view.read("half").isEmpty()
    assert View.of(spark, checkback).version("half") == max(Tables.of(checkback.storage).history(spark, "half", 9))
