"""The questions of `Answers` as Spark DataFrames. No rows are collected, but those of `groups`, `lineage`, `topics`."""

from __future__ import annotations

from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, cast

import pyarrow as pa

from checkback.query.answers import Answers
from checkback.storage.dataframes import frame

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from checkback.query.engines.engine import Rows
    from checkback.query.engines.question import Question
    from checkback.query.versions.batch_snapshot import Snapshot
    from checkback.query.versions.view import View
    from checkback.settings import Settings

_Asked = ParamSpec("_Asked")


class _OnSpark(Answers):
    """Answers whose rows stay with Spark."""

    def _rows(self, view: View, question: Question, tables: dict[str, Rows] | None = None) -> Any:
        return view.ask(question, tables)


def _framed(
    method: Callable[Concatenate[Answers, _Asked], pa.Table],
) -> Callable[Concatenate[Frames, _Asked], DataFrame]:
    def ask(self: Frames, /, *asked: _Asked.args, **named: _Asked.kwargs) -> DataFrame:
        rows = method(self._answers, *asked, **named)
        return frame(self._spark, rows) if isinstance(rows, pa.Table) else cast("DataFrame", rows)

    update_wrapper(ask, method)
    return ask


class Frames:
    """The questions on Spark: arguments and columns are those of `Answers`, and so are the errors."""

    def __init__(self, settings: Settings, spark: SparkSession) -> None:
        self._answers = _OnSpark(settings, spark)
        self._settings, self._spark = settings, spark

    breakers = _framed(Answers.breakers)
    check_outcomes = _framed(Answers.check_outcomes)
    decided = _framed(Answers.decided)
    decision_latency = _framed(Answers.decision_latency)
    decisions = _framed(Answers.decisions)
    discarded = _framed(Answers.discarded)
    groups = _framed(Answers.groups)
    lineage = _framed(Answers.lineage)
    outages = _framed(Answers.outages)
    pending = _framed(Answers.pending)
    pending_over_time = _framed(Answers.pending_over_time)
    scheduled = _framed(Answers.scheduled)
    topics = _framed(Answers.topics)
    transactions = _framed(Answers.transactions)
    unpublished = _framed(Answers.unpublished)

    def snapshot(self, at: datetime | str | None = None) -> Snapshot:
        """See `batch_snapshot.snapshot`."""
        from checkback.query.versions.batch_snapshot import snapshot

        return snapshot(self._spark, self._settings, at)

    def state_pending(self, batch_id: int | None = None) -> DataFrame:
        """See `state_store.state_pending`."""
        from checkback.query.state_store import state_pending

        return state_pending(self._spark, self._settings, batch_id)

    def state_differences(self) -> DataFrame:
        """See `state_store.state_differences`."""
        from checkback.query.state_store import state_differences

        return state_differences(self._spark, self._settings)
