"""What the checks of a group brought last: whether it answers, and if it does not, since when and why."""

from __future__ import annotations

from checkback.inspect.engines.question import Question

_SILENT = "NOT answers AND (heard_us IS NULL OR us > heard_us)"
_LAST_WORDS = f"""
WITH heard AS (
    SELECT outcome, answered_at, unix_micros(answered_at) AS us, outcome <> 'NO_ANSWER' AS answers,
        first_error(a.error, a.failed_tries) AS tried
    FROM {{check_answers}} AS a
    WHERE producer_group = :producer_group AND outcome <> 'SKIPPED' AND answered_at IS NOT NULL),
told AS (SELECT *, max(CASE WHEN answers THEN us END) OVER () AS heard_us FROM heard)
SELECT max_by(outcome, (us, outcome)) FILTER (WHERE answers) AS last_answer,
    max(answered_at) FILTER (WHERE answers) AS last_answer_at,
    min(answered_at) FILTER (WHERE {_SILENT}) AS silent_since,
    max_by(tried, (us, tried)) FILTER (WHERE {_SILENT} AND tried IS NOT NULL) AS last_error
FROM told"""


def last_words_question(group: str) -> Question:
    """One row: last_answer (COMMIT, ROLLBACK, UNKNOWN), last_answer_at; silent_since, last_error. Null = none is known.

    ``silent_since``: the first NO_ANSWER after that; ``last_error``: of the newest of these.
    """
    return Question(_LAST_WORDS, "last_answer", {"producer_group": group})
