"""The application dies between any two steps of a batch, and is started again: nothing is lost, nothing is twice."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from itertools import cycle
from typing import TYPE_CHECKING, Any

import pytest

from checkback.application.queries import reconcile
from checkback.application.rebuild import rebuild
from checkback.check.query import CheckBatches
from checkback.errors import CheckbackError, StateError
from checkback.query.answers import Answers
from checkback.reconcile.publish.publisher import Publisher
from checkback.settings import Settings
from checkback.storage.spark_writer import SparkTable, SparkWriter
from checkback.storage.tables import Tables
from crash.books import audit, cancelled, decided
from crash.fates import CHECK_MAX, GROUP, HOUR_MS, Lander, answers, fate
from examples.producer import ExampleProducer
from support.acted_in_order import out_of_order

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

_NUMBER = 40
_INTERVAL = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Point:
    """Dies around the commit of a table; ``others`` that are committed side by side with it are not committed.

    ``lost``: then the checkpoint is lost, too, and built anew. ``cancels``: an operator cancels messages before.
    ``spark``: also where only Spark writes the tables.
    """

    query: type[Publisher | CheckBatches]
    table: str
    after: bool = False
    others: bool = True
    slow: bool = False
    lost: bool = False
    cancels: bool = False
    spark: bool = False

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} {self.table}{'' if self.others else ', and nothing else'}"


_START, _END = "the first table", "the last table"
#: In the order of a batch: each is met by the replay of the batch that died at the one before. CHECKBACK_SLOW=1: all.
#: When the checkpoint was lost, more lands: a second batch.
POINTS = (
    Point(Publisher, _START),
    Point(Publisher, "topics/a", after=True, others=False, lost=True, spark=True),
    Point(Publisher, "decisions", after=True, others=False, slow=True, spark=True),
    Point(Publisher, "unpublished"),
    Point(Publisher, "unpublished", after=True, spark=True),
    Point(Publisher, "check_requests"),
    Point(Publisher, "rejected"),
    Point(Publisher, "batches"),
    Point(Publisher, "batches", after=True, slow=True),
    Point(Publisher, _END, after=True),
    # A batch that delivers and cancels what the one before has scheduled.
    Point(Publisher, "deliveries", cancels=True, spark=True),
    Point(Publisher, "deliveries", after=True, others=False),
    Point(Publisher, "discarded", after=True, others=False, slow=True),
    Point(Publisher, "batches", slow=True),
    Point(CheckBatches, _START, slow=True),
    Point(CheckBatches, "check_answers", slow=True),  # tests/check has this one and the next
    Point(CheckBatches, "op", slow=True, spark=True),
    Point(CheckBatches, _END, after=True),
)


class CrashError(ConnectionError):
    """The crash: no error of one table, which would not end the batch."""


@pytest.fixture(params=["auto", "spark"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    return Settings.model_validate(
        {
            "storage": {"root": str(tmp_path), "writer": request.param},
            "transaction": {"timeout": "0s", "check_interval": "1ms", "check_max": CHECK_MAX},
            "reconcile": {"partitions": 2, "segment_size": 64},
        }
    )


def _die_at(point: Point, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the application die at the point, whenever it comes there."""
    call, inside = point.query.__call__, False

    def dying(commit: Callable[..., Any]) -> Callable[..., Any]:
        def dying_commit(self: Any, *args: Any) -> Any:
            mine = inside and point.table in [arg.name if isinstance(arg, SparkTable) else arg for arg in args]
            if inside and ((mine and not point.after) or (not mine and not point.others)):
                raise CrashError(str(point))
            made = commit(self, *args)
            if mine and made is not False:
                raise CrashError(str(point))
            return made

        return dying_commit

    def dying_call(self: Any, batch: DataFrame, batch_id: int) -> None:
        nonlocal inside
        if point.table == _START:
            raise CrashError(str(point))
        inside = True
        call(self, batch, batch_id)
        if point.table == _END:
            raise CrashError(str(point))

    for kind, name in ((Tables, "commit"), (SparkWriter, "_append_in_jvm"), (SparkWriter, "append")):
        monkeypatch.setattr(kind, name, dying(getattr(kind, name)))
    monkeypatch.setattr(point.query, "__call__", dying_call)


def _dies_at(point: Point, spark: SparkSession, running: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as dying:
        _die_at(point, dying)
        with pytest.raises(CheckbackError, match=str(point)):
            reconcile(spark, running, available_now=True)


def test_crash_at_each_point_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once, on the same two batches: the replay of a replay. In the end every transaction is as its fate says.

    Every start has another max_checks than the one before. A topic's table cannot be made: its messages are put aside,
    and published late, when it can.
    """
    root, most = str(tmp_path), cycle([1, 160_000])
    lander = Lander(root)
    lander.land(_NUMBER // 2)
    in_the_way = tmp_path / "topics/b"
    in_the_way.parent.mkdir()
    in_the_way.touch()
    with ExampleProducer(answers(range(_NUMBER))) as producer:
        producers = {GROUP: {"endpoints": producer.endpoints}}

        def running() -> Settings:
            plain = settings.model_dump(mode="json", by_alias=True)
            return Settings.model_validate(
                plain | {"producers": producers, "reconcile": plain["reconcile"] | {"max_checks": next(most)}}
            )

        by_spark = settings.storage.writer == "spark"
        for point in POINTS:
            if not (point.spark if by_spark else os.environ.get("CHECKBACK_SLOW") or not point.slow):
                continue
            if point.cancels:
                lander.cancel(range(_NUMBER))
            _dies_at(point, spark, running(), monkeypatch)
            if point.lost:
                checkpoint = tmp_path / "_checkpoints/reconcile"
                checkpoint.rename(checkpoint.with_name("lost"))
                with pytest.raises(StateError, match="this checkpoint is new"):
                    reconcile(spark, running(), available_now=True)
                assert rebuild(spark, running(), print) is not None
                lander.land(_NUMBER // 2)
            assert not audit(root, timedelta(0), _INTERVAL, finished=False).duplicated, point
        in_the_way.unlink()
        for late in (Point(Publisher, "topics/b"), Point(Publisher, "topics/b", after=True)):
            _dies_at(late, spark, running(), monkeypatch)
        for _ in range(CHECK_MAX + 1):
            if len(decided(root)) < _NUMBER:
                reconcile(spark, running(), available_now=True)
        reconcile(spark, running(), available_now=True)
    books = audit(root, timedelta(0), _INTERVAL)
    assert {offset for offset in range(_NUMBER) if fate(offset).delay_ms == HOUR_MS} <= cancelled(root)
    assert (books.transactions, books.lost, books.duplicated, books.faults) == (_NUMBER, [], [], [])
    assert not Answers(settings).audit().broken
    assert not out_of_order(settings)
