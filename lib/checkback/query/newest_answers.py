"""What was answered last to the checks of each half message, and whether a circuit breaker holds them back: SQL."""

from __future__ import annotations

from checkback.query.no_answer import REFUSED
from checkback.storage.valid_texts import BREAKER_OPEN, NOT_TRIED, OVERTAKEN

_KEY = "queue_id, queue_offset, producer_group, transaction_id"
_PREVENTED = f"outcome = 'NO_ANSWER' AND error IS NULL AND startswith(said, '{NOT_TRIED}')"

#: CTE `answers`: of each half message outcome, error, endpoint and answered_at of the newest outcome; of those that no
#: circuit breaker prevented, if there are any: then `asked`; else error is BREAKER_OPEN, without the number of tries.
#: A request that the outcome of the same check has overtaken has no outcome of its own. By time: the number of a check
#: that did not count is reused. ``held``: a breaker prevented a check after it.
NEWEST_ANSWERS = f"""
attempts AS (
    SELECT a.queue_id, a.queue_offset, a.producer_group, a.transaction_id, a.check_times, a.outcome, a.endpoint,
        a.answered_at, a.error AS said,
        CASE WHEN a.outcome = 'NO_ANSWER' THEN first_error(a.error, a.failed_tries) ELSE a.error END AS error
    FROM {{check_answers}} AS a WHERE a.error IS DISTINCT FROM '{OVERTAKEN}'),
tried AS (SELECT *, coalesce({_PREVENTED}, FALSE) AS prevented FROM attempts),
ranked AS (
    SELECT *, row_number() OVER (
            PARTITION BY {_KEY}
            ORDER BY prevented, answered_at DESC NULLS LAST, check_times DESC NULLS LAST, outcome, said, error,
                endpoint) AS turn,
        max(CASE WHEN NOT prevented THEN unix_micros(answered_at) END) OVER (PARTITION BY {_KEY}) AS heard_us
    FROM tried),
answers AS (
    SELECT {_KEY}, max(CASE WHEN turn = 1 THEN outcome END) AS outcome,
        max(CASE WHEN turn > 1 THEN NULL WHEN prevented THEN '{BREAKER_OPEN}' ELSE coalesce(error, said) END) AS error,
        max(CASE WHEN turn = 1 THEN endpoint END) AS endpoint,
        max(CASE WHEN turn = 1 THEN answered_at END) AS answered_at,
        bool_or(turn = 1 AND NOT prevented) AS asked,
        bool_or(prevented AND coalesce(unix_micros(answered_at) > heard_us, heard_us IS NULL)) AS held
    FROM ranked GROUP BY {_KEY})"""

#: CTE `broken`: of each group, since an endpoint of it was healthy: ``open_since``: the first check that a circuit
#: breaker prevented; null = none; ``silence``: the error of the last real try without an answer. Of the group, not of a
#: half message: one cause is one text. Two scans of few columns: DuckDB would keep `tried` for a second use.
BROKEN_GROUPS = f"""
group_tries AS (
    SELECT producer_group, max(us) FILTER (WHERE outcome <> 'NO_ANSWER' OR {REFUSED}) AS healthy_us,
        max_by(error, (us, error)) FILTER (WHERE outcome = 'NO_ANSWER' AND error IS NOT NULL) AS silence
    FROM (
        SELECT a.producer_group, unix_micros(a.answered_at) AS us, a.outcome,
            first_error(a.error, a.failed_tries) AS error
        FROM {{check_answers}} AS a WHERE a.outcome <> 'SKIPPED' AND a.answered_at IS NOT NULL)
    GROUP BY producer_group),
broken AS (
    SELECT t.producer_group, min(p.answered_at) AS open_since, max(t.silence) AS silence
    FROM group_tries AS t JOIN (
        SELECT a.producer_group, a.answered_at
        FROM {{check_answers}} AS a
        WHERE a.outcome = 'NO_ANSWER' AND startswith(a.error, '{NOT_TRIED}')
            AND first_error(a.error, a.failed_tries) IS NULL) AS p
    ON p.producer_group = t.producer_group AND (t.healthy_us IS NULL OR unix_micros(p.answered_at) > t.healthy_us)
    GROUP BY t.producer_group)"""
