"""Writing the topic tables: one that cannot be written does not stop the others (`unpublished`)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql import functions as F

from checkback.errors import CheckbackError
from checkback.reconcile.publish import published_notes, unpublished
from checkback.reconcile.publish.unpublished import LATER, Unpublished, UnpublishedRows, UnpublishedTopics, unfit
from checkback.storage.checkpoints.checkpoint import plan_versions
from checkback.storage.checkpoints.checkpoint_fit import newer
from checkback.storage.failure_scope import as_reason, own_failure
from checkback.storage.lru_cache import LruCache
from checkback.storage.schemas import TOPIC_PREFIX
from checkback.storage.spark_schemas import TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from checkback.reconcile.publish.half_lookup import HalfLookup
    from checkback.storage.tables import Tables

_T = TypeVar("_T")
#: Cached names of existing topic tables. More than logs are kept open (`Tables.log`): a table that was recreated is
#: detected by its open log, and must still be cached then.
_MADE = 4096
#: Maximum number of topic tables created by one batch, at some 60 ms each. Further topics wait.
NEW_TABLES = 1000
#: identifies a row of `half` in topic tables and in `unpublished`
IDENTITY = ("half_queue_id", "half_queue_offset", "half_store_timestamp", "transaction_id", "producer_group")


class TopicTables:
    """The state of the topic tables, and the unpublished messages. Not thread-safe; uses threads internally."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._made: LruCache[str] = LruCache(_MADE)
        self._waiting: Unpublished | None = None
        self._noted: dict[published_notes.Key, int] = {}
        #: published late by this batch, to be noted when it is concluded
        self._late_now: dict[published_notes.Key, int] = {}

    @property
    def next_try(self) -> int | None:
        """Time of the next retry of a topic table (ms); None = no message waits."""
        return None if self._waiting is None else self._waiting.next_try

    @property
    def rows(self) -> int:
        """The number of committed messages that wait for their topic table."""
        return 0 if self._waiting is None else self._waiting.rows

    @property
    def in_doubt(self) -> set[str]:
        """Names of the tables that may have rows of this batch, see `Unpublished.in_doubt`."""
        return set() if self._waiting is None else {TOPIC_PREFIX + topic for topic in self._waiting.in_doubt}

    def concluded(self, spark: SparkSession) -> None:
        """The batch has its row in `batches`. Before that nothing is noted: its replay must know what waited for it."""
        published_notes.note(spark, self._tables, self._late_now)
        self._late_now = {}
        if self._waiting is not None:
            self._waiting.in_doubt.clear()

    def due(self, spark: SparkSession, now: int) -> list[str]:
        """Topics due for a retry at ``now`` (ms). Raises StorageError."""
        return self._known(spark).due(now)

    def unpublished_topics(self, spark: SparkSession, application: str) -> UnpublishedTopics:
        """The UnpublishedTopics for the tasks of a batch."""
        return UnpublishedTopics(application, self._known(spark).reasons())

    def publish_unpublished(
        self, spark: SparkSession, application: str, batch_id: int, batch_time: int, now: int
    ) -> list[str]:
        """Retry the topic tables due at ``now``: publish their messages as rows of this batch of the application.

        Returns the names of the tables that took them. Raises FencedError, StateError, StorageError, and errors that
        are not those of a single table.
        """
        waiting, topics = self._known(spark), self.due(spark, now)
        done: dict[published_notes.Key, int] = {}

        def publish(topic: str) -> str | None:
            name = TOPIC_PREFIX + topic
            return self.attempt(spark, name, partial(self._late, spark, topic, application, batch_id, batch_time, done))

        failures = side_by_side(publish, topics)
        self._noted |= done
        self._late_now |= done
        for topic, failure in zip(topics, failures, strict=True):
            if failure is None:
                waiting.published(topic)
            else:
                waiting.failed(topic, now, failure)
        still = waiting.reasons()
        return [TOPIC_PREFIX + topic for topic in topics if topic not in still]

    def put_off(self, spark: SparkSession, names: Iterable[str]) -> dict[str, str]:
        """The missing tables beyond NEW_TABLES, which this batch does not create, with the reason."""
        unknown = sorted(name for name in names if name.startswith(TOPIC_PREFIX) and name not in self._made)
        if len(unknown) <= NEW_TABLES:
            return {}

        def is_new(name: str) -> bool:
            try:
                return not self._tables.exists(spark, name)
            except Exception:  # noqa: BLE001 - it exists, and is damaged: left to `attempt`
                return False

        new = [name for name, found in zip(unknown, side_by_side(is_new, unknown), strict=True) if found]
        return dict.fromkeys(new[NEW_TABLES:], LATER)

    def attempt(self, spark: SparkSession, name: str, work: Callable[[], object]) -> str | None:
        """Create a topic table if it is missing, and call ``work``. Returns the reason if the table cannot take it.

        A table that was recreated or altered since it was opened is reopened, once.
        """
        known = name in self._made
        try:
            if not known:
                self._tables.create(spark, name)
            self._made.get(name, lambda: name)
            work()
        except BaseException as error:  # noqa: BLE001 - delta-rs may panic, which is no Exception
            self._tables.forget(name)
            self._made.forget(name)
            found = own_failure(error)
            return self.attempt(spark, name, work) if known else self._strange(name) or found
        return None

    def _strange(self, name: str) -> str:
        """Why the table is none of a topic; empty if it is one, or cannot be read."""
        with suppress(CheckbackError):
            said = self._tables.log(name).schema_mismatch() if self._tables.by_files else ""
            return as_reason(f"{name} is another table, {said}; move it away") if said else ""
        return ""

    def leave_unpublished(
        self,
        spark: SparkSession,
        wanted: HalfLookup,
        application: str,
        rows: Mapping[str, int],
        failed: Mapping[str, str],
    ) -> None:
        """Register the rows that a batch put into `unpublished`, by topic; ``failed``: newly failed topics' reasons."""
        waiting, now = self._known(spark), round(time.time() * 1000)
        reasons = {**waiting.reasons(), **failed}
        waiting.in_doubt.update(topic for topic, why in failed.items() if why != LATER)
        for topic in rows.keys() & reasons.keys():
            found = UnpublishedRows(topic, application, wanted.batch_id, rows[topic], wanted.batch_time, reasons[topic])
            waiting.leave_unpublished(found, now)

    def _known(self, spark: SparkSession) -> Unpublished:
        """The waiting topics: read once, as no other process writes `unpublished`."""
        if self._waiting is None:
            found, self._noted = unpublished_rows(spark, self._tables)
            self._waiting = Unpublished(found)
        return self._waiting

    def _late(
        self,
        spark: SparkSession,
        topic: str,
        application: str,
        batch_id: int,
        batch_time: int,
        done: dict[published_notes.Key, int],
    ) -> None:
        """Publish a topic's waiting messages: one commit per application, with the version of its last batch.

        Adds them to ``done``, which is stored when the batch is concluded; after a crash before that, the table's own
        transaction version tells.
        """
        name = TOPIC_PREFIX + topic
        for waiting in self._known(spark).of(topic):
            app, key = f"{waiting.application}/{name}", (topic, waiting.application)
            last = self._tables.last_version(spark, name, app)
            if last is not None and last > batch_id and waiting.application == application:
                raise newer(self._tables.location(name), batch_id)
            if last is None or last < waiting.last:
                after = max((at for at in (last, self._noted.get(key)) if at is not None), default=None)
                rows = outstanding(spark, self._tables, topic, waiting.application, after)
                plan = plan_versions(app, batch_id, batch_time)
                self._tables.append(as_topic_rows(rows, batch_id, batch_time), name, app, waiting.last, plan)
            done[key] = waiting.last


def unpublished_rows(
    spark: SparkSession, tables: Tables
) -> tuple[list[UnpublishedRows], dict[published_notes.Key, int]]:
    """The rows of `unpublished` not noted as published, of topics that can have a table; and the notes."""
    if not tables.has_rows(spark, unpublished.TABLE):
        return [], {}
    rows = tables.read(spark, unpublished.TABLE)
    notes = published_notes.read_notes(spark, tables, rows)
    found = (
        published_notes.without_noted(rows, notes)
        .groupBy("real_topic", "application")
        .agg(
            F.max("batch_id").alias("last"),
            F.count("*").alias("rows"),
            F.min(F.unix_millis("unpublished_at")).alias("since"),
            F.max_by("reason", "batch_id").alias("reason"),
        )
        .collect()
    )
    fit = [row for row in found if unfit(row["real_topic"]) is None]
    waiting = [
        UnpublishedRows(
            row["real_topic"], row["application"], row["last"], row["rows"], row["since"], row["reason"] or ""
        )
        for row in fit
        if None not in (row["application"], row["last"], row["since"])  # not ours
    ]
    return waiting, notes


def outstanding(
    spark: SparkSession, tables: Tables, topic: str, application: str, after: int | None = None
) -> DataFrame:
    """The rows of `unpublished` of a topic and an application that the topic table lacks.

    ``after``: only rows of later batches.
    """
    mine = (F.col("real_topic") == topic) & (F.col("application") == application)
    if after is not None:
        mine = mine & (F.col("batch_id") > after)
    rows = tables.read(spark, unpublished.TABLE).where(mine).dropDuplicates(list(IDENTITY))
    return without(rows, tables.read(spark, TOPIC_PREFIX + topic))


def without(rows: DataFrame, published: DataFrame) -> DataFrame:
    """The rows whose IDENTITY is not among ``published``."""
    there = published.select(*(F.col(name).alias(f"_{name}") for name in IDENTITY))
    same = [F.col(name).eqNullSafe(F.col(f"_{name}")) for name in IDENTITY]
    return rows.join(there, on=same, how="left_anti")


def as_topic_rows(rows: DataFrame, batch_id: int, batch_time: int) -> DataFrame:
    """Rows of `unpublished` as rows of a topic table, published late by this batch. ``batch_time``: ms."""
    time = F.timestamp_millis(F.lit(batch_time))
    late = rows.withColumns({"published_at": time, "batch_id": F.lit(batch_id).cast("bigint")})
    return late.select(*TOPIC.names)


def side_by_side(work: Callable[[str], _T], names: Iterable[str]) -> list[_T]:
    """The results of ``work`` for each name, in order; run in a thread pool."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(work, names))
