"""Runs a replay over all segments of the tables, in this process or on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checkback.storage.tables import Tables
from checkback.storage.timestamps import ms_of
from checkback.what_if.parts import Change, Part, Question
from checkback.what_if.result import WhatIf, begun
from checkback.what_if.table_files import TableFiles
from checkback.what_if.timeline import Cadence, Needs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from pyspark.sql import SparkSession

    from checkback.settings import Settings

#: rows that are kept for the second pass instead of being read again
_KEPT = 1_000_000


def replay(
    settings: Settings,
    changes: Mapping[str, Any],
    since: datetime | None = None,
    tell: Callable[[Change], object] = lambda _: None,
    spark: SparkSession | None = None,
) -> WhatIf:
    """Replay the half messages that landed at or ``since`` a time under the rules in force, with these ``changes``.

    ``changes``: fields of Rules. ``tell`` is given each transaction whose state would have been another. With ``spark``
    segments are replayed by its tasks, otherwise here, with the rows of some 100,000 offsets in memory at a time.
    Raises StorageError, SettingsError if there are no tables, or no batch has recorded its rules.
    """
    tables = Tables.of(settings.storage)
    begin = 0 if since is None else ms_of(since)
    if spark is not None:
        from checkback.what_if.spark_replay import compare_on_spark

        return compare_on_spark(spark, tables, settings.reconcile.segment_size, changes, begin, tell)
    files = TableFiles(tables, settings.reconcile.segment_size)
    question = Question(files.history, changes, begin, settings.reconcile.segment_size)
    found = begun(files.history, changes)
    needs = Needs.none(len(files.history.timeline))
    kept: list[Part] = []
    held = 0
    for part in files.parts(question):
        needs.join(part.needs())
        held += len(part.rows)
        if held <= _KEPT:
            kept.append(part)
    cadence = Cadence.of(files.history.timeline, needs)
    for part in kept if held <= _KEPT else files.parts(question):
        answer = part.compare(cadence)
        found.take(answer.groups, answer.changes, tell)
    return found
