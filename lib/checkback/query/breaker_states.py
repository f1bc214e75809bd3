"""The circuit breaker of each endpoint of a producer group, as the answers tell (docs/checks.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.check.circuit_breaker import limits_of
from checkback.query.engines.question import Question
from checkback.query.no_answer import REFUSED
from checkback.storage.valid_texts import NOT_TRIED

if TYPE_CHECKING:
    from checkback.settings import Settings

#: CTE `tries`: the tries of each endpoint, those that show it healthy (``healthy``), and those that its breaker
#: prevented (``held``). `vain`: failures since it was last healthy, numbered. `broken`: what they tell of an endpoint.
#: Times are us.
_BREAKERS = f"""
WITH heard AS (
    SELECT producer_group, endpoint, unix_micros(answered_at) AS us,
        outcome IN ('COMMIT', 'ROLLBACK', 'UNKNOWN') AS answers, coalesce(error, '') AS error
    FROM {{check_answers}} WHERE outcome <> 'SKIPPED'
    UNION ALL
    SELECT producer_group, failed.endpoint, us, FALSE AS answers, coalesce(failed.error, '') AS error
    FROM (
        SELECT producer_group, unix_micros(answered_at) AS us, explode(failed_tries) AS failed FROM {{check_answers}})),
made AS (SELECT *, answers OR {REFUSED} AS healthy FROM heard WHERE endpoint IS NOT NULL AND us IS NOT NULL),
tries AS (
    SELECT *, NOT healthy AND startswith(error, '{NOT_TRIED}') AS held,
        max(CASE WHEN healthy THEN us END) OVER (PARTITION BY producer_group, endpoint) AS healthy_at,
        max(CASE WHEN answers THEN us END) OVER (PARTITION BY producer_group, endpoint) AS heard_at,
        max(CASE WHEN NOT healthy THEN us END) OVER (PARTITION BY producer_group, endpoint) AS vain_at
    FROM made),
vain AS (
    SELECT *, row_number() OVER (PARTITION BY producer_group, endpoint, held ORDER BY us, error) AS number
    FROM tries WHERE NOT healthy AND (healthy_at IS NULL OR us > healthy_at)),
broken AS (
    SELECT producer_group, endpoint, count(*) FILTER (WHERE NOT held) AS failures,
        max(us) FILTER (WHERE NOT held) AS failed_at, min(us) FILTER (WHERE held) AS held_at,
        min(us) FILTER (WHERE NOT held AND number = :failures) AS opened_at,
        max_by(error, (us, error)) FILTER (WHERE held) AS not_tried
    FROM vain GROUP BY producer_group, endpoint),
every AS (
    SELECT producer_group, endpoint, max(us) FILTER (WHERE answers) AS answered_at,
        max_by(error, (us, error)) FILTER (
            WHERE NOT answers AND NOT held AND (heard_at IS NULL OR us > heard_at)) AS last_error,
        count(*) FILTER (WHERE NOT answers AND NOT held AND (heard_at IS NULL OR us > heard_at)) AS unanswered,
        min(us) FILTER (WHERE healthy AND us > vain_at) AS closed_at
    FROM tries GROUP BY producer_group, endpoint),
known AS (
    SELECT e.producer_group, e.endpoint, e.answered_at, e.closed_at,
        coalesce(b.failures, CAST(0 AS BIGINT)) AS failures, e.last_error, e.unanswered, b.not_tried,
        coalesce(b.opened_at, b.held_at) AS opened_at,
        coalesce(b.failed_at, b.held_at) + CAST(:pause AS BIGINT) AS until
    FROM every AS e LEFT JOIN broken AS b
        ON b.producer_group IS NOT DISTINCT FROM e.producer_group AND b.endpoint = e.endpoint)
SELECT producer_group, endpoint,
    CASE WHEN opened_at IS NULL THEN 'closed' WHEN CAST(:now AS BIGINT) < until THEN 'open' ELSE 'half-open' END
        AS breaker,
    timestamp_micros(CASE
        WHEN opened_at IS NULL THEN closed_at WHEN CAST(:now AS BIGINT) < until THEN opened_at ELSE until END) AS since,
    failures, last_error, unanswered, not_tried, timestamp_micros(answered_at) AS last_answer_at
FROM known"""


def breakers_question(settings: Settings) -> Question:
    """The circuit breaker of each endpoint that was tried, now or as of a point in time.

    Columns: producer_group, endpoint; breaker: closed, open, or half-open (the next check is its probe); since
    TIMESTAMP: of an open one the failure that opened it, of a half-open one the end of check.breaker_pause, of a closed
    one when it was first healthy after its last failure (null = it never failed, or was not healthy since); failures
    BIGINT: in a row; last_error (of the last try without an answer, refusals included; null = none since its last
    answer), unanswered BIGINT (tries since then without an answer, refusals included), not_tried (why a check was held
    back last; null = none was, since it was healthy), last_answer_at. A refusal (404, wrong JSON) is no answer, but
    shows that it is healthy.

    The breakers themselves are in the memory of `reconcile`: these are derived from check_answers, with check.* of the
    settings. One that is open by Retry-After counts as half-open after check.breaker_pause, and one whose `reconcile`
    was started again as it was before.
    """
    limits = limits_of(settings)
    values = {"failures": limits.failures, "pause": round(limits.pause_s * 1e6)}
    return Question(_BREAKERS, "producer_group, endpoint", values)
