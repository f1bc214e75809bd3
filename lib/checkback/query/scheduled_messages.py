"""Scheduled messages: committed, and published later."""

from __future__ import annotations

from checkback.query.engines.question import Question

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
