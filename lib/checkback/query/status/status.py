"""Data of `checkback status`: facts about reconcile and its checkpoint, and from the tables."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from checkback.query.engines.question import Question
from checkback.query.status.groups import group_rows
from checkback.query.status.progress import Progress, progress
from checkback.query.time_series import outcomes_question
from checkback.query.undelivered_messages import SCHEDULED, count_unpublished
from checkback.storage.files.object_store import concurrently
from checkback.storage.lock import lock_is_held
from checkback.storage.log.commit_reader import Backlog, CommitReader
from checkback.storage.tables import Tables
from checkback.storage.timestamps import ms_of, us_of
from checkback.storage.valid_texts import CONSUMER_GROUP, CONSUMER_GROUP_END

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from checkback.query.undelivered_messages import UnpublishedTopic
    from checkback.query.versions.view import View
    from checkback.settings import Settings
    from checkback.storage.checkpoints.checkpoint import Batch

#: sources of the query, in order
SOURCES = ("half", "op")
RECENT = timedelta(minutes=5)
#: how long a dead letter is new
NEW = timedelta(days=1)
#: transactions that are named, of those that are counted
_NAMED = 100
#: the first time of which there is a day before
_FIRST = datetime.min.replace(tzinfo=timezone.utc) + 2 * NEW
#: the tables that status reads, besides those of topics
_TABLES = (
    *("half", "op", "rejected", "decisions", "check_requests", "check_answers", "deliveries", "unpublished"),
    *("dead_letters", "operations"),
)


@dataclass(frozen=True)
class ReconcileFacts:
    """What is known without Spark, if tables and checkpoint are local. Times are ms.

    ``owner``: the running reconcile; empty = none, None = unknown. ``lag``: by source what no completed batch has read.
    """

    owner: str | None = None
    progress: Progress | None = None
    lag: Mapping[str, Backlog] = field(default_factory=dict)


@dataclass(frozen=True)
class CommittedNotPublished:
    """Transactions that committed in the last NEW, after they were decided otherwise: nothing is published.

    ``transactions``: the first of them: producer_group, transaction_id, queue_id, queue_offset, state (of the
    decision), committed_at (ms).
    """

    number: int = 0
    transactions: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class TableFacts:
    """Facts from the tables. ``decisions``: (state, in the last minute, in the last RECENT).

    ``scheduled``: messages that wait for their deliver_at, and the next of these times (ms).
    ``groups``: rows of `groups.group_rows`. ``checks``: (group, endpoint, outcome, number) in the last RECENT.
    ``unpublished``: by topic, the longest first. ``dead_letters``: by consumer group, those given up in
    the last NEW that nobody has had consumed again.
    """

    groups: tuple[Mapping[str, Any], ...] = ()
    decisions: tuple[tuple[str, int, int], ...] = ()
    discarded_today: int = 0
    scheduled: tuple[int, int | None] = (0, None)
    checks: tuple[tuple[str, str | None, str, int], ...] = ()
    unpublished: tuple[UnpublishedTopic, ...] = ()
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    lost: CommittedNotPublished = CommittedNotPublished()


@dataclass(frozen=True)
class ConsumerFacts:
    """A consumer group: its members that live, messages not consumed, the age of the oldest (s), retries, dead.

    ``damaged``: why its table, or a topic's, cannot be read: what is not known then is None. ``silent``: members that
    are not heard of any more; ``heard_s``: since a member was heard of. ``unsubscribed``: topics that no member
    subscribes to, though some live. ``held_queues``: queues that a failing message blocks, in order; ``held_s``: the
    longest of them. ``missing``: topics that have no table yet.
    """

    group: str
    members: int | None
    lag_messages: int | None
    lag_s: float | None
    retries: int | None
    dead_letters: int | None
    damaged: str | None = None
    silent: int | None = 0
    heard_s: float | None = 0.0
    unsubscribed: tuple[str, ...] = ()
    held_queues: int | None = 0
    held_s: float | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Status:
    """The status at ``now`` (ms). ``facts`` None = not read yet; ``consumers`` None = only Spark can read them.

    ``past``: as of a time, of which only ``facts`` are known.
    """

    now: int
    timeout: timedelta
    max_age: timedelta
    reconcile: ReconcileFacts
    facts: TableFacts | None = None
    consumers: tuple[ConsumerFacts, ...] | None = None
    past: bool = False


def read_status(settings: Settings, now: datetime, view: View | None = None) -> Status:
    """The status, with a ``view`` also what the tables tell: of one as of a time that alone.

    Raises SettingsError, StorageError.
    """
    tables, transaction = Tables.of(settings.storage), settings.transaction
    if view is not None and view.at is not None:
        at, place, session = ms_of(view.at), tables.checkpoint("reconcile"), view.engine.session
        then = _facts(view, settings, view.at, lambda: progress(session, place, at))
        return Status(at, transaction.timeout, transaction.max_age, ReconcileFacts(), then, past=True)
    with ThreadPoolExecutor(1) as pool:  # beside the tables: each takes requests that follow one another
        reading = pool.submit(_reconcile, tables, None if view is None else view.engine.session)
        facts = None if view is None else _facts(view, settings, now, lambda: reading.result().progress)
        found = reading.result()
    return Status(round(now.timestamp() * 1000), transaction.timeout, transaction.max_age, found, facts)


def _reconcile(tables: Tables, spark: SparkSession | None) -> ReconcileFacts:
    found = progress(spark, tables.checkpoint("reconcile"))
    if found is None:
        return ReconcileFacts(lock_is_held(tables))
    done = found.done
    lag = concurrently(tables.root, lambda name: _unread(tables, name, done, spark), SOURCES)
    unread = {name: one for name, one in zip(SOURCES, lag, strict=True) if one is not None}
    return ReconcileFacts(lock_is_held(tables), found, unread)


def _unread(tables: Tables, name: str, done: Batch | None, spark: SparkSession | None) -> Backlog | None:
    """What the last completed batch has not read of a source. From the table's log, without reading rows."""
    source = SOURCES.index(name)
    positions = () if done is None else done.positions
    position = positions[source] if source < len(positions) else None
    version, index = (0, -1) if position is None else (position.unread, -1 if position.starting else position.index)
    if tables.by_files:
        # From the version before on: it is there, also when nothing is unread.
        commits = CommitReader.of(tables.location(name), max(0, version - 1))
        return None if commits is None else commits.after(version, index)
    if spark is None or not tables.exists(spark, name):
        return None
    place = tables.location(name) if tables.catalog else f"delta.`{tables.location(name)}`"
    found = (
        spark.sql(f"DESCRIBE HISTORY {place}")
        .where(f"version >= {version} AND operation IN ('WRITE', 'STREAMING UPDATE')")
        .selectExpr(
            "coalesce(sum(cast(operationMetrics['numOutputRows'] AS bigint)), 0) AS rows",
            "unix_millis(min(timestamp)) AS since",
        )
        .first()
    )
    return None if found is None else Backlog(found["rows"], found["since"] if found["rows"] else None)


_DECIDED = """
SELECT state, count(*) FILTER (WHERE decided_at >= timestamp_micros(:minute)) AS minute,
    count(*) FILTER (WHERE decided_at >= timestamp_micros(:recent)) AS recent,
    count(*) FILTER (WHERE decided_at >= timestamp_micros(:midnight)) AS today
FROM {decisions} WHERE decided_at >= timestamp_micros(least(:recent, :midnight)) GROUP BY state
"""


def _facts(view: View, settings: Settings, now: datetime, reconcile: Callable[[], Progress | None]) -> TableFacts:
    """What the tables tell. ``reconcile``: gives its progress."""
    view.look(*_TABLES)
    now = max(now.astimezone(timezone.utc), _FIRST)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    since = {"minute": now - timedelta(minutes=1), "recent": now - RECENT, "midnight": midnight}
    decided = _rows(view, Question(_DECIDED, "state", {name: us_of(at) for name, at in since.items()}))
    outcomes = outcomes_question(now - RECENT)
    sql = f"""
        SELECT producer_group, endpoint, outcome, CAST(sum(checks) AS BIGINT) AS checks
        FROM ({outcomes.sql}) GROUP BY producer_group, endpoint, outcome"""
    checks = _rows(view, Question(sql, "producer_group, endpoint, outcome", outcomes.values, outcomes.since))
    return TableFacts(
        groups=tuple(_groups(view, settings, reconcile)),
        decisions=tuple((row["state"], row["minute"], row["recent"]) for row in decided),
        discarded_today=sum(row["today"] for row in decided if row["state"] == "DISCARD"),
        scheduled=_scheduled(view),
        checks=tuple((row["producer_group"], row["endpoint"], row["outcome"], row["checks"]) for row in checks),
        unpublished=tuple(count_unpublished(view)),
        dead_letters={row["consumer_group"]: row["number"] for row in _rows(view, _new_dead_letters(now))},
        lost=_lost(view, now),
    )


#: An op of the operator is no local transaction's. The COMMIT of a message that is cancelled later came before.
_LOST = """
SELECT *, count(*) OVER () AS number FROM (
    SELECT d.producer_group, d.transaction_id, d.queue_id, d.queue_offset, d.state,
        min(unix_millis(o.store_timestamp)) AS committed_at
    FROM {op} AS o JOIN {decisions} AS d
        ON d.queue_id = o.queue_id AND d.queue_offset = o.queue_offset AND d.producer_group = o.producer_group
        AND (o.transaction_id IS NULL OR o.transaction_id = d.transaction_id)
    WHERE o.state = 'COMMIT' AND o.source IN ('producer', 'check') AND o.store_timestamp >= timestamp_micros(:since)
        AND (d.state IN ('ROLLBACK', 'DISCARD') OR (d.state = 'CANCEL' AND o.store_timestamp > d.decided_at))
        AND NOT EXISTS (
            SELECT 1 FROM {operations} AS p
            WHERE p.action = 'RESUME' AND p.queue_id = d.queue_id AND p.queue_offset = d.queue_offset)
    GROUP BY d.producer_group, d.transaction_id, d.queue_id, d.queue_offset, d.state)
"""


def lost_question(now: datetime) -> Question:
    """The question of `CommittedNotPublished`; each row has their number."""
    order = "committed_at, queue_id, queue_offset, transaction_id, state"
    return Question(_LOST, order, {"since": us_of(now - NEW)}).page(_NAMED)


def _lost(view: View, now: datetime) -> CommittedNotPublished:
    rows = _rows(view, lost_question(now))
    numbers = [row.pop("number") for row in rows]
    return CommittedNotPublished(max(numbers, default=0), tuple(rows))


_DEAD_LETTERS = f"""
SELECT consumer_group, count(*) AS number FROM (
    SELECT DISTINCT consumer_group, topic, half_queue_id, half_queue_offset, batch_id FROM {{dead_letters}} AS d
    WHERE dead_at >= timestamp_micros(:since) AND NOT EXISTS (
        SELECT 1 FROM {{operations}} AS o
        WHERE o.action = 'RESUME_DEAD_LETTER' AND o.queue_id = d.half_queue_id AND o.queue_offset = d.half_queue_offset
            AND o.at >= d.dead_at
            AND startswith(o.reason, '{CONSUMER_GROUP}' || d.consumer_group || '{CONSUMER_GROUP_END}')))
WHERE consumer_group IS NOT NULL GROUP BY consumer_group
"""


def _new_dead_letters(now: datetime) -> Question:
    return Question(_DEAD_LETTERS, "consumer_group", {"since": us_of(now - NEW)})


def _groups(view: View, settings: Settings, reconcile: Callable[[], Progress | None]) -> list[Mapping[str, Any]]:
    """The rows of `group_rows`, the oldest first."""
    found: list[Mapping[str, Any]] = group_rows(view, settings, known=reconcile).to_pylist()
    return sorted(found, key=lambda row: (-(row["oldest_age_s"] or float("-inf")), row["producer_group"] or ""))


def _scheduled(view: View) -> tuple[int, int | None]:
    sql = f"SELECT count(*) AS messages, min(unix_millis(deliver_at)) AS due FROM ({SCHEDULED.sql})"
    (found,) = _rows(view, Question(sql, "messages"))
    return found["messages"], found["due"]


def _rows(view: View, question: Question) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = view.engine.arrow(view.ask(question)).to_pylist()
    return found
