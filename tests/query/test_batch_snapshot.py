"""A snapshot, and as_of, show each batch in all tables or in none: batches at random, whole, cut short and replayed."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta, timezone
from functools import reduce
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from checkback.errors import SettingsError, StateError
from checkback.query.versions.batch_snapshot import snapshot
from checkback.query.versions.view import View
from checkback.settings import Settings
from checkback.storage.tables import Tables
from support.query_times import append, made_at, table
from support.stories import Transaction, batch

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from checkback.query.versions.batch_snapshot import Snapshot

# Delta goes back a week, no further.
_START = datetime.fromtimestamp(round(time.time()) - 7200, timezone.utc)
_TABLES = ("decisions", "discarded", "check_requests", "topics/a", "topics/b")


class Written:
    """Tables that batches write, and when each was whole. A batch may stop between its tables, and go on later."""

    def __init__(self, root: Path, random: Random) -> None:
        self._root, self._random = root, random
        self._now = _START
        self._number = 0
        #: rows of each batch by table: offsets
        self.rows: list[set[tuple[str, int]]] = []
        #: when each of them was whole; None = never
        self.whole: list[datetime | None] = []
        self.times: list[datetime] = []
        for name in ("half", "batches", *_TABLES):
            made_at(table(root, name), 0, _ms(self._now))
        append(root, "half", [Transaction(0, 0).half()[1]])

    def write(self, batches: int) -> None:
        """So many batches, of which the last may not be whole."""
        application = 0
        for number in range(batches):
            self._now += timedelta(seconds=self._random.choice((1, 20)))
            if self._random.random() < 0.2:
                application, self._number = application + 1, 0  # a rebuild
            names = self._random.sample(_TABLES, self._random.randrange(1, len(_TABLES) + 1))
            batch_time, rows = self._now, set[tuple[str, int]]()
            self.rows.append(rows)
            self.whole.append(None)
            for name in names:
                self._commit(name, [self._row(name, number, batch_time)])
                rows.add((name, number))
                # Cut short here: for good if it is the last, else the same batch goes on after a while.
                if self._random.random() < 0.3:
                    if number == batches - 1:
                        return
                    self._now += timedelta(seconds=60)
            row = batch(self._number, batch_time, f"query {application}", finished_at=self._now)
            self.whole[-1] = self._now
            self._now += timedelta(milliseconds=3)
            self._commit("batches", [row[1]])
            self._number += 1

    def _row(self, name: str, offset: int, batch_time: datetime) -> dict[str, Any]:
        t, batch_id = Transaction(0, offset), self._number
        if name.startswith("topics/"):
            return t.published(name.removeprefix("topics/"), published_at=batch_time, batch_id=batch_id)[1]
        if name == "decisions":
            return t.decision(decided_at=batch_time, batch_id=batch_id)[1]
        if name == "discarded":
            return t.discarded(discarded_at=batch_time, batch_id=batch_id)[1]
        return t.check()[1] | {"requested_at": batch_time, "batch_id": batch_id}

    def _commit(self, name: str, rows: list[dict[str, Any]]) -> None:
        self._now += timedelta(milliseconds=self._random.choice((1, 40)))
        made_at(str(self._root / name), append(self._root, name, rows), _ms(self._now))
        self.times.append(self._now)

    def shown(self, at: datetime | None) -> set[tuple[str, int]]:
        """What is to be seen at a time: (table, offset)."""
        there = (rows for rows, whole in zip(self.rows, self.whole, strict=True) if whole and (not at or whole <= at))
        return set().union(*there)

    @property
    def first(self) -> datetime:
        """When the first batch was whole."""
        return min(whole for whole in self.whole if whole is not None)


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _offsets(tables: dict[str, DataFrame]) -> set[tuple[str, int]]:
    rows = reduce(DataFrame.union, (_named(name, rows) for name, rows in tables.items())).collect()
    found = {(row["name"], row["queue_offset"]) for row in rows}
    assert len(found) == len(rows)
    return found


def _named(name: str, rows: DataFrame) -> DataFrame:
    column = "half_queue_offset" if name.startswith("topics/") else "queue_offset"
    return rows.select(F.lit(name).alias("name"), F.col(column).alias("queue_offset"))


def _of(taken: Snapshot) -> dict[str, DataFrame]:
    return {
        "decisions": taken.decisions,
        "discarded": taken.discarded,
        "check_requests": taken.check_requests,
        **{f"topics/{name}": rows for name, rows in taken.topics.items()},
    }


def _settings(root: Path, **storage: str) -> Settings:
    return Settings.model_validate({"storage": {"root": str(root), **storage}, "reconcile": {"partitions": 2}})


@pytest.fixture
def random() -> Random:
    """Another one each time; SEED=n for the same."""
    seed = int(os.environ.get("SEED", "0")) or Random().randrange(1, 10**9)
    print(f"run it again with SEED={seed}")
    return Random(seed)


def test_each_batch_is_seen_in_all_tables_or_in_none(spark: SparkSession, tmp_path: Path, random: Random) -> None:
    """At a random moment, mostly between two commits of a batch; now; and by as_of just the same."""
    written = Written(tmp_path, random)
    written.write(9)
    settings = _settings(tmp_path)
    moments = sorted(at for at in written.times if at >= written.first)
    at = random.choice(moments)
    taken = snapshot(spark, settings, at)
    assert _offsets(_of(taken)) == written.shown(at), at
    assert taken.batch.finished_at == max(whole for whole in written.whole if whole is not None and whole <= at)
    at = random.choice(moments)
    view = View.of(spark, settings, at)
    assert _offsets({name: view.read(name) for name in _TABLES}) == written.shown(at), at
    assert _offsets(_of(snapshot(spark, settings))) == written.shown(None)
    with pytest.raises(SettingsError, match=r"no batch was complete then; ask for .*Z or later"):
        snapshot(spark, settings, written.first - timedelta(milliseconds=1))
    view = View.of(spark, settings, written.first - timedelta(milliseconds=1))
    assert _offsets({name: view.read(name) for name in _TABLES}) == set()


def test_batch_that_is_finished_meanwhile_is_not_in_it(
    spark: SparkSession, tmp_path: Path, random: Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of its tables are opened before its commits, others after them."""
    written = Written(tmp_path, random)
    written.write(3)
    before = written.shown(None)
    history, opened = Tables.history, []

    def slow(self: Tables, spark: SparkSession, name: str, commits: int) -> dict[int, int]:
        opened.append(name)
        if len(opened) == 4:
            written.write(2)
        return history(self, spark, name, commits)

    with monkeypatch.context() as patched:
        patched.setattr(Tables, "history", slow)
        taken = snapshot(spark, _settings(tmp_path))
    assert _offsets(_of(taken)) == before


def test_it_outlives_what_maintain_does(spark: SparkSession, tmp_path: Path, random: Random) -> None:
    """OPTIMIZE puts rows of many batches into one file, and VACUUM takes those away that it replaced."""
    written = Written(tmp_path, random)
    written.write(9)
    for name in ("batches", *_TABLES):
        delta = DeltaTable(str(tmp_path / name))
        delta.optimize.compact()
        delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    at = random.choice([at for at in written.times if at >= written.first])
    assert _offsets(_of(snapshot(spark, _settings(tmp_path), at))) == written.shown(at)


def test_there_is_no_snapshot_before_the_first_batch_is_whole(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no such table"):
        snapshot(spark, _settings(tmp_path))
    append(tmp_path, "half", [Transaction(0, 0).half()[1]])
    append(tmp_path, "decisions", [Transaction(0, 0).decision()[1]])
    with pytest.raises(StateError, match=r"no batch is known to be complete.*run `checkback reconcile`"):
        snapshot(spark, _settings(tmp_path))
