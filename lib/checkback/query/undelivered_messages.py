"""Messages that are decided and not in their topic's table: unpublished, scheduled, discarded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from checkback.errors import SettingsError
from checkback.messages.durations import span
from checkback.query.check_results import NEWEST_ANSWERS
from checkback.query.engines.question import Question
from checkback.query.versions.published_notes import NAME, WRITERS, notes_about, with_noted
from checkback.reconcile.publish.unpublished import LONGEST_PAUSE, TABLE, unfit
from checkback.storage.failure_scope import own_failure
from checkback.storage.horizon import horizon
from checkback.storage.schemas import TOPIC_PREFIX

if TYPE_CHECKING:
    from datetime import datetime

    from checkback.query.engines.engine import Rows, Value
    from checkback.query.versions.view import View

#: columns that identify a message in `unpublished` and in its topic's table (`topic_tables.IDENTITY`)
_IDENTITY = ("half_queue_id", "half_queue_offset", "half_store_timestamp", "transaction_id", "producer_group")


class UnpublishedTopic(NamedTuple):
    """Unpublished messages of a topic (None = they have none): how many, since when (ms), and the newest's reason.

    None = another writer's rows do not tell.
    """

    topic: str | None
    messages: int
    since: int | None
    reason: str | None


def retry_of(topic: str | None) -> str:
    """When the topic's table is tried next, in words; empty = never: the topic can have none."""
    longest = LONGEST_PAUSE // 1000
    return "" if unfit(topic) else f"tried again within {span(longest)}, at once when reconcile starts"


def count_unpublished(view: View) -> list[UnpublishedTopic]:
    """Unpublished messages by topic, the oldest first."""
    if not view.version(TABLE):  # never written
        return []
    question, tables = unpublished_question(view)
    sql = f"""
        SELECT real_topic, count(*) AS messages, min(unix_millis(unpublished_at)) AS since,
            max_by(reason, (unpublished_at, reason)) FILTER (
                WHERE unpublished_at IS NOT NULL AND reason IS NOT NULL) AS reason
        FROM ({question.sql}) GROUP BY real_topic"""
    rows = view.engine.arrow(view.ask(Question(sql, "since, real_topic", question.values), tables))
    return [
        UnpublishedTopic(row["real_topic"], row["messages"], row["since"], row["reason"]) for row in rows.to_pylist()
    ]


def unpublished_question(view: View) -> tuple[Question, dict[str, Rows]]:
    """The committed messages that their topic's table does not have yet, the oldest first; and the tables it names.

    Columns: queue_id INT, queue_offset BIGINT, transaction_id, producer_group, real_topic, reason, unpublished_at
    TIMESTAMP (time of the batch that decided it), batch_id. Reads only identity columns of the tables of the topics
    concerned. A topic table that cannot be read counts as empty. Without a point in time, messages also count as
    published if their table has been moved away since.
    """
    writers = view.engine.arrow(view.ask(WRITERS)).to_pylist()
    tables: dict[str, Rows] = {NAME: view.engine.keep(NAME, notes_about(view.engine, writers))}
    conditions = ["turn = 1", *(["NOT noted"] if view.at is None else [])]
    values: dict[str, Value] = {}
    topics_ = sorted({row["real_topic"] for row in writers if row["real_topic"] is not None})
    view.look(*(TOPIC_PREFIX + topic for topic in topics_))
    for topic in topics_:
        there = _published(view, TOPIC_PREFIX + topic)
        if there is not None:
            place = f"topic{len(values)}"
            tables[place], values[place] = there, topic
            same = " AND ".join(f"t.{name} IS NOT DISTINCT FROM u.{name}" for name in _IDENTITY)
            conditions.append(f"NOT EXISTS (SELECT 1 FROM {{{place}}} AS t WHERE u.real_topic = :{place} AND {same})")
            if view.at is not None and horizon(view.engine.session, view.tables, TOPIC_PREFIX + topic) is not None:
                # The notes are those of now. What is noted and not there now was published before the horizon.
                tables[f"all_{place}"] = view.engine.read(TOPIC_PREFIX + topic, view.version(TOPIC_PREFIX + topic))
                left = f"EXISTS (SELECT 1 FROM {{all_{place}}} AS t WHERE {same})"
                conditions.append(f"(NOT noted OR u.real_topic IS DISTINCT FROM :{place} OR {left})")
    sql = f"""
        SELECT half_queue_id AS queue_id, half_queue_offset AS queue_offset, transaction_id, producer_group, real_topic,
            reason, unpublished_at, batch_id
        FROM (
            SELECT *, row_number() OVER (
                PARTITION BY {", ".join(_IDENTITY)}, real_topic ORDER BY unpublished_at, batch_id, reason) AS turn
            FROM {with_noted(f"{{{TABLE}}}")} AS rows) AS u
        WHERE {" AND ".join(conditions)}"""
    return Question(sql, "unpublished_at, queue_id, queue_offset", values), tables


def _published(view: View, name: str) -> Rows | None:
    """The topic's rows; None if there is no table, or it cannot be read."""
    try:
        if view.version(name) is None:
            return None
        rows = view.read(name)
        one = Question(f"SELECT {_IDENTITY[0]} FROM {{rows}}", _IDENTITY[0]).page(1)
        view.engine.arrow(view.ask(one, {"rows": rows}))  # a damaged table is detected only here
    except SettingsError:  # as of a time before its horizon
        raise
    except Exception as error:  # noqa: BLE001 - re-raised unless it is the table's own failure
        own_failure(error)
        return None
    return rows


#: With its names: the offset of what was delivered may have been assigned again, after `half` had been restored.
_SCHEDULED = """
SELECT queue_id, queue_offset, transaction_id, producer_group, real_topic, decided_at, source, deliver_at,
    (CAST(unix_micros(deliver_at) AS DOUBLE) - CAST(:now AS DOUBLE)) / 1e6 AS due_in_s, timestamp_micros(:now) AS as_of
FROM {decisions} AS d
WHERE state = 'COMMIT' AND deliver_at IS NOT NULL
    AND NOT EXISTS (
        SELECT 1 FROM {decisions} AS c
        WHERE c.state = 'CANCEL' AND c.queue_id = d.queue_id AND c.queue_offset = d.queue_offset
            AND c.transaction_id IS NOT DISTINCT FROM d.transaction_id
            AND c.producer_group IS NOT DISTINCT FROM d.producer_group)
    AND NOT EXISTS (
        SELECT 1 FROM {deliveries} AS e WHERE e.queue_id = d.queue_id AND e.queue_offset = d.queue_offset
            AND e.transaction_id IS NOT DISTINCT FROM d.transaction_id
            AND e.producer_group IS NOT DISTINCT FROM d.producer_group)
"""
#: The scheduled messages, the next to be delivered first. Columns: queue_id INT, queue_offset BIGINT, transaction_id,
#: producer_group, real_topic, decided_at (of the COMMIT), source (whose COMMIT), deliver_at, due_in_s DOUBLE (negative:
#: overdue by so much), as_of. Reads decisions twice and deliveries once.
SCHEDULED = Question(_SCHEDULED, "deliver_at, queue_id, queue_offset")
SCHEDULED_COUNTS = Question(
    f"""
SELECT real_topic, count(*) AS messages, count(*) FILTER (WHERE due_in_s < -60) AS overdue, min(deliver_at) AS next_at
FROM ({_SCHEDULED}) AS scheduled GROUP BY real_topic""",
    "next_at, real_topic",
)


_DISCARDED = """
WITH ANSWERS,
again AS (
    SELECT queue_id, queue_offset, transaction_id,
        max_by(CAST(new_queue_id AS STRING) || '/' || CAST(new_queue_offset AS STRING), (o.at, new_queue_offset))
            AS place
    FROM {operations} AS o WHERE action = 'RESUME' AND o.at IS NOT NULL AND new_queue_id IS NOT NULL
        AND new_queue_offset IS NOT NULL
    GROUP BY queue_id, queue_offset, transaction_id)
SELECT d.queue_id, d.queue_offset, d.transaction_id, d.producer_group, d.real_topic, d.born_timestamp, d.reason,
    d.check_times, d.discarded_at, s.outcome AS last_outcome, s.error AS last_error, r.place AS resumed_as
FROM {discarded} AS d
LEFT JOIN answers AS s ON s.queue_id = d.queue_id AND s.queue_offset = d.queue_offset
    AND s.producer_group = d.producer_group AND s.transaction_id = d.transaction_id
LEFT JOIN again AS r ON r.queue_id = d.queue_id AND r.queue_offset = d.queue_offset
    AND r.transaction_id = d.transaction_id
WHERE :since IS NULL OR unix_micros(d.discarded_at) >= CAST(:since AS BIGINT)
""".replace("ANSWERS", NEWEST_ANSWERS.strip())


def discard_counts_question() -> Question:
    """How many were discarded: producer_group, real_topic, reason, messages BIGINT, first_ and last_discarded_at."""
    sql = """
        SELECT producer_group, real_topic, reason, count(*) AS messages, min(discarded_at) AS first_discarded_at,
            max(discarded_at) AS last_discarded_at
        FROM {discarded} GROUP BY producer_group, real_topic, reason"""
    return Question(sql, "messages DESC, producer_group, real_topic, reason")


def discarded_question(since: datetime | str | None = None) -> Question:
    """The discarded messages, the last first, now or as of a point in time; only those discarded ``since`` then.

    Columns: queue_id INT, queue_offset BIGINT, transaction_id, producer_group, real_topic, born_timestamp, reason
    (CHECK_MAX, EXPIRED, CANCELLED), check_times INT, discarded_at, last_outcome and last_error (of the newest outcome
    of a check, as in `pending_question`; null = none), resumed_as (queue_id/queue_offset of the half message that an
    operator has made of it).

    Reads discarded, operations and check_answers once, without bodies.
    """
    return Question(_DISCARDED, "discarded_at DESC, queue_id, queue_offset", {"since": None}, since=since)


_RESUMES = """
SELECT queue_id, queue_offset, transaction_id, producer_group, new_queue_id, new_queue_offset, o.at AS resumed_at
FROM {operations} AS o
WHERE action = 'RESUME' AND new_queue_id IS NOT NULL AND new_queue_offset IS NOT NULL"""


def resumes_question(transaction_id: str, group: str | None = None) -> Question:
    """The resumes of a transaction id, the first first.

    Columns: queue_id, queue_offset, transaction_id and producer_group of what was resumed; new_queue_id and
    new_queue_offset of the half message made of it; resumed_at.
    """
    question = Question(_RESUMES, "resumed_at, new_queue_id, new_queue_offset, queue_id, queue_offset")
    return question.where("transaction_id", transaction_id).where("producer_group", group)
