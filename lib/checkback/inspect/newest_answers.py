"""What was answered last to the checks of each half message, and since when a circuit breaker holds them back: SQL."""

from __future__ import annotations

from checkback.storage.row_texts import NOT_TRIED

_KEY = "queue_id, queue_offset, producer_group, transaction_id"
_PREVENTED = f"outcome = 'NO_ANSWER' AND error IS NULL AND startswith(said, '{NOT_TRIED}')"
_SINCE = "FILTER (WHERE prevented AND coalesce(unix_micros(answered_at) > heard_us, heard_us IS NULL))"

#: CTE `answers`: of each half message outcome, error, endpoint and answered_at of the newest outcome; of those that no
#: circuit breaker prevented, if there are any: then `asked`. By time: the number of a check that did not count is
#: reused. ``held_since``: the first check after it that a circuit breaker prevented; ``held_by``, ``held_why``: the
#: endpoint, and what the breaker said, of the last one.
NEWEST_ANSWERS = f"""
attempts AS (
    SELECT a.queue_id, a.queue_offset, a.producer_group, a.transaction_id, a.check_times, a.outcome, a.endpoint,
        a.answered_at, a.error AS said,
        CASE WHEN a.outcome = 'NO_ANSWER' THEN first_error(a.error, a.failed_tries) ELSE a.error END AS error
    FROM {{check_answers}} AS a),
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
        max(CASE WHEN turn = 1 THEN coalesce(error, said) END) AS error,
        max(CASE WHEN turn = 1 THEN endpoint END) AS endpoint,
        max(CASE WHEN turn = 1 THEN answered_at END) AS answered_at,
        bool_or(turn = 1 AND NOT prevented) AS asked,
        min(answered_at) {_SINCE} AS held_since,
        nullif(max_by(coalesce(endpoint, ''), (answered_at, coalesce(endpoint, ''))) {_SINCE}, '') AS held_by,
        substring(max_by(said, (answered_at, said)) {_SINCE}, {len(NOT_TRIED) + 1}) AS held_why
    FROM ranked GROUP BY {_KEY})"""
