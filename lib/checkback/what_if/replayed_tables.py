"""Runs a replay over all segments of the tables, in this process; Spark reads them where only it can."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from checkback.errors import SettingsError
from checkback.query.engines.duckdb_engine import DuckDBEngine
from checkback.reconcile.checkpointed_rules import rules_of
from checkback.settings.loading import OVERRIDE, load
from checkback.storage.log.snapshot_files import Span
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables
from checkback.storage.timestamps import ms_of, time_of
from checkback.what_if.comparison import Figures, compare, total
from checkback.what_if.recorded_segment import Recorded
from checkback.what_if.records import NEVER, State
from checkback.what_if.rows import COLUMNS, recorded_rows
from checkback.what_if.timeline import BATCH_COLUMNS, BatchHistory, Cadence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from checkback.query.engines.engine import Engine
    from checkback.reconcile.records.segment_records import Records
    from checkback.reconcile.segment import Rules
    from checkback.settings import Settings
    from checkback.settings.loading import Loaded


@dataclass(frozen=True)
class Change:
    """A transaction whose state would have been another. Times are UTC; None: it is pending.

    ``was``: as recorded; ``now``: under the other rules. ``assumed``: checks whose answer was never asked for.
    """

    queue_id: int
    queue_offset: int
    transaction_id: str
    producer_group: str
    landed_at: datetime
    was: str
    was_at: datetime | None
    was_checks: int
    now: str
    now_at: datetime | None
    now_checks: int
    assumed: int


@dataclass(frozen=True)
class Question:
    """What is asked: the batches, the changed fields of Rules, and since when half messages landed (ms)."""

    history: BatchHistory
    changes: Mapping[str, Any]
    since: int
    segment_size: int

    @property
    def hashed(self) -> bool:
        """Do times depend on the hash of the transaction ids: is there a check_jitter?"""
        return bool(self.changes.get("check_jitter")) or any(r.check_jitter for r in self.history.timeline.rules)


@dataclass(frozen=True)
class Answer:
    """Figures by producer group, and the transactions whose state would have been another."""

    groups: dict[str, Figures] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)


class Part:
    """Some whole segments: tables with `COLUMNS`."""

    def __init__(self, tables: Mapping[str, pa.Table], question: Question) -> None:
        self._question = question
        self._queues, self.rows, self._groups = recorded_rows(tables, question.history, question.since, question.hashed)
        self._half = tables["half"].select(["queue_id", "queue_offset", "store_timestamp", "transaction_id"])

    def needs(self) -> NDArray[Any]:
        """The first pass: by turn, when the first thing came up that made the batch necessary (ms)."""
        timeline = self._question.history.timeline
        found = np.full(len(timeline), NEVER)
        for _, _, rows in self._segments():
            np.minimum(found, Recorded.of(rows, timeline).needs, out=found)
        return found

    def compare(self, cadence: Cadence) -> Answer:
        """The second pass."""
        size, timeline = self._question.segment_size, self._question.history.timeline
        changed, answer = timeline.under(self._question.changes), Answer()
        for queue, base, rows in self._segments():
            compared = compare(rows, base, size, timeline, changed, cadence)
            for group, figures in compared.figures.items():
                answer.groups.setdefault(self._groups[group], Figures()).add(figures)
            answer.changes.extend(self._change(queue, change) for change in compared.changes)
        return answer

    def _segments(self) -> Iterator[tuple[int, int, Records]]:
        """Queue, first offset and RECORDED rows of each."""
        size = self._question.segment_size
        number: NDArray[Any] = self.rows["offset"] // size
        order = np.lexsort((number, self._queues))
        queues, number = self._queues[order], number[order]
        for rows in np.split(order, np.flatnonzero((np.diff(number) != 0) | (np.diff(queues) != 0)) + 1):
            if len(rows):
                yield int(self._queues[rows[0]]), int(self.rows["offset"][rows[0]]) // size * size, self.rows[rows]

    @cached_property
    def _ids(self) -> Mapping[tuple[int, int, int], str]:
        """Transaction ids by queue, offset and store_timestamp (µs)."""
        names = ("queue_id", "queue_offset", "transaction_id")
        queues, offsets, ids = (self._half.column(name).to_pylist() for name in names)
        stored = self._half.column("store_timestamp").cast(pa.int64()).to_pylist()
        return dict(zip(zip(queues, offsets, stored, strict=True), ids, strict=True))

    def _change(self, queue_id: int, change: Any) -> Change:
        """From a CHANGE record."""
        was, now = State(change["was_state"]), State(change["state"])
        offset, store = int(change["offset"]), int(change["store"])
        return Change(
            queue_id=queue_id,
            queue_offset=offset,
            transaction_id=self._ids[queue_id, offset, store],
            producer_group=self._groups[change["group"]],
            landed_at=time_of(store // 1000),
            was=was.name,
            was_at=time_of(int(change["was_at"])) if was is not State.PENDING else None,
            was_checks=int(change["was_checks"]),
            now=now.name,
            now_at=time_of(int(change["at"])) if now is not State.PENDING else None,
            now_checks=int(change["checks"]),
            assumed=int(change["assumed"]),
        )


#: by field of Rules, the setting
SETTINGS = {
    "timeout": "transaction.timeout",
    "check_interval": "transaction.check_interval",
    "check_max": "transaction.check_max",
    "max_age": "transaction.max_age",
    "check_jitter": "transaction.check_jitter",
    "count_undelivered": "transaction.count_undelivered",
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
        history = BatchHistory.of(_rows(engine, "batches", BATCH_COLUMNS), tables.location("batches"))
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
        tables = {name: _rows(engine, name, columns, Span(columns[1], first, end)) for name, columns in COLUMNS.items()}
        yield Part(tables, question)


def _rows(engine: Engine, name: str, columns: tuple[str, ...], within: Span | None = None) -> pa.Table:
    """The columns of a table, within these offsets; without a table none."""
    where = None if within is None else within.condition
    there = engine.read(name, None, where, within=within) if engine.exists(name) else engine.empty(name)
    found = engine.arrow(engine.query(f"SELECT {', '.join(columns)} FROM {{{name}}}", {name: there}, {}))
    return found.cast(pa.schema([arrow_schema(name).field(column) for column in columns]))
