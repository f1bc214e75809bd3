"""Discarded messages: given up after their checks, or cancelled; what was said last, and as what they were resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.query.engines.question import Question
from checkback.query.newest_answers import NEWEST_ANSWERS

if TYPE_CHECKING:
    from datetime import datetime


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
