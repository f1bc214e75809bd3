"""As of a moment: what a model in plain Python says was pending then, at every commit and between them."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from checkback.query.answers import Answers
from checkback.query.engines.duckdb_engine import DuckDBEngine
from checkback.query.versions.view import View
from checkback.settings import Settings
from checkback.storage.tables import Tables
from support.examples import DEAR
from support.query_times import append, table
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
            table(root, name)
        offsets = iter(range(10_000))
        open_ones: set[int] = set()
        for _ in range(commits):
            self._now += random.choice((1, 1, 7, 60_000))
            ended = set(random.sample(sorted(open_ones), random.randrange(len(open_ones) + 1)))
            begun = {next(offsets) for _ in range(random.randrange(1, 4))}
            decides = bool(ended) and random.random() < 0.6
            if decides:
                rows = [Transaction(0, offset).decision()[1] for offset in ended]
                append(root, "decisions", [row | {"decided_at": _moment(self._now)} for row in rows])
                self._commits.append((self._now, set(), ended))
                open_ones -= ended
            else:
                rows = [Transaction(0, offset).half()[1] | {"store_timestamp": _moment(self._now)} for offset in begun]
                if random.random() < 0.3:
                    rows.append(rows[0])  # a producer that sends it again
                append(root, "half", rows)
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


def _moment(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=ms)


def _forget(place: Path) -> None:
    """What `maintain` does with old versions."""
    DeltaTable(str(place)).create_checkpoint()
    for commit in sorted(place.glob("_delta_log/*.json"))[:-1]:
        commit.unlink()


def _offsets(view: View, name: str) -> set[int]:
    rows = view.engine.query("SELECT queue_offset FROM {rows}", {"rows": view.read(name)}, {})
    return set(view.engine.arrow(rows).column("queue_offset").to_pylist())


@pytest.mark.slow
@DEAR
@given(_SEEDS)
def test_rows_of_a_moment_are_those_of_the_model(seed: int) -> None:
    """At each commit, a moment before it, and a moment after it; without old versions in the logs."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        history = History(root, Random(seed), 12)
        for name in ("half", "decisions"):
            _forget(root / name)
        with DuckDBEngine(Tables(root=folder, by_files=True)) as engine:
            for ms in {at + near for at in [_START, *history.times] for near in (-1, 0, 1)}:
                view = View(engine, _moment(ms))
                half, decisions = (_offsets(view, name) for name in ("half", "decisions"))
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


def test_table_that_only_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    """Its newest version is Delta's own."""
    storage = {"root": str(tmp_path), "writer": "spark"}
    checkback = Settings.model_validate({"storage": storage, "reconcile": {"partitions": 2}})
    History(tmp_path, Random(1), 3)
    assert View.of(spark, checkback, _moment(_START)).read("half").isEmpty()
    assert View.of(spark, checkback).version("half") == max(Tables.of(checkback.storage).history(spark, "half", 9))
