"""Answers about the tables in this process, in a second: without Spark, for the command line and for web pages.

    with Answers(settings) as answers:
        oldest = answers.pending(group="orders", limit=50)       # a pyarrow Table, the oldest first
        then = answers.pending(as_of="2026-11-20T15:00")          # any question, as of a time

Every method but `batches`, `findings` and `audit` takes ``as_of``: a datetime, or a text as `as_of.parse_as_of` reads
it; None = now. To see the tables as a batch left them, give the ``finished_at`` of its row in `batches`. The rows are
pyarrow Tables, whose timestamps are us, UTC; `records` makes dicts of them. ``limit`` and ``offset`` choose a page of
the rows, in the order of the question; the other arguments filter them, None = all.

Threads may share an object: each call reads the tables' logs up to now, reopens recreated tables, and has a database of
its own. It raises SettingsError if ``as_of`` is not a time or too long ago,
or if there are no tables; StorageError if they cannot be read. Tables in a catalog, and those that only Spark can write
or read, raise `SparkNeededError` on opening.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from copy import copy
from datetime import datetime, timedelta, timezone
from threading import RLock, Timer
from typing import TYPE_CHECKING, Any, TypeVar

from checkback.errors import SettingsError, StorageError
from checkback.query.check_results import breakers_question
from checkback.query.engines.duckdb_engine import DuckDBEngine, Mark
from checkback.query.engines.question import Question
from checkback.query.message_keys import Name, keys_of, name_of
from checkback.query.outage import Outage, worst_of
from checkback.query.outage_questions import damage_question, outages_question
from checkback.query.pending_transactions import pending_question
from checkback.query.status.groups import group_rows, last_words_question
from checkback.query.status.status import Status, read_status
from checkback.query.time_series import (
    MINUTE,
    decided_question,
    decisions_question,
    latency_question,
    outcomes_question,
    pending_over_time_question,
    pick_interval,
    said_question,
)
from checkback.query.transaction_lineage import lineage_rows, transactions_question
from checkback.query.undelivered_messages import (
    SCHEDULED,
    SCHEDULED_COUNTS,
    UnpublishedTopic,
    count_unpublished,
    discard_counts_question,
    discarded_question,
    resumes_question,
    unpublished_question,
)
from checkback.query.unreadable_topics import topic_rows
from checkback.query.versions.as_of import parse_as_of
from checkback.query.versions.view import View
from checkback.query.versions.whole_batches import ORDER, stops_question
from checkback.storage.horizon import horizon
from checkback.storage.tables import Tables
from checkback.storage.timestamps import python_times, us_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from checkback.query.audit.findings import Report
    from checkback.query.engines.engine import Engine, Rows
    from checkback.settings import Settings

_Result = TypeVar("_Result")
#: a point in time
AsOf = datetime | str | None


class SparkNeededError(SettingsError):
    """Only Spark can read the tables."""


class Answers:
    """The questions, on the tables of the settings. A context manager."""

    def __init__(
        self, settings: Settings, spark: SparkSession | None = None, say: Callable[[str], object] | None = None
    ) -> None:
        """On DuckDB, or with ``spark`` on Spark. Raises SparkNeededError.

        ``say``: is given a line if small files make answers slow, once for each table.
        """
        self._settings = settings
        self._spark = spark
        self.tables = Tables.of(settings.storage)
        if spark is None and not self.tables.readable:
            root = None if settings.storage.catalog else settings.storage.root
            what = "the tables are in a catalog" if root is None else "is not read without Spark"
            raise SparkNeededError(what, root or "storage.catalog", "ask on Spark")
        self._lock = RLock()
        self._engine: DuckDBEngine | None = None
        self._views: dict[object, View] = {}
        self._marks: dict[str, Mark] = {}
        self._say = say
        self._said: set[str] = set()
        #: by table, as of the last look at it: its small files, if they are so many that answers are slow; else 0
        self.small_files: dict[str, int] = {}
        self._open: set[DuckDBEngine] = set()
        self._ended: list[StorageError] = []

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held between calls."""

    def stop(self, why: StorageError) -> None:
        """End all questions, also those to come: they raise ``why``. On DuckDB only; from any thread."""
        self._ended.append(why)
        for engine in tuple(self._open):
            engine.stop(why)

    @contextmanager
    def together(self, *, pending: bool = False) -> Iterator[Answers]:
        """The same answers of one moment, for several questions in one thread: what they share is read once.

        ``pending``: several are about what is pending.
        """
        if self._spark is not None or self._engine is not None:
            yield self
            return
        shared = (pending_question(self._settings).sql,) if pending else ()
        with self._opened(shared, several=True) as engine:
            answers = copy(self)
            answers._engine, answers._views = engine, {}
            yield answers

    def pending(
        self,
        as_of: AsOf = None,
        *,
        group: str | None = None,
        topic: str | None = None,
        why: str | None = None,
        older_than: timedelta | None = None,
        place: tuple[int, int] | None = None,
        bodies: bool = False,
        limit: int | None = None,
        offset: int = 0,
    ) -> pa.Table:
        """The pending half messages, the oldest first; columns as `pending_question`.

        ``why``: the beginning of the column's text. ``older_than``: since birth. ``place``: queue id and offset.
        ``bodies``: with tags, keys, properties and body (null = removed by retention since ``as_of``).
        """
        question = pending_question(self._settings, bodies=bodies)
        question = question.where("producer_group", group).where("real_topic", topic).at(place)
        age_s = None if older_than is None else older_than.total_seconds()
        return self._ask(question.begins("why", why).more("age_s", age_s).page(limit, offset), as_of)

    def check_max(self, as_of: AsOf = None) -> int:
        """The limit of checks by which the last batch judged; before the first one, that of the settings."""
        sql = "SELECT check_max, batch_time, batch_id FROM {batches} WHERE check_max IS NOT NULL"
        found = self._ask(Question(sql, "batch_time DESC, batch_id DESC").page(1), as_of)["check_max"].to_pylist()
        return int(found[0]) if found else self._settings.transaction.check_max

    def count_pending(self, as_of: AsOf = None) -> pa.Table:
        """How many are pending: producer_group, real_topic, why, pending BIGINT, oldest_born, the most first."""
        found = pending_question(self._settings)
        columns = "producer_group, real_topic, why"
        sql = f"""
            SELECT {columns}, count(*) AS pending, min(born_timestamp) AS oldest_born
            FROM ({found.sql}) GROUP BY {columns}"""
        return self._ask(Question(sql, f"pending DESC, {columns}", found.values), as_of)

    def producer_groups(self) -> list[str]:
        """The producer groups that have sent half messages, by name."""
        question = Question("SELECT DISTINCT producer_group FROM {half}", "producer_group")
        return [group for group in self._ask(question, None)["producer_group"].to_pylist() if group is not None]

    def groups(self, as_of: AsOf = None, *, stuck: bool = False) -> pa.Table:
        """A row for each producer group with something pending, and why; columns as `group_rows`.

        ``stuck``: only groups that are stuck, without that column.
        """
        return self._view(lambda view: group_rows(view, self._settings, stuck=stuck), as_of)

    def breakers(self, as_of: AsOf = None, *, group: str | None = None) -> pa.Table:
        """The circuit breaker of each endpoint that was tried; columns as `breakers_question`."""
        return self._ask(breakers_question(self._settings).where("producer_group", group), as_of)

    def status(self, as_of: AsOf = None) -> Status:
        """Whether reconcile is at work, how far it is, and who is stuck; `status.screen.as_json` makes JSON of it.

        Without consumers (`consumer.lag`). As of a time only what the tables tell.
        """
        now = datetime.now(timezone.utc)
        with self.together(pending=True) as answers:
            found: Status = answers._view(lambda view: read_status(self._settings, now, view), as_of)
        return found

    def audit(self, within: timedelta | None = None, *, since: AsOf = None) -> Report:
        """Whether the tables keep every promise; `audit.report.as_json` makes JSON of it.

        ``within``: raises StorageError if DuckDB takes longer. ``since``: without the transactions that ended before.
        Raises SettingsError if that is no time.
        """
        from checkback.query.audit.findings import audit_on

        begin = parse_as_of(since, name="since")
        return self._on(lambda engine: audit_on(engine, self._settings, since=begin), within, all_rows=True)

    def findings(self) -> pa.Table:
        """The transactions with which the audit finds fault; columns as `audit.findings_on`."""
        from checkback.query.audit.findings import findings_on

        return self._on(lambda engine: findings_on(engine, self._settings), all_rows=True)

    def unpublished(
        self,
        as_of: AsOf = None,
        *,
        group: str | None = None,
        topic: str | None = None,
        place: tuple[int, int] | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> pa.Table:
        """The unpublished messages, the oldest first; columns as `unpublished_question`."""

        def read(view: View) -> pa.Table:
            question, tables = unpublished_question(view)
            question = question.where("producer_group", group).where("real_topic", topic).at(place)
            return self._rows(view, question.page(limit, offset), tables)

        return self._view(read, as_of)

    def count_unpublished(self, as_of: AsOf = None) -> list[UnpublishedTopic]:
        """How many are unpublished by topic, since when and why; the oldest first."""
        found: list[UnpublishedTopic] = self._view(count_unpublished, as_of)
        return found

    def topics(self, as_of: AsOf = None) -> pa.Table:
        """The topics that have a table; columns as `topic_rows`."""
        return self._view(topic_rows, as_of)

    def lineage(self, transaction_id: str, as_of: AsOf = None, *, group: str | None = None) -> pa.Table:
        """All that the tables record of a transaction id, in order; columns as `lineage_rows`."""
        return self._view(lambda view: lineage_rows(view, transaction_id, group), as_of)

    def horizon(self) -> int | None:
        """Before it transactions that ended may have been removed (ms); None = none were."""
        return horizon(self._spark, self.tables)

    def transactions(
        self,
        as_of: AsOf = None,
        *,
        transaction_id: str | None = None,
        key: str | None = None,
        group: str | None = None,
        topic: str | None = None,
        place: tuple[int, int] | None = None,
        bodies: bool = False,
        limit: int | None = 100,
        offset: int = 0,
    ) -> pa.Table:
        """The half messages with an id, or a key among their keys, or of a ``place`` (queue id, offset), by offset.

        Columns: those of `half` (docs/tables.md), body only with ``bodies`` (null = removed by retention.bodies, then
        the topic's table has it, or erased: see erased_at); state, source, reason and decided_at of
        its decision (null = pending, or not taken); scheduled_for, when it is published after a COMMIT (null = at
        once); taken, false = another one has its offset, and this one is not decided. In a topic's table a message is
        named by its half_queue_id and half_queue_offset.
        """
        question = transactions_question(transaction_id, key, topic, place, bodies=bodies)
        question = question.where("producer_group", group)
        return self._ask(question.page(limit, offset), as_of)

    def resumes(self, transaction_id: str, as_of: AsOf = None, *, group: str | None = None) -> pa.Table:
        """As what an id's half messages were resumed, the first first; columns as `resumes_question`."""
        return self._ask(resumes_question(transaction_id, group), as_of)

    def keys(self, rows: Sequence[Mapping[str, Any]], as_of: AsOf = None) -> list[str | None]:
        """The keys of each row's half message. Rows: the columns `message_keys.NAME`."""
        found: dict[Name, str] = self._view(lambda view: keys_of(view, rows), as_of)
        return [found.get(name_of(row)) for row in rows]

    def last_words(self, group: str, as_of: AsOf = None) -> dict[str, Any]:
        """What the checks of a group brought last; columns as `last_words_question`."""
        return records(self._ask(last_words_question(group), as_of))[0]

    def scheduled(
        self,
        as_of: AsOf = None,
        *,
        group: str | None = None,
        topic: str | None = None,
        place: tuple[int, int] | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> pa.Table:
        """The scheduled messages, the next to be delivered first; columns as `SCHEDULED`."""
        question = SCHEDULED.where("producer_group", group).where("real_topic", topic).at(place)
        return self._ask(question.page(limit, offset), as_of)

    def count_scheduled(self, as_of: AsOf = None) -> pa.Table:
        """How many are scheduled: real_topic, messages BIGINT, overdue (by a minute), next_at; the next first."""
        return self._ask(SCHEDULED_COUNTS, as_of)

    def discarded(
        self,
        as_of: AsOf = None,
        *,
        since: AsOf = None,
        group: str | None = None,
        topic: str | None = None,
        reason: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> pa.Table:
        """The discarded messages, the last first; columns as `discarded_question`."""
        question = discarded_question(since).where("producer_group", group).where("real_topic", topic)
        return self._ask(question.where("reason", reason).page(limit, offset), as_of)

    def count_discarded(
        self,
        as_of: AsOf = None,
        *,
        group: str | None = None,
        topic: str | None = None,
        reason: str | None = None,
    ) -> pa.Table:
        """How many were discarded; columns as `discard_counts_question`, the most first."""
        question = discard_counts_question().where("producer_group", group).where("real_topic", topic)
        return self._ask(question.where("reason", reason), as_of)

    def decisions(
        self,
        as_of: AsOf = None,
        *,
        since: AsOf = None,
        every: timedelta = MINUTE,
        group: str | None = None,
        state: str | None = None,
        source: str | None = None,
    ) -> pa.Table:
        """How many were decided in each interval; columns as `decisions_question`."""
        question = decisions_question(since, every, source).where("producer_group", group).where("state", state)
        return self._ask(question, as_of)

    def decided(
        self,
        as_of: AsOf = None,
        *,
        since: AsOf = None,
        group: str | None = None,
        state: str | None = None,
        source: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> pa.Table:
        """The decisions one by one, the last first: the columns of the table `decisions` (docs/tables.md)."""
        question = decided_question(since).where("producer_group", group).where("state", state).where("source", source)
        return self._ask(question.page(limit, offset), as_of)

    def check_outcomes(
        self, as_of: AsOf = None, *, since: AsOf = None, every: timedelta = MINUTE, group: str | None = None
    ) -> pa.Table:
        """The outcomes of checks in each interval; columns as `outcomes_question`."""
        return self._ask(outcomes_question(since, every).where("producer_group", group), as_of)

    def outages(self, as_of: AsOf = None, *, since: AsOf = None, group: str | None = None) -> pa.Table:
        """The outages that were not over by ``since``, the last first; columns as `outages_question`."""
        return self._ask(outages_question(since).where("producer_group", group), as_of)

    def what_endpoints_said(self, as_of: AsOf = None, *, since: AsOf = None, group: str | None = None) -> pa.Table:
        """The results of attempts of checks, by endpoint and text; columns as `said_question`."""
        return self._ask(said_question(since).where("producer_group", group), as_of)

    def damage(self, outage: Outage, as_of: AsOf = None) -> pa.Table:
        """The transactions with failed checks in an outage; columns as `damage_question`."""
        return self._ask(damage_question(outage.group, outage.began, outage.last), as_of)

    def worst_outage(self, as_of: AsOf = None, *, since: AsOf = None, group: str | None = None) -> Outage:
        """The worst of `outages`, of one group or of all; one with ``happened`` false if there was none.

        That is the one with the most discarded, then still pending, then all transactions checked without success.
        """
        return worst_of(records(self.outages(as_of, since=since, group=group)), as_of)

    def decision_latency(
        self, as_of: AsOf = None, *, since: AsOf = None, every: timedelta = MINUTE, group: str | None = None
    ) -> pa.Table:
        """How long decisions took in each interval; columns as `latency_question`."""
        return self._ask(latency_question(since, every).where("producer_group", group), as_of)

    def pending_over_time(
        self, as_of: AsOf = None, *, since: AsOf = None, every: timedelta = MINUTE, group: str | None = None
    ) -> pa.Table:
        """How many were pending at the end of each interval; columns as `pending_over_time_question`."""
        return self._ask(pending_over_time_question(since, every).where("producer_group", group), as_of)

    def pick_every(self, as_of: AsOf = None, *, since: AsOf = None) -> timedelta:
        """An interval for plots of the whole time (`pick_interval`)."""
        found: timedelta = self._view(lambda view: pick_interval(view, since), as_of)
        return found

    def batches(self, *, limit: int | None = None, offset: int = 0) -> pa.Table:
        """The complete batches, the newest first: the columns of the table `batches` (docs/tables.md)."""
        return self._ask(Question("SELECT * FROM {batches}", ORDER).page(limit, offset), None)

    def batch_stops(self, near: int, far: int) -> pa.Table:
        """batch_id and finished_at of complete batches, the newest first: see `stops_question`."""
        return self._ask(stops_question(near, far), None)

    def last_batch(self, at: datetime) -> int | None:
        """The id of the last batch that was complete at a time; None = there was none."""
        question = Question(
            "SELECT batch_id, finished_at FROM {batches} WHERE finished_at <= timestamp_micros(:at)",
            ORDER,
            {"at": us_of(at)},
        )
        found = self._ask(question.page(1), None).column("batch_id").to_pylist()
        return found[0] if found else None

    def _ask(self, question: Question, as_of: AsOf) -> pa.Table:
        return self._view(lambda view: self._rows(view, question), as_of)

    def _rows(self, view: View, question: Question, tables: dict[str, Rows] | None = None) -> pa.Table:
        return view.engine.arrow(view.ask(question, tables))

    def _view(self, read: Callable[[View], _Result], as_of: AsOf) -> _Result:
        if self._engine is None:
            return self._on(lambda engine: read(View.on(engine, as_of)))
        if as_of not in self._views:
            self._views[as_of] = View.on(self._engine, as_of)
        return read(self._views[as_of])

    @contextmanager
    def _opened(
        self, shared: tuple[str, ...] = (), *, copies: bool = False, several: bool = False
    ) -> Iterator[DuckDBEngine]:
        tell = None if self._say is None else self._tell
        with DuckDBEngine(
            self.tables, self._lock, self._marks, shared, copies=copies, tell=tell, several=several
        ) as engine:
            self._open.add(engine)
            try:
                for why in self._ended:
                    raise why
                yield engine
            finally:
                self._open.discard(engine)

    def _tell(self, small_files: Mapping[str, int]) -> None:
        """Say once for each table how many small files it has."""
        self.small_files |= small_files
        new = {name: files for name, files in small_files.items() if files and name not in self._said}
        if new and self._say is not None:
            self._said |= new.keys()
            counts = ", ".join(f"{name} {files}" for name, files in new.items())
            self._say(f"many small files make this slow: {counts}; run `checkback maintain`")

    def _on(
        self, read: Callable[[Engine], _Result], within: timedelta | None = None, *, all_rows: bool = False
    ) -> _Result:
        if self._spark is not None:
            from checkback.query.engines.spark_engine import SparkEngine

            return read(SparkEngine(self._spark, self.tables))
        known = self._engine
        with self._opened(copies=all_rows, several=all_rows) if known is None else nullcontext(known) as engine:
            if within is None:
                return read(engine)
            timer = Timer(within.total_seconds(), engine.stop, [_too_long()])
            timer.daemon = True
            timer.start()
            try:
                return read(engine)
            finally:
                timer.cancel()
                timer.join()


def _too_long() -> StorageError:
    return StorageError("it takes too long here", "", "use the command, which takes the time that it needs")


def records(rows: pa.Table) -> list[dict[str, Any]]:
    """The rows as dicts: timestamps are aware datetimes, in UTC and in Python's range; maps are dicts."""
    found: list[dict[str, Any]] = python_times(rows).to_pylist(maps_as_pydicts="lossy")
    return found
