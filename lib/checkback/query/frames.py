"""The answers as Spark DataFrames, for notebooks: ``pending(spark, settings, ...)`` is `Answers.pending` on Spark.

No rows are collected, but those of `groups`, `lineage` and `topics`. Raise as `Answers`.
"""

from __future__ import annotations

from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, cast

import pyarrow as pa

from checkback.query.answers import Answers
from checkback.storage.dataframes import frame

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from pyspark.sql import DataFrame, SparkSession

    from checkback.query.engines.engine import Rows
    from checkback.query.engines.question import Question
    from checkback.query.versions.view import View
    from checkback.settings import Settings

_Asked = ParamSpec("_Asked")


class _Frames(Answers):
    """Answers whose rows stay with Spark."""

    def _rows(self, view: View, question: Question, tables: dict[str, Rows] | None = None) -> Any:
        return view.ask(question, tables)


def _framed(
    method: Callable[Concatenate[Answers, _Asked], pa.Table],
) -> Callable[Concatenate[SparkSession, Settings, _Asked], DataFrame]:
    def ask(spark: SparkSession, settings: Settings, /, *asked: _Asked.args, **named: _Asked.kwargs) -> DataFrame:
        rows = method(_Frames(settings, spark), *asked, **named)
        return frame(spark, rows) if isinstance(rows, pa.Table) else cast("DataFrame", rows)

    update_wrapper(ask, method)
    return ask


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


def pick_every(
    spark: SparkSession,
    settings: Settings,
    as_of: datetime | str | None = None,
    *,
    since: datetime | str | None = None,
) -> timedelta:
    """`Answers.pick_every`."""
    return Answers(settings, spark).pick_every(as_of, since=since)
