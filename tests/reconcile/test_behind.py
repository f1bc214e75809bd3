"""A backlog that is read in pieces: nothing is checked or delivered whose op may have landed and is not read yet."""

from __future__ import annotations

import os
import random
from contextlib import nullcontext, suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from checkback.errors import CheckbackError
from checkback.query.answers import Answers
from checkback.reconcile.publish import publisher
from checkback.reconcile.publish.batch_writers import FileBatchWriter
from checkback.reconcile.publish.publisher import Publisher
from checkback.storage.tables import Tables
from reconcile.test_batch_rules import CrashError, Lakehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from checkback.settings import Settings

#: transactions of the backlog; the last few have no op
_ENDED, _PENDING = 10, 2
#: the last batch of a long run, which is below its limits, and the half message that it reads, whose op lands meanwhile
_LAST, _LATE = 3, 6


def _settings(lake: Lakehouse, max_files: int) -> Settings:
    settings = lake.settings(check_max=1)  # due at once: what is checked is then discarded
    return settings.model_copy(update={"reconcile": settings.reconcile.model_copy(update={"max_files": max_files})})


def _land(lake: Lakehouse, order: str, seed: int = 0) -> None:
    """A commit each of some half messages, and of their ops."""
    shuffled = random.Random(seed)
    halves = [(lake.half, n, n + 1, n + 2) for n in range(0, _ENDED + _PENDING, 3)]
    ops = [(lake.commit, n, n + 1) for n in range(0, _ENDED, 2)]
    landings: list[tuple[Any, ...]] = [*halves, *ops]
    if order == "ops first":
        landings = [*ops, *halves]
    elif order == "ops reversed":
        landings = [*halves, *reversed(ops)]
    elif order == "mixed":
        shuffled.shuffle(landings)
    for land, *offsets in landings:
        land(*offsets)


def _proved(lake: Lakehouse) -> None:
    requested = {offset for (offset,) in lake.rows("check_requests", "queue_offset")}
    assert requested == {*range(_ENDED, _ENDED + _PENDING)}
    assert lake.fates() == {n: ["topics/t"] if n < _ENDED else ["discarded"] for n in range(_ENDED + _PENDING)}
    states = lake.rows("decisions", "queue_offset", "state")
    assert states == [(n, "COMMIT" if n < _ENDED else "DISCARD") for n in range(_ENDED + _PENDING)]


@pytest.mark.parametrize("order", ["ops first", "ops reversed", "mixed"])
def test_no_transaction_is_checked_while_its_op_may_be_unread(spark: SparkSession, tmp_path: Path, order: str) -> None:
    lake = Lakehouse(spark, tmp_path)
    _land(lake, order)
    lake.run(_settings(lake, 1))
    lake.run(_settings(lake, 1))
    _proved(lake)


@pytest.mark.parametrize("killed", [False, True])
def test_op_that_landed_during_a_long_run_is_read_first(
    spark: SparkSession, tmp_path: Path, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark fixes the end of an available-now run when it starts; its last batch may come hours later.

    Killed in that batch, it is done again as it was begun, by a run that has just started.
    """
    lake, publish, conclude = Lakehouse(spark, tmp_path), Publisher.publish, Publisher._conclude
    for offset in range(_LATE + 1):  # two a batch
        lake.half(offset)
    lake.commit(*range(_LATE - 1))
    late, dies = iter([_LATE]), [_LAST] if killed else []

    def publishing(self: Publisher, *given: Any) -> Any:
        lake.commit(*late)
        return publish(self, *given)

    def concluding(self: Publisher, spark: SparkSession, actions: Any, batch_id: int, *more: Any) -> None:
        if batch_id in dies:
            raise CrashError
        conclude(self, spark, actions, batch_id, *more)

    with monkeypatch.context() as patch:
        patch.setattr(publisher, "_RECENT", 0)
        patch.setattr(Publisher, "publish", publishing)
        patch.setattr(Publisher, "_conclude", concluding)
        with pytest.raises(CheckbackError) if killed else nullcontext():
            lake.run(_settings(lake, 2))
    assert (lake.begun() == _LAST) is killed
    monkeypatch.setattr(publisher, "_RECENT", 10_000)  # also on a slow machine what comes after it is not late
    lake.run(_settings(lake, 2))
    assert lake.fates()[_LATE] == ["topics/t"]
    assert {offset for (offset,) in lake.rows("check_requests", "queue_offset")} == {_LATE - 1}


@pytest.mark.parametrize("sparse", [True, False])
def test_ops_wait_for_half_messages_that_landed_before_them_and_are_read_later(
    spark: SparkSession, tmp_path: Path, sparse: bool
) -> None:
    """More segments than ops may open, with one each; and longer than an op waits."""
    lake, (many, age) = Lakehouse(spark, tmp_path), (400, "72h") if sparse else (20, "1ms")
    few = {"partitions": 1, "max_files": many // 8}
    given = lake.settings(check_max=1, max_age=age)
    given = given.model_copy(update={"reconcile": given.reconcile.model_copy(update=few)})
    for first in range(0, many, 2):
        lake.half(first, first + 1)
    lake.commit(*range(many))
    lake.run(given)
    assert lake.fates() == {offset: ["topics/t"] for offset in range(many)}
    assert not lake.rows("rejected", "reason")


@pytest.mark.parametrize("recent", [0, 10_000])
def test_batch_is_done_again_as_it_was_begun_whatever_has_landed_since(
    spark: SparkSession, tmp_path: Path, recent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when some tables have a discard. Its op lands before the replay, on a machine whose clock is behind."""
    lake, add, decided, now = Lakehouse(spark, tmp_path), FileBatchWriter.append, Event(), publisher._now
    monkeypatch.setattr(publisher, "_RECENT", recent)
    lake.half(0)

    def adding(self: FileBatchWriter, name: str) -> str | None:
        if name == "discarded":
            assert decided.wait(60)
            raise CrashError
        found = add(self, name)
        if name == "decisions":
            decided.set()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(FileBatchWriter, "append", adding)
        while not decided.is_set():
            with suppress(CheckbackError):
                lake.run(_settings(lake, 1000))
    lake.commit(0)
    for commit in Path(lake.root, "op/_delta_log").glob("*.json"):
        os.utime(commit, (0, 0))  # begun before the batch, linked into place after it
    monkeypatch.setattr(publisher, "_now", lambda: now() - 120_000)
    for _ in range(2):
        lake.run(_settings(lake, 1000))
    assert lake.fates() == {0: ["discarded"]}
    assert Answers(_settings(lake, 1000)).audit().kept


@pytest.mark.parametrize("snapshot", [False, True])
def test_batch_of_a_backlog_is_done_again_as_it_was_begun(
    spark: SparkSession, tmp_path: Path, snapshot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in some batches, before their first commit and before their last."""
    lake = Lakehouse(spark, tmp_path)
    if snapshot:
        monkeypatch.setattr("checkback.storage.starting_versions.MOST_COMMITS", 0)
    _land(lake, "mixed", seed=1)
    commit, publish = Tables.append_arrow, Publisher.publish
    died: set[tuple[str, int]] = set()

    def once(point: str, number: int) -> None:
        if number in range(2, 6) and (point, number) not in died:
            died.add((point, number))
            raise CrashError

    def publishing(self: Publisher, spark: SparkSession, actions: Any, batch_id: int, app: str) -> Any:
        once("publish", batch_id)
        return publish(self, spark, actions, batch_id, app)

    def concluding(self: Tables, spark: SparkSession, rows: Any, name: str, *more: Any) -> Any:
        if name == "batches":
            once("conclude", more[1])
        return commit(self, spark, rows, name, *more)

    with monkeypatch.context() as patch:
        patch.setattr(Publisher, "publish", publishing)
        patch.setattr(Tables, "append_arrow", concluding)
        for _ in range(10):
            try:
                lake.run(_settings(lake, 1))
                break
            except CheckbackError:
                continue
    assert len(died) > 5
    lake.run(_settings(lake, 1))
    _proved(lake)
