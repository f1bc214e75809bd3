"""Outages of producer groups: SQL over the outcomes of their checks.

An outage is a period in which all checks of a group failed with the same outcome: NO_ANSWER, or UNKNOWN. The next other
outcome ends it. A single failed check is no outage. Skipped checks were not sent and are ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.query.engines.question import Question
from checkback.storage.timestamps import us_of

if TYPE_CHECKING:
    from datetime import datetime

    from checkback.query.engines.engine import Value

_BY_TIME = """PARTITION BY producer_group
        ORDER BY answered_at, queue_id NULLS LAST, queue_offset NULLS LAST, check_times NULLS LAST, outcome"""

#: CTEs `runs`: the sent checks with the number of the group's run of equal outcomes; `harmed`: a transaction in a run
#: of failed ones, with its decision. A CANCEL follows the COMMIT.
_HARMED = f"""
sent AS (
    SELECT a.producer_group, a.queue_id, a.queue_offset, a.transaction_id, a.check_times, a.answered_at, a.outcome,
        a.endpoint, a.failed_tries, first_error(a.error, a.failed_tries) AS error,
        CASE WHEN a.outcome IN ('NO_ANSWER', 'UNKNOWN') THEN a.outcome ELSE 'ANSWER' END AS kind
    FROM {{check_answers}} AS a
    WHERE a.outcome <> 'SKIPPED' AND a.producer_group IS NOT NULL AND RECENT),
marked AS (
    SELECT *, CASE WHEN lag(kind) OVER ({_BY_TIME}) = kind THEN 0 ELSE 1 END AS begins FROM sent),
runs AS (
    SELECT *, sum(begins) OVER ({_BY_TIME} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS run FROM marked),
asked AS (
    SELECT producer_group, run, queue_id, queue_offset, transaction_id, min(answered_at) AS first_at,
        count(*) AS checks
    FROM runs WHERE kind <> 'ANSWER' GROUP BY producer_group, run, queue_id, queue_offset, transaction_id),
harmed AS (
    SELECT a.*, d.state, d.reason, d.source, d.decided_at, CASE WHEN d.state <> 'DISCARD' THEN greatest(
        CAST(unix_micros(d.decided_at) - unix_micros(a.first_at) AS DOUBLE) / 1e6, CAST(0 AS DOUBLE)) END AS delay_s
    FROM asked AS a
    LEFT JOIN (
        SELECT queue_id, queue_offset, state, reason, source, decided_at FROM {{decisions}} WHERE state <> 'CANCEL'
    ) AS d ON d.queue_id = a.queue_id AND d.queue_offset = a.queue_offset)"""

_OUTAGES = f"""
WITH {_HARMED},
spans AS (
    SELECT producer_group, run, min(kind) AS outcome, min(answered_at) AS began_at, max(answered_at) AS last_vain_at,
        count(*) AS checks
    FROM runs GROUP BY producer_group, run),
ended AS (
    SELECT *, lead(began_at) OVER (PARTITION BY producer_group ORDER BY run) AS over_at FROM spans),
harm AS (
    SELECT producer_group, run, count(*) AS transactions,
        count(*) FILTER (WHERE state = 'DISCARD') AS discarded, count(*) FILTER (WHERE state <> 'DISCARD') AS decided,
        count(*) FILTER (WHERE state IS NULL) AS still_pending,
        percentile_disc(0.5) WITHIN GROUP (ORDER BY delay_s) AS delay_p50_s, max(delay_s) AS delay_max_s
    FROM harmed GROUP BY producer_group, run),
errors AS (
    SELECT producer_group, run, error, count(*) AS number
    FROM runs WHERE kind <> 'ANSWER' AND error IS NOT NULL GROUP BY producer_group, run, error),
ranked AS (
    SELECT *, row_number() OVER (PARTITION BY producer_group, run ORDER BY number DESC, error) AS turn FROM errors),
named AS (
    SELECT producer_group, run, endpoint FROM runs WHERE kind <> 'ANSWER'
    UNION ALL
    SELECT producer_group, run, failed.endpoint
    FROM (SELECT producer_group, run, explode(failed_tries) AS failed FROM runs WHERE kind <> 'ANSWER')),
tried AS (
    SELECT producer_group, run, array_sort(collect_set(endpoint)) AS endpoints
    FROM named WHERE endpoint IS NOT NULL GROUP BY producer_group, run)
SELECT e.producer_group, e.outcome, e.began_at, e.last_vain_at, e.over_at,
    CAST(unix_micros(coalesce(e.over_at, e.last_vain_at)) - unix_micros(e.began_at) AS DOUBLE) / 1e6 AS lasted_s,
    e.checks, h.transactions, coalesce(t.endpoints, no_text()) AS endpoints, r.error AS said,
    h.discarded, h.decided, h.still_pending, h.delay_p50_s, h.delay_max_s
FROM ended AS e
JOIN harm AS h ON h.producer_group = e.producer_group AND h.run = e.run
LEFT JOIN tried AS t ON t.producer_group = e.producer_group AND t.run = e.run
LEFT JOIN ranked AS r ON r.producer_group = e.producer_group AND r.run = e.run AND r.turn = 1
WHERE e.last_vain_at > e.began_at"""

_DAMAGE = f"""
WITH {_HARMED}
SELECT queue_id, queue_offset, transaction_id, producer_group, checks, state, reason, source, decided_at, delay_s
FROM harmed
WHERE producer_group = :outage_group AND unix_micros(first_at) BETWEEN CAST(:since AS BIGINT) AND CAST(:last AS BIGINT)
"""


def outages_question(since: datetime | str | None = None) -> Question:
    """The outages, the last first; only those that were not over by ``since``, from their beginning on.

    Columns: producer_group; outcome (NO_ANSWER, UNKNOWN); began_at (the first failed check), last_vain_at (the last
    one), over_at (the next other outcome; null = it goes on) TIMESTAMP; lasted_s DOUBLE (until it was over, else until
    the last failed check); checks (failed), transactions BIGINT (that they were about); endpoints ARRAY<STRING>; said
    (the most frequent error); of these transactions: discarded, decided (committed or rolled back), still_pending
    BIGINT, delay_p50_s, delay_max_s DOUBLE (of the decided: from their first failed check to the decision).

    One that no other outcome has ended goes on while a transaction of it is pending; else its last check was its end.
    Reads check_answers and decisions, and sorts each group's answers.
    """
    found = _OUTAGES.replace("RECENT", "a.answered_at IS NOT NULL")
    sql = f"""
        SELECT * FROM ({found}) AS outage
        WHERE :since IS NULL OR (over_at IS NULL AND still_pending > 0)
            OR unix_micros(coalesce(over_at, last_vain_at)) >= CAST(:since AS BIGINT)"""
    return Question(sql, "began_at DESC, producer_group", {"since": None}, since=since)


def damage_question(group: str, began: datetime, last: datetime) -> Question:
    """The transactions with failed checks in an outage: the discarded, the pending, then the slowest first.

    Columns: queue_id, queue_offset, transaction_id, producer_group, checks (failed) BIGINT, state (null = pending),
    reason, source, decided_at, delay_s DOUBLE (from the first failed check to the decision). Reads as
    `outages_question`.
    """
    order = "CASE WHEN state = 'DISCARD' THEN 0 WHEN state IS NULL THEN 1 ELSE 2 END, delay_s DESC"
    values: dict[str, Value] = {"outage_group": group, "last": us_of(last)}
    # A plain column: its statistics allow file skipping.
    sql = _DAMAGE.replace("RECENT", "a.answered_at >= timestamp_micros(:since)")
    return Question(sql, f"{order}, queue_id, queue_offset", values, since=began)
