"""Runs a replay over all segments of the tables, in this process; Spark reads them where only it can."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from checkback.errors import SettingsError
from checkback.query.engines.duckdb_engine import DuckDBEngine
from checkback.reconcile.batch_rules import rules_of
from checkback.settings.layers import OVERRIDE
from checkback.settings.loading import load
from checkback.storage.log.snapshot_files import Span
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables
from checkback.storage.timestamps import ms_of, time_of
from checkback.what_if import batch_history, rows
from checkback.what_if.batch_history import BatchHistory
from checkback.what_if.figures import Figures, total
from checkback.what_if.parts import Change, Part, Question
from checkback.what_if.records import NEVER
from checkback.what_if.timeline import Cadence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from pyspark.sql import SparkSession

    from checkback.query.engines.engine import Engine
    from checkback.reconcile.segment import Rules
    from checkback.settings import Settings
    from checkback.settings.loading import Loaded

#: by field of Rules, the setting
SETTINGS = {
    "timeout": "transaction.timeout",
    "check_interval": "transaction.check_interval",
    "check_max": "transaction.check_max",
    "reserved": "transaction.reserved",
    "check_jitter": "transaction.check_jitter",
    "count_undelivered": "check.count_undelivered",
}
#: offsets of all queues that are read together, about
_TOGETHER = 32_768
#: rows that are kept for the second pass instead of being read again
_KEPT = 1_000_000
#: the greatest offset
_LAST = (1 << 63) - 1
#: transactions that a WhatIf keeps
EXAMPLES = 50


@dataclass
class WhatIf:
    """What would have been otherwise.

    ``changes``: the changed rules, as fields of Rules. ``rules``: those in force, the last ones. ``since``, ``until``:
    the first and last batch, UTC; ``batches``: their number. ``groups``: figures by producer group. ``examples``: the
    first transactions whose state would have been another.
    """

    changes: Mapping[str, Any]
    rules: Rules
    since: datetime
    until: datetime
    batches: int
    groups: dict[str, Figures] = field(default_factory=dict)
    examples: list[Change] = field(default_factory=list)

    @property
    def total(self) -> Figures:
        """The figures of all groups."""
        return total(self.groups.values())

    def take(self, groups: Mapping[str, Figures], changes: Iterable[Change], tell: Callable[[Change], object]) -> None:
        """Add those of a part."""
        for group, figures in groups.items():
            self.groups.setdefault(group, Figures()).add(figures)
        for change in changes:
            tell(change)
            if len(self.examples) < EXAMPLES:
                self.examples.append(change)


def changes_of(loaded: Loaded) -> dict[str, Any]:
    """Fields of Rules and their values, of the rules that ``--set`` names: durations in ms."""
    rules = rules_of(loaded.settings)
    return {name: getattr(rules, name) for name, key in SETTINGS.items() if loaded.origin(key) == OVERRIDE}


def parse_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The same from settings and values, as {"transaction.timeout": "30s"}. Raises SettingsError."""
    for key in changes:
        if key not in SETTINGS.values():
            raise SettingsError("is no rule", key, f"rules are {', '.join(SETTINGS.values())}")
    values = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in changes.items()]
    return changes_of(load(None, values))


def replay(
    settings: Settings,
    changes: Mapping[str, Any],
    since: datetime | None = None,
    tell: Callable[[Change], object] = lambda _: None,
    spark: SparkSession | None = None,
) -> WhatIf:
    """Replay the half messages that landed at or ``since`` a time under the rules in force, with these ``changes``.

    ``changes``: fields of Rules. ``tell`` is given each transaction whose state would have been another. With ``spark``
    it reads the tables, as those in a catalog need. The rows of some 30,000 offsets are in memory at a time, or all up
    to a million. Raises StorageError, SettingsError if there are no tables, or no batch has recorded its rules.
    """
    tables = Tables.of(settings.storage)
    with _engine(tables, spark) as engine:
        history = BatchHistory.of(_rows(engine, "batches", batch_history.COLUMNS), tables.location("batches"))
        begin = 0 if since is None else ms_of(since)
        question = Question(history, changes, begin, settings.reconcile.segment_size)
        times, last = history.timeline.times, len(history.timeline) - 1
        first, until = time_of(int(times.min())), time_of(int(times.max()))
        found = WhatIf(changes, history.timeline.rules_at(last), first, until, len(times))
        needs = np.full(len(history.timeline), NEVER)
        kept: list[Part] = []
        held = 0
        for part in _parts(engine, question):
            np.minimum(needs, part.needs(), out=needs)
            held += len(part.rows)
            if held <= _KEPT:
                kept.append(part)
        cadence = Cadence.of(history.timeline, needs)
        for part in kept if held <= _KEPT else _parts(engine, question):
            answer = part.compare(cadence)
            found.take(answer.groups, answer.changes, tell)
    return found


def _engine(tables: Tables, spark: SparkSession | None) -> Any:
    if spark is None:
        return DuckDBEngine(tables)
    from checkback.query.engines.spark_engine import SparkEngine

    return nullcontext(SparkEngine(spark, tables))


def _parts(engine: Engine, question: Question) -> Iterator[Part]:
    """All parts that have half messages to be replayed, by offset."""
    if not engine.exists("half"):
        return
    together = max(1, _TOGETHER // question.segment_size) * question.segment_size
    since = max(question.since, question.history.begin)
    sql = """
        SELECT DISTINCT queue_offset - queue_offset % :together AS first FROM {half}
        WHERE queue_offset >= 0 AND unix_millis(store_timestamp) >= :since"""
    values = {"together": together, "since": since}
    found = engine.arrow(engine.query(sql, {"half": engine.read("half")}, values))
    for first in sorted(found.column("first").to_pylist()):
        end = first + together if first <= _LAST - together else None
        tables = {
            name: _rows(engine, name, columns, Span(columns[1], first, end)) for name, columns in rows.COLUMNS.items()
        }
        yield Part(tables, question)


def _rows(engine: Engine, name: str, columns: tuple[str, ...], within: Span | None = None) -> pa.Table:
    """The columns of a table, within these offsets; without a table none."""
    where = None if within is None else within.condition
    there = engine.read(name, None, where, within=within) if engine.exists(name) else engine.empty(name)
    found = engine.arrow(engine.query(f"SELECT {', '.join(columns)} FROM {{{name}}}", {name: there}, {}))
    return found.cast(pa.schema([arrow_schema(name).field(column) for column in columns]))
