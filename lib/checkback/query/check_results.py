"""What the checks of half messages brought: its meaning, the newest of each, the endpoints' circuit breakers. SQL.

An endpoint that says 404 does answer; whoever reads it is told which setting to look at.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checkback.check.circuit_breaker import limits_of
from checkback.check.wire import REFUSALS
from checkback.query.engines.question import Question
from checkback.storage.valid_texts import BREAKER_OPEN, NOT_TRIED, OVERTAKEN

if TYPE_CHECKING:
    from checkback.settings import Settings

_STATUS = "^(status|redirect) [0-9]{1,9}(: |$)"
_PATH = ("is its path right", "endpoints")
#: the error of an endpoint that takes signed checks only, and not these
_UNSIGNED = "status 401"
#: by error: what to ask, and the setting of the group that it is about
_HINTS = {
    "status 403": ("is it the endpoint of this group", "endpoints"),
    "status 404": _PATH,
    "status 405": _PATH,
}
_SIGNED = ("is the secret right", "?")
_SECRETLESS = ("the endpoint wants signed checks, and no secret is set", "")
_REFUSAL = f"^({'|'.join(REFUSALS)})"
#: SQL: error of a try by which the endpoint shows that it is healthy, though it has not answered (`check.wire`)
REFUSED = (
    f"coalesce(regexp_extract(error, '{_REFUSAL}', 0) <> '', FALSE)"
    " OR coalesce(TRY_CAST(regexp_extract(error, '^(status|redirect) ([0-9]{{1,9}})(: |$)', 2)"
    " AS BIGINT) BETWEEN 0 AND 499 AND error <> 'status 429', FALSE)"
)


def no_answer(error: str | None) -> str:
    """What the error of a check's last real try tells; None = none is known."""
    if error is None:
        return "no endpoint answers"
    if re.match(_STATUS, error):
        return f"the endpoint says {error}"
    return f"the answer is not valid: {error}" if re.match(_REFUSAL, error) else f"no endpoint answers: {error}"


def hint(error: str | None, group: str | None, signed: bool = True) -> str:
    """What to look at, to be appended; may be empty. ``signed``: the group has a secret."""
    if error == _UNSIGNED:
        said, end = _SIGNED if signed else _SECRETLESS
        return f": {said} (producers.{group or ''}.secret){end}"
    asked = _HINTS.get(error or "")
    return "" if asked is None else f": {asked[0]} (producers.{group or ''}.{asked[1]})?"


def no_answer_sql(error: str) -> str:
    """SQL: `no_answer` of a column; braces are doubled, as in all questions."""
    return f"""CASE
        WHEN {error} IS NULL THEN 'no endpoint answers'
        WHEN regexp_extract({error}, '{_STATUS.replace("{", "{{").replace("}", "}}")}', 0) <> ''
            THEN 'the endpoint says ' || {error}
        WHEN regexp_extract({error}, '{_REFUSAL}', 0) <> '' THEN 'the answer is not valid: ' || {error}
        ELSE 'no endpoint answers: ' || {error}
    END"""


def hint_sql(error: str, group: str, signed: str = "TRUE") -> str:
    """SQL: `hint` of columns; ``signed``: a condition."""
    words = " ".join(
        f"WHEN {error} = '{_UNSIGNED}' AND {where} "
        f"THEN ': {asked} (producers.' || coalesce({group}, '') || '.secret){end}'"
        for where, (asked, end) in ((signed, _SIGNED), ("TRUE", _SECRETLESS))
    )
    cases = " ".join(
        f"WHEN {error} = '{said}' THEN ': {asked} (producers.' || coalesce({group}, '') || '.{setting})?'"
        for said, (asked, setting) in _HINTS.items()
    )
    return f"CASE {words} {cases} ELSE '' END"


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
