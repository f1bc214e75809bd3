"""The tables as they are now, or as they were at a point in time, on Spark or DuckDB (`engine`).

A batch commits its tables side by side. Those tables are therefore shown as of the last batch that was complete by then
(`whole_batches`), the others by the times of their rows: old versions of a log are removed after a while.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from checkback.errors import SettingsError
from checkback.query.engines.engine import tables_in
from checkback.query.versions.as_of import parse_as_of
from checkback.query.versions.whole_batches import Cut, batch_time, read_batches
from checkback.storage.horizon import horizon
from checkback.storage.schemas import ROW_TIMES, TOPIC_PREFIX
from checkback.storage.timestamps import iso, ms_of, us_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import Column, SparkSession

    from checkback.query.engines.engine import Engine, Rows
    from checkback.query.engines.question import Question
    from checkback.settings import Settings
    from checkback.storage.tables import Tables

#: see `_in_turns`
_TURNS = {"decisions": 1, "deliveries": 2}
_LATER = "ask for that time or later"


@dataclass(frozen=True)
class View:
    """Tables at a point in time. ``opened``: when the view was.

    ``at`` None = now: each table as of the first look at it; on Spark, as of each read.
    """

    engine: Engine
    at: datetime | None = None
    opened: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    _versions: dict[str, int | None] = field(default_factory=dict, repr=False, compare=False)
    _cuts: list[Cut | None] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def of(cls, spark: SparkSession, settings: Settings, as_of: datetime | str | None = None) -> View:
        """The view on Spark. Raises SettingsError if there are no tables, or ``as_of`` is not a time."""
        from checkback.query.engines.spark_engine import SparkEngine
        from checkback.storage.tables import Tables

        return cls.on(SparkEngine(spark, Tables.of(settings.storage)), as_of)

    @classmethod
    def on(cls, engine: Engine, as_of: datetime | str | None = None) -> View:
        """The view on an engine. Raises SettingsError if there are no tables, or ``as_of`` is not a time."""
        moment = parse_as_of(as_of)
        if not engine.exists("half"):
            place = engine.tables.location("half")
            raise SettingsError("there is no such table", place, "run `checkback reconcile` first")
        since = None if moment is None else horizon(engine.session, engine.tables)
        if moment is not None and since is not None and ms_of(moment) < since:
            what = f"what ended before {iso(since)} was removed (retention.history)"
            raise SettingsError(what, "as_of", _LATER)
        return cls(engine, moment)

    @property
    def tables(self) -> Tables:
        """Where the tables are."""
        return self.engine.tables

    @property
    def moment(self) -> datetime:
        """The point in time; without one, when the view was opened."""
        return self.opened if self.at is None else self.at

    def ask(self, question: Question, more: Mapping[str, Rows] | None = None) -> Rows:
        """The rows of a question, of its tables and ``more``. Its value ``:now`` is the `moment`, us."""
        values = {"now": us_of(self.moment), **question.values}
        since = self.since(question.since)
        if since is not None:
            values["since"] = us_of(since)
        text = question.text
        read = {**(more or {})}
        self.look(*(tables_in(text) - read.keys()))
        read |= {name: self.read(name) for name in tables_in(text) - read.keys()}
        return self.engine.query(text, read, values)

    def since(self, since: datetime | str | None) -> datetime | None:
        """A time since when; "1h ago" and "15:00" are seen from the `moment`. Raises SettingsError if it is no time."""
        return parse_as_of(since, self.moment, "since")

    def read(self, name: str, *, file: bool = False) -> Any:
        """A table; empty if there was none. Columns that it did not have yet are null. ``file``: see `Engine.read`.

        Raises StorageError if its log is corrupt, SettingsError if rows as of ``at`` may have been removed.
        """
        if self.at is None and self.engine.session is not None and self.engine.exists(name):
            return self.engine.read(name, file=file)  # the newest by then
        version = self._readable(name)
        if version is None:
            return self.engine.empty(name, file=file)
        return self.engine.read(name, version, self._by_then(name), file=file)

    def read_topics(self, names: Sequence[str], *, file: bool = False) -> Any:
        """As `read`, of all these topics' tables that there were, with ``topic``. Raises as `read`."""
        if self.at is None and self.engine.session is not None:
            return self.engine.read_topics(dict.fromkeys(names), file=file)
        self.look(*names)
        versions = {name: version for name in names if (version := self._readable(name)) is not None}
        return self.engine.read_topics(versions, self._by_then(TOPIC_PREFIX), file=file)

    def _readable(self, name: str) -> int | None:
        """The version that is read, of which retention has removed nothing that there was at ``at``."""
        version = self.version(name)
        since = None if self.at is None or version is None else self.engine.horizon(name)
        if self.at is not None and since is not None and ms_of(self.at) < since:
            raise SettingsError(f"rows of {name} before {iso(since)} were removed (retention)", "as_of", _LATER)
        return version

    def version(self, name: str) -> int | None:
        """The version that is read: the newest, of whose rows `read` gives those of ``at``; None: there is no table."""
        self.look(name)
        if name not in self._versions:
            self._versions[name] = self.engine.newest(name)
        return self._versions[name]

    def look(self, *names: str) -> None:
        """Determine the versions of tables that will be read, side by side: one by one takes their latencies' sum."""
        new = [name for name in dict.fromkeys(names) if name not in self._versions]
        if not new:
            return
        for name in new:
            self._cut(name)  # before the versions: a batch's row is committed after its other tables
        found = self.engine.look(*_in_turns(new))
        self._versions.update({name: found[name] for name in new if name in found})

    def topics(self) -> list[str]:
        """Names of the topics' tables that exist now; some may not have existed at ``at``."""
        return self.engine.topics()

    def _cut(self, name: str) -> Cut | None:
        """The rows of a table as of ``at``; None: no batch writes it, or none has a row in `batches`."""
        if self.at is None or batch_time(name) is None:
            return None
        if not self._cuts:
            self._cuts.append(Cut.at(read_batches(self.engine), ms_of(self.at)))
        return self._cuts[0]

    def _by_then(self, name: str) -> str | None:
        """SQL: the rows of a table that there were at ``at``; None = all."""
        if self.at is None:
            return None
        cut = self._cut(name)
        if cut is not None:
            return cut.condition(name)
        return f"timestamp_micros({us_of(self.at)}) >= rows.{ROW_TIMES.get(name, 'published_at')}"


def _in_turns(names: Iterable[str]) -> list[list[str]]:
    """The tables in the order in which they are looked at: what says that something is over comes after it.

    A message that a batch decides, delivers or publishes meanwhile is then not shown as still pending, scheduled or
    unpublished.
    """
    turns: list[list[str]] = [[], [], []]
    for name in names:
        turns[2 if name.startswith(TOPIC_PREFIX) else _TURNS.get(name, 0)].append(name)
    return [turn for turn in turns if turn]


def moment_column(at: datetime) -> Column:
    """A point in time as a column of Spark."""
    from pyspark.sql import functions as F

    return F.timestamp_micros(F.lit(us_of(at)))
