"""Runs a replay over all segments of the tables, in this process or on Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from checkback.storage.tables import Tables
from checkback.what_if.figures import Figures, total
from checkback.what_if.parts import Change, Part, Question, milliseconds, moment
from checkback.what_if.table_files import TableFiles
from checkback.what_if.timeline import Cadence, Needs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from pyspark.sql import SparkSession

    from checkback.reconcile.segment import Rules
    from checkback.settings import Settings
    from checkback.what_if.batch_history import BatchHistory

#: transactions that a WhatIf keeps
EXAMPLES = 50
#: rows that are kept for the second pass instead of being read again
_KEPT = 1_000_000


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
    begin = 0 if since is None else milliseconds(since)
    if spark is not None:
        from checkback.what_if.on_spark import compare_on_spark

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


def begun(history: BatchHistory, changes: Mapping[str, Any]) -> WhatIf:
    """The result without figures."""
    timeline = history.timeline
    since, until = (moment(int(time)) for time in (timeline.times.min(), timeline.times.max()))
    return WhatIf(changes, timeline.rules_at(len(timeline) - 1), since, until, len(timeline))
