"""All tables at fixed versions, such that every batch is either completely included or completely left out.

A batch commits its tables side by side, not atomically: one in progress may be in some tables and not in others. And
batches go on while an audit opens one table after the other. Therefore, in this order:

1. Read the last completed batch (``commits`` of the checkpoint), and the batches with a row in `batches`, which is
   written last. Everything that these and earlier batches wrote is visible.
2. Fix the versions of the tables that batches write, then those of `half` and `op`, so that these contain everything
   that the others refer to.
3. Read the batches that got a row since, and those begun since (``offsets`` of the checkpoint). Their rows, by batch
   id and batch time, are left out. No other batch can have written: a batch is in ``offsets`` before it begins.

Without a checkpoint only its rows reveal a batch in progress: its id follows the last one in `batches`, or is 0 after a
rebuild (`audit.batches`). Batch ids alone are not enough, as another checkpoint restarts them; nor are times, as clocks
are set back.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from checkback.query.engines.engine import tables_in
from checkback.query.engines.question import Question
from checkback.query.versions.published_notes import NAME as NOTES
from checkback.query.versions.published_notes import no_notes, with_noted
from checkback.query.versions.whole_batches import BatchTable, batch_time, read_batches
from checkback.reconcile.checkpointed_rules import FOLDER
from checkback.reconcile.ended_transactions import WHOSE, ended, expired_halves, repeated
from checkback.storage.checkpoints.checkpoint import Batch, batches_since, last_done, numbers, read_checkpoint
from checkback.storage.failure_scope import own_failure
from checkback.storage.horizon import horizon
from checkback.storage.log.snapshot_files import Span
from checkback.storage.schemas import BATCH_TIMES, HALF, ROW_TIMES, SCHEMAS, TOPIC, TOPIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from checkback.query.engines.engine import Engine, Rows
    from checkback.storage.tables import Tables

#: the tables that tell it, besides the notes
TOLD_BY = ("half", "decisions", "deliveries", "unpublished")
_PLACE = ("queue_id", "queue_offset")
_TOPIC = [column.name for column in TOPIC]
#: the columns that a topic has otherwise than `half`
_OTHERS = {
    "half_queue_id": "c.queue_id",
    "half_queue_offset": "c.queue_offset",
    "queue_id": "h.real_queue_id",
    "half_store_timestamp": "h.store_timestamp",
    "published_at": "coalesce(w.at, d.at, c.at)",
    "batch_id": "CASE WHEN w.at IS NOT NULL THEN w.batch_id WHEN d.at IS NOT NULL THEN d.batch_id ELSE c.batch_id END",
}


def with_untold(engine: Engine, topics: Rows, unread: Iterable[str], tables: Mapping[str, Rows]) -> Rows:
    """The rows of ``topics``, and for those of the tables ``unread`` what ``tables`` (`TOLD_BY`, the notes) tell.

    That is each transaction that was decided COMMIT, and delivered if it was scheduled, unless it is outstanding in
    `unpublished`: its half message, as published by the batch that decided or delivered it, or put it there.
    """
    known = pa.table({"name": [name.removeprefix(TOPIC_PREFIX) for name in unread]})
    return engine.select(_TOLD, {**tables, "topics": topics, "unread": engine.keep("unread", known)})


def _first(table: str, time: str, more: Iterable[str] = (), key: tuple[str, str] = _PLACE) -> str:
    """SQL: the first row of each transaction: queue_id, queue_offset, at (its ``time``), and ``more``."""
    queue, offset = key
    columns = ", ".join([f"{queue} AS queue_id", f"{offset} AS queue_offset", f"{time} AS at", *more])
    turn = f"row_number() OVER (PARTITION BY {queue}, {offset} ORDER BY {time})"
    return f"(SELECT * FROM (SELECT {columns}, {turn} AS turn FROM {table}) AS ordered WHERE turn = 1)"


def _told() -> str:
    half = _first("{half}", "store_timestamp", [column.name for column in HALF if column.name not in _PLACE])
    committed = _first("{decisions} WHERE state = 'COMMIT'", "decided_at", ("batch_id", "deliver_at", "real_topic"))
    delivered = _first("{deliveries}", "delivered_at", ("batch_id",))
    key = ("half_queue_id", "half_queue_offset")
    waiting = _first(with_noted("{unpublished}") + " AS noted", "unpublished_at", ("batch_id", "noted"), key)
    columns = ", ".join(f"{_OTHERS.get(name, f'h.{name}')} AS {name}" for name in _TOPIC)
    h, d, w = (f"{row}.queue_id = c.queue_id AND {row}.queue_offset = c.queue_offset" for row in "hdw")
    return f"""
        SELECT {", ".join(_TOPIC)}, topic FROM {{topics}}
        UNION ALL
        SELECT {columns}, coalesce(h.real_topic, c.real_topic) AS topic
        FROM {committed} AS c JOIN {{unread}} AS u ON u.name = c.real_topic LEFT JOIN {half} AS h ON {h}
            LEFT JOIN {delivered} AS d ON {d} LEFT JOIN {waiting} AS w ON {w}
        WHERE (c.deliver_at IS NULL OR d.at IS NOT NULL) AND coalesce(w.noted, TRUE)"""


_TOLD = _told()


#: written by landing, and therefore fixed last
_SOURCES = ("half", "op")
#: index of `half` among the sources of the query
_HALF = 0
#: the columns that name a transaction, of the tables that have many
_KEYS = {
    **dict.fromkeys(
        ("half", "op", "decisions", "deliveries", "discarded", "check_requests"), ("queue_id", "queue_offset")
    ),
    **dict.fromkeys((TOPIC_PREFIX, "unpublished"), ("half_queue_id", "half_queue_offset")),
}
#: of a transaction that has not ended there may be rows of any time in these; in the others only the end
_BEGUN_BEFORE = {
    **dict.fromkeys(("half", "op"), "store_timestamp"),
    **{name: BATCH_TIMES[name] for name in ("decisions", "deliveries", "check_requests", "unpublished")},
}
#: the greatest offset
_MOST = (1 << 63) - 1
#: the name of all topics' rows in a question; with ALL in front: with the rows of batches in progress
TOPICS = "topics"
ALL = "all_"


class Recorded(NamedTuple):
    """Completed batches of an application, from ``first`` to ``last``, each of which has had a row in `batches`."""

    application: str
    first: int
    last: int


@dataclass(frozen=True)
class FixedTables:
    """Tables as of the batch ``done`` (None = unknown, or none). ``under_way``: batches in progress, left out.

    ``versions``: of the existing tables, by name. ``whole``: the batches with a row in `batches` before the versions
    were fixed. ``logged``: whether a checkpoint tells which batches have begun. ``recorded``: by the checkpoint, those
    that have left a row in `batches`. ``part``: only transactions whose offset is at least the first and below the
    second; None = all. ``only``: of these, rows (queue_id, queue_offset). ``notes``: of what was published late.
    ``unread``: topics' tables that cannot be read, with the reason: see `with_untold`.
    ``since``: the horizon of the history (ms): transactions that ended before it are left out, None = none are;
    ``owed``: KEY of those that landed before it and had not ended; ``over``: of those that landed later, by another
    clock, and had. ``bodies_since``: the horizon of bodies in `half`.
    """

    engine: Engine
    versions: Mapping[str, int]
    done: Batch | None
    under_way: tuple[Batch, ...]
    whole: BatchTable
    logged: bool
    recorded: Recorded | None = None
    part: tuple[int | None, int | None] = (None, None)
    only: Rows | None = None
    notes: pa.Table | None = None
    unread: Mapping[str, str] = field(default_factory=dict)
    since: int | None = None
    owed: pa.Table | None = None
    over: pa.Table | None = None
    bodies_since: int | None = None

    @classmethod
    def take(cls, engine: Engine) -> FixedTables:
        """The tables as they are now. Raises StorageError if the checkpoint, or one of no topic, cannot be read."""
        place, spark = engine.tables.checkpoint("reconcile"), engine.session
        checkpoint, done = read_checkpoint(spark, place), last_done(spark, place)
        whole = read_batches(engine)
        outputs = [*(name for name in SCHEMAS if name not in _SOURCES), *engine.topics()]
        found, unread = engine.look(outputs, _SOURCES), {}

        def newest(name: str) -> tuple[str, int | None]:
            if name in found:
                return name, found[name]
            try:
                return name, engine.newest(name)
            except Exception as error:  # Spark's own, in a catalog
                if not name.startswith(TOPIC_PREFIX):
                    raise
                unread[name] = own_failure(error)
                return name, None

        with ThreadPoolExecutor(max_workers=4) as pool:
            newest_of = list(pool.map(newest, outputs))
            newest_of += list(pool.map(newest, _SOURCES))
        begun = batches_since(spark, place, done)
        since = read_batches(engine).others(whole.applications, whole.batches)
        fixed = cls(
            engine=engine,
            versions={name: version for name, version in newest_of if version is not None},
            done=next((batch for batch in begun if batch.batch_id == done), None),
            # A batch has its row before `commits` tells of it.
            under_way=tuple(batch for batch in begun if batch.batch_id > done and not whole.has(batch)),
            whole=whole,
            logged=checkpoint is not None or bool(begun),
            recorded=None if checkpoint is None else _recorded(spark, place, checkpoint.query_id, done),
            unread=unread,
        )
        return fixed.without((int(batch["batch_id"]), int(batch["time"])) for batch in since)

    def parts(self, brief: bool = False) -> list[FixedTables]:
        """The transactions in parts by their offsets, as large as the engine wishes; ``brief``: see its offset_cuts."""
        rows = self.only if self.only is not None else self.read("half") if "half" in self.versions else None
        cuts = [] if rows is None else self.engine.offset_cuts(rows, brief)
        first, end = self.part
        return [replace(self, part=part) for part in zip([first, *cuts], [*cuts, end], strict=True)]

    def of(self, transactions: pa.Table, name: str = "transactions") -> FixedTables:
        """Only these of the part's transactions: queue_id, queue_offset. The next ones of this name replace them."""
        found = pc.min_max(transactions.column("queue_offset"), skip_nulls=False).as_py()
        least, most = found["min"], found["max"]
        part = self.part if least is None else (least, most + 1 if most < _MOST else None)
        return replace(self, only=self.engine.keep(name, transactions), part=part)

    def everything(self) -> FixedTables:
        """The tables with all transactions, not only some or a part."""
        return replace(self, only=None, part=(None, None))

    def without(self, batches: Iterable[tuple[int, int]]) -> FixedTables:
        """The tables without the rows of these batches, (id, time), either."""
        known = {(batch.batch_id, batch.time) for batch in self.under_way}
        more = (Batch(*batch) for batch in batches if batch not in known)
        return replace(self, under_way=(*self.under_way, *more))

    def without_topics(self, unread: Mapping[str, str]) -> FixedTables:
        """The tables without these topics' either, which cannot be read; by name, with the reason."""
        versions = {name: version for name, version in self.versions.items() if name not in unread}
        return replace(self, versions=versions, unread={**self.unread, **unread})

    @property
    def tables(self) -> Tables:
        """Where the tables are."""
        return self.engine.tables

    @property
    def ignores_case(self) -> bool:
        """Whether the name of a topic's table may differ from the topic in case."""
        return bool(self.tables.catalog)

    @property
    def topics(self) -> list[str]:
        """Names of the topics' tables."""
        return [name for name in self.versions if name not in SCHEMAS]

    @cached_property
    def topics_since(self) -> dict[str, int]:
        """The horizons of topics' tables (ms), by topic. Raises StorageError."""
        found = {name: self.engine.horizon(name) for name in self.topics}
        return {name.removeprefix(TOPIC_PREFIX): at for name, at in found.items() if at is not None}

    def ask(self, question: Question, more: Mapping[str, Rows] | None = None) -> Rows:
        """The rows of a question: a table without the rows of batches in progress; with them its name begins `all_`.

        `topics` is the rows of all topics, with ``topic``, the name as the table spells it; of those that cannot be
        read, what the other tables tell. ``more`` are other tables.
        """
        text, others = question.text, more or {}
        read = {name: self.read(name) for name in tables_in(text) - others.keys()}
        return self.engine.query(text, {**read, **others}, question.values)

    def read(self, name: str) -> Any:
        """A table, `topics`, or the notes, as `ask` names it; empty if there is no such table."""
        if name == NOTES:
            return self.engine.keep(name, no_notes() if self.notes is None else self.notes)
        plain = name.removeprefix(ALL)
        kind = TOPIC_PREFIX if plain == TOPICS else plain
        where, within = self._recent(kind, plain != name), None
        if plain == name:
            where, within = _and(where, self._condition(kind)), self._within(kind)
        version = self.versions.get(plain)
        if plain == TOPICS:
            rows = self.engine.read_topics({name: self.versions[name] for name in self.topics}, where, within)
            if self.unread:
                read = {table: self.read(f"{ALL}{table}" if plain != name else table) for table in TOLD_BY}
                read[NOTES] = self.read(NOTES)
                rows = with_untold(self.engine, rows, self.unread, read)
        elif version is None:
            rows = self.engine.empty(plain)
        else:
            rows = self.engine.read(plain, version, where, within=within)
        if self.owed is not None and plain == name and kind in _BEGUN_BEFORE:
            rows = self._judged(rows, kind)
        if self.only is None or plain != name or kind not in _KEYS:
            return rows
        return self.engine.among(rows, _KEYS[kind], self.only)

    def _condition(self, kind: str) -> str | None:
        """Which rows of a table are read."""
        within = self._within(kind)
        return _and(self._done_rows(batch_time(kind)), None if within is None else within.condition)

    def _recent(self, kind: str, whole_batches: bool) -> str | None:
        """Which rows are left out because of the horizon, by their time alone; of batches all of a batch."""
        time = batch_time(kind)
        if self.since is None or time is None or (kind in _BEGUN_BEFORE and not whole_batches):
            return None
        return f"{time} >= timestamp_millis({self.since})"

    def _judged(self, rows: Rows, kind: str) -> Rows:
        """The rows without those of transactions that ended before the horizon."""
        queue, offset = _KEYS[kind]
        same = f"o.queue_id = r.{queue} AND o.queue_offset = r.{offset}"
        landed = f"{_BEGUN_BEFORE[kind]} >= timestamp_millis({self.since})"
        read = {"rows": rows, "owed": self.engine.keep("owed", self.owed)}
        if kind in _SOURCES and self.over is not None and self.over.num_rows:
            landed += f" AND NOT EXISTS (SELECT 1 FROM {{over}} AS o WHERE {same})"
            read["over"] = self.engine.keep("over", self.over)
        where = f"{landed} OR EXISTS (SELECT 1 FROM {{owed}} AS o WHERE {same})"
        return self.engine.select(f"SELECT * FROM {{rows}} AS r WHERE {where}", read)

    def begun_at_horizon(self, margin: timedelta) -> FixedTables:
        """These tables without the transactions that ended before the horizon. Raises StorageError.

        ``margin``: by which the clocks of those that land and decide may differ.
        """
        since = horizon(self.engine.session, self.tables)
        if since is None or not {"half", "decisions"} <= set(self.versions):
            return self
        owed, over = self._owed(since, margin)
        return replace(self, since=since, owed=owed, over=over)

    def touched_since(self, at: int) -> FixedTables:
        """Only the transactions that had not ended at a time (ms), or have a row since then. Raises StorageError."""
        if not {"half", "decisions"} <= set(self.versions):
            return self
        parts = [
            f"SELECT {queue} AS queue_id, {offset} AS queue_offset FROM {{{TOPICS if name == TOPIC_PREFIX else name}}}"
            f" WHERE {ROW_TIMES.get(name, 'published_at')} >= timestamp_millis({at})"
            for name, (queue, offset) in _KEYS.items()
        ]
        touched = self.engine.arrow(self.ask(Question(" UNION ".join([*parts, _outstanding(at)]))))
        return self.of(touched, "touched")

    def _owed(self, since: int, margin: timedelta) -> tuple[pa.Table, pa.Table]:
        """KEY of the half messages that landed before a time (ms), and had not ended by then; and of those that had.

        The latter are those that landed since, within the margin.
        """
        before, until = f"timestamp_millis({since})", since + margin // timedelta(milliseconds=1)

        def old(name: str, columns: Sequence[str], where: str) -> pa.Table:
            sql = f"SELECT {', '.join(columns)} FROM {{{name}}} WHERE {where}"
            return self.engine.arrow(self.ask(Question(sql)))

        same = "t.half_queue_id = u.half_queue_id AND t.half_queue_offset = u.half_queue_offset"
        late = f"EXISTS (SELECT 1 FROM {{topics}} AS t WHERE t.published_at >= {before} AND {same})"
        waits = "SELECT half_queue_id AS queue_id, half_queue_offset AS queue_offset"
        waiting = Question(f"{waits} FROM {with_noted('{unpublished}')} AS u WHERE NOT noted OR {late}")
        halves = old("half", (*_PLACE, *WHOSE, "store_timestamp"), f"store_timestamp < timestamp_millis({until})")
        columns = (*_PLACE, *WHOSE, "state", "decided_at", "deliver_at")
        decisions = old("decisions", columns, f"decided_at < {before}")
        at = pa.scalar(since * 1000, pa.timestamp("us", "UTC"))
        over = ended(
            decisions,
            old("deliveries", (*_PLACE, "delivered_at"), f"delivered_at < {before}"),
            self.engine.arrow(self.ask(waiting)),
            at,
        )
        again = repeated(old("rejected", ("source", "reason"), "source = 'half'"))
        gone = pa.array(expired_halves(halves, decisions, over, again, pa.scalar(until * 1000, at.type)))
        early, places = pc.less(halves.column("store_timestamp"), at), halves.select(list(_PLACE))
        return places.filter(pc.and_(early, pc.invert(gone))), places.filter(pc.and_(pc.invert(early), gone))

    def _within(self, kind: str) -> Span | None:
        """Which rows of a table are those of the part; None: all."""
        _, offset = _KEYS.get(kind, (None, None))
        return None if offset is None or self.part == (None, None) else Span(offset, *self.part)

    def _done_rows(self, time: str | None) -> str | None:
        if time is None or not self.under_way:
            return None
        of_batch = (f"(batch_id = {batch.batch_id} AND unix_millis({time}) = {batch.time})" for batch in self.under_way)
        return f"NOT coalesce({' OR '.join(of_batch)}, FALSE)"

    def half_read_until(self) -> int | None:
        """The landing time (ms) up to which the batch ``done`` has read `half`; None if unknown.

        Everything that was there when it began, unless reconcile lags behind.
        """
        if self.done is None or "half" not in self.versions:
            return None
        first_unread = self.done.unread(_HALF)
        if first_unread > self.versions["half"]:
            return self.done.time
        versions = self.engine.versions("half")
        if versions is None or not versions.oldest <= first_unread <= versions.newest:
            return None
        return min(versions.made_at(first_unread), self.done.time)


def _outstanding(at: int) -> str:
    """SQL: queue_id, queue_offset of what had not ended at a time (ms), or waits for its topic's table."""
    by_then, same = f"< timestamp_millis({at})", "e.queue_id = b.queue_id AND e.queue_offset = b.queue_offset"
    decided = f"SELECT 1 FROM {{decisions}} AS e WHERE {same} AND e.decided_at {by_then}"
    delivered = f"SELECT 1 FROM {{deliveries}} AS e WHERE {same} AND e.delivered_at {by_then}"
    return f"""
        SELECT queue_id, queue_offset FROM {{half}} AS b WHERE store_timestamp {by_then} AND NOT EXISTS ({decided})
        UNION SELECT queue_id, queue_offset FROM {{decisions}} AS b
        WHERE state = 'COMMIT' AND deliver_at IS NOT NULL AND decided_at {by_then}
            AND NOT EXISTS ({delivered}) AND NOT EXISTS ({decided} AND e.state = 'CANCEL')
        UNION SELECT half_queue_id, half_queue_offset FROM {with_noted("{unpublished}")} AS b WHERE NOT noted"""


def _and(*conditions: str | None) -> str | None:
    return " AND ".join(condition for condition in conditions if condition is not None) or None


def _recorded(spark: SparkSession | None, place: str, application: str, done: int) -> Recorded | None:
    """The checkpoint keeps the rules of its batches from the first on."""
    first = min(numbers(spark, f"{place}/{FOLDER}"), default=None)
    return None if first is None or first > done else Recorded(application, first, done)
