"""Producer groups with pending transactions: how many, since when, and why."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.query.engines.question import Question
from checkback.query.pending_transactions import pending_question
from checkback.query.status.diagnosis import Group, Reconcile, diagnose, is_stuck
from checkback.query.status.progress import progress
from checkback.storage.lock import lock_is_held
from checkback.storage.timestamps import ms_of
from checkback.storage.valid_texts import NOT_TRIED, OVERTAKEN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from checkback.query.status.progress import Progress
    from checkback.query.versions.view import View
    from checkback.settings import Settings

_TIMES = ("silent_since", "undecided_since", "due_since")
_SHARES = ("decided", "unknown", "no_answer", "skipped")

#: CTE `waiting`: pending transactions by group. One that was checked is beyond its immunity, even while its next check
#: is not due. One whose op has landed waits for reconcile, and not for a check.
_WAITING = """
told AS (
    SELECT *, check_times > 0 OR last_outcome IS NOT NULL AS asked, coalesce(next_check_at <= as_of, FALSE) AS due
    FROM (PENDING)),
one AS (SELECT *, (asked OR due) AND op_waiting IS NULL AS overdue FROM told),
waiting AS (
    SELECT producer_group, count(*) AS pending,
        count(*) FILTER (WHERE overdue) AS overdue,
        count(op_waiting) AS op_waiting,
        min(born_timestamp) FILTER (WHERE overdue OR op_waiting IS NOT NULL) AS oldest_born,
        max(age_s) FILTER (WHERE overdue OR op_waiting IS NOT NULL) AS oldest_age_s,
        min(CASE WHEN op_waiting IS NULL AND (:count_undelivered = 1 OR last_outcome = 'UNKNOWN')
            THEN least(CAST(:most AS BIGINT), CAST(least(CAST(1e18 AS DOUBLE),
                CAST(unix_micros(next_check_at) AS DOUBLE)
                    + CAST(greatest(:check_max - check_times, 0) AS DOUBLE) * CAST(:check_interval AS DOUBLE)
            ) AS BIGINT)) END) AS discard_us,
        bool_or(asked) AS requested,
        min(CASE WHEN op_waiting IS NOT NULL THEN op_landed_at WHEN due THEN next_check_at END) AS due_since,
        max(as_of) AS as_of
    FROM one GROUP BY producer_group)"""

#: SQL: a request that was skipped because the same check was requested again under its number: one check, one outcome
_REPEATED = f"""(
        outcome = 'SKIPPED' AND error IN ('{OVERTAKEN}', 'overtaken by check ' || CAST(check_times AS STRING)))"""
#: CTE `outcomes`: of checks by group; recent: those of the last check_interval of checking
_OUTCOMES = """
latest AS (
    SELECT producer_group,
        max(answered_at) FILTER (WHERE outcome IN ('COMMIT', 'ROLLBACK', 'UNKNOWN')) AS last_answer_at,
        max(answered_at) FILTER (WHERE outcome IN ('COMMIT', 'ROLLBACK')) AS last_decided_at,
        max(answered_at) FILTER (WHERE REPEATED IS NOT TRUE) AS newest_at
    FROM {check_answers} GROUP BY producer_group),
facts AS (
    SELECT a.producer_group, a.answered_at, a.outcome, a.endpoint, a.failed_tries, coalesce(a.error, '') AS error,
        coalesce(a.endpoint, '') AS endpoint_text, a.outcome IN ('COMMIT', 'ROLLBACK', 'UNKNOWN') AS answers,
        l.last_answer_at, l.last_decided_at, first_error(a.error, a.failed_tries) AS tried_error,
        coalesce(unix_micros(a.answered_at) > unix_micros(l.newest_at) - :check_interval, FALSE) AS recent
    FROM {check_answers} AS a JOIN latest AS l ON l.producer_group = a.producer_group
    WHERE REPEATED IS NOT TRUE),
outcomes AS (
    SELECT producer_group, max(last_answer_at) AS last_answer_at,
        max_by(outcome, (outcome, endpoint_text)) FILTER (
            WHERE answered_at = last_answer_at AND answers) AS last_answer,
        nullif(max_by(endpoint_text, (outcome, endpoint_text)) FILTER (
            WHERE answered_at = last_answer_at AND answers), '') AS last_answer_endpoint,
        min(answered_at) FILTER (
            WHERE outcome = 'NO_ANSWER' AND (last_answer_at IS NULL OR answered_at > last_answer_at)) AS silent_since,
        min(answered_at) FILTER (
            WHERE outcome = 'UNKNOWN' AND (last_decided_at IS NULL OR answered_at > last_decided_at)
        ) AS undecided_since,
        count(*) FILTER (WHERE recent) AS outcomes,
        count(*) FILTER (WHERE recent AND outcome IN ('COMMIT', 'ROLLBACK')) AS decided,
        count(*) FILTER (WHERE recent AND outcome = 'UNKNOWN') AS unknown,
        count(*) FILTER (WHERE recent AND outcome = 'NO_ANSWER') AS no_answer,
        count(*) FILTER (WHERE recent AND outcome = 'SKIPPED') AS skipped,
        max_by(tried_error, (answered_at, tried_error)) FILTER (
            WHERE outcome = 'NO_ANSWER' AND answered_at IS NOT NULL AND tried_error IS NOT NULL) AS last_error,
        max_by(error, (answered_at, error)) FILTER (
            WHERE outcome = 'NO_ANSWER' AND answered_at IS NOT NULL) AS last_silence,
        max_by(error, (answered_at, error)) FILTER (
            WHERE outcome = 'UNKNOWN' AND answered_at IS NOT NULL) AS said,
        max_by(error, (answered_at, error)) FILTER (
            WHERE outcome = 'SKIPPED' AND answered_at IS NOT NULL) AS skipped_error
    FROM facts GROUP BY producer_group)""".replace("REPEATED", _REPEATED)

_GROUPS = f"""
WITH {_WAITING}, {_OUTCOMES},
named AS (
    SELECT producer_group, endpoint FROM facts WHERE recent
    UNION ALL
    SELECT producer_group, failed.endpoint
    FROM (SELECT producer_group, explode(failed_tries) AS failed FROM facts WHERE recent)),
tried AS (
    SELECT producer_group, array_sort(collect_set(endpoint)) AS endpoints
    FROM named WHERE endpoint IS NOT NULL GROUP BY producer_group)
SELECT w.producer_group, w.pending, w.overdue, w.op_waiting, w.oldest_born, w.oldest_age_s, o.last_answer,
    o.last_answer_at, o.last_answer_endpoint, o.silent_since, o.undecided_since,
    coalesce(o.outcomes, CAST(0 AS BIGINT)) AS outcomes,
    {", ".join(f"CAST(o.{name} AS DOUBLE) / nullif(o.outcomes, 0) AS {name}_share" for name in _SHARES)},
    o.last_error, coalesce(t.endpoints, no_text()) AS endpoints, timestamp_micros(w.discard_us) AS discard_forecast,
    w.as_of, w.requested, w.due_since,
    CASE WHEN startswith(o.last_silence, '{NOT_TRIED}') THEN o.last_silence END AS held_back,
    nullif(o.said, '') AS said, nullif(o.skipped_error, '') AS skipped_error
FROM waiting AS w
LEFT JOIN outcomes AS o ON o.producer_group = w.producer_group
LEFT JOIN tried AS t ON t.producer_group = w.producer_group"""


def group_rows(
    view: View, settings: Settings, *, stuck: bool = False, known: Callable[[], Progress | None] | None = None
) -> pa.Table:
    """The producer groups with something pending, the one with the oldest first.

    A group is stuck if some of its transactions are overdue, and not all its last checks were answered with COMMIT or
    ROLLBACK; or reconcile does not run. ``stuck``: only those, without that column. ``known``: gives reconcile's
    progress, if it is read anyway.

    Columns: producer_group; pending, overdue (beyond their immunity, without an op), op_waiting (their op has landed,
    and no batch has read it) BIGINT; oldest_born TIMESTAMP and oldest_age_s DOUBLE (of both); last_answer (newest
    COMMIT, ROLLBACK or UNKNOWN of a check), last_answer_at and last_answer_endpoint (which gave it), silent_since
    (first NO_ANSWER after that; null = it answers), undecided_since (first UNKNOWN after its last COMMIT or ROLLBACK);
    of its last check_interval of checking: outcomes BIGINT, and as fractions of 1 decided_share, unknown_share,
    no_answer_share, skipped_share DOUBLE (null = none), endpoints ARRAY<STRING> (all that were tried); last_error (of
    the newest failed attempt); discard_forecast TIMESTAMP (when the first one has had transaction.check_max checks and
    is discarded, if no op comes; null = all have an op, or checks that reach nobody do not count); as_of, why (a
    sentence); stuck BOOLEAN.

    Costs as much as `pending_question`, plus a second scan of check_answers.
    """
    rows = view.engine.arrow(view.ask(groups_question(settings, overdue=stuck)))
    say = _sayer(settings, view, _progress(view) if known is None else known())
    times = {name: _ms(rows.column(name)) for name in (*_TIMES, "as_of")}
    facts = rows.drop(["oldest_born", "last_answer_at", "discard_forecast", *times]).to_pylist()
    said = [say(row | {name: of[at] for name, of in times.items()}) for at, row in enumerate(facts)]
    rows = rows.drop(["requested", "due_since", "held_back", "said", "skipped_error"])
    rows = rows.append_column("why", pa.array([why for why, _ in said], pa.string()))
    rows = rows.append_column("stuck", pa.array([is_one for _, is_one in said], pa.bool_()))
    return rows.filter(rows.column("stuck")).drop(["stuck"]) if stuck else rows


def groups_question(settings: Settings, *, overdue: bool) -> Question:
    """The question of `group_rows`, without ``why``, but with what it is said from; ``overdue``: those with some."""
    pending = pending_question(settings)
    question = Question(_GROUPS.replace("PENDING", pending.sql), "oldest_born, producer_group", pending.values)
    return question.more("overdue", 0) if overdue else question


def last_words_question(group: str) -> Question:
    """What the checks of a group brought last, whatever is pending: one row, null = none is known.

    Columns: last_answer, last_answer_at, silent_since, last_error, as `group_rows`.
    """
    columns = ("last_answer", "last_answer_at", "silent_since", "last_error")
    sql = f"""
        WITH {_OUTCOMES}
        SELECT {", ".join(f"max({name}) AS {name}" for name in columns)}
        FROM outcomes WHERE producer_group = :producer_group"""
    return Question(sql, values={"producer_group": group, "check_interval": 0})


def quiet_after(settings: Settings) -> timedelta:
    """How long something may be due without a batch before reconcile counts as stopped."""
    return 5 * settings.reconcile.trigger + timedelta(minutes=1)


def _progress(view: View) -> Progress | None:
    """Reconcile's, as of the view."""
    at = None if view.at is None else ms_of(view.at)
    return progress(view.engine.session, view.tables.checkpoint("reconcile"), at)


def _is_busy(settings: Settings, view: View, found: Progress | None) -> bool:
    """Whether a batch is in progress that began so long ago that reconcile would count as stopped."""
    if found is None or found.under_way is None or view.at is not None:
        return False
    long = ms_of(view.moment) - found.under_way.time > quiet_after(settings) // timedelta(milliseconds=1)
    return long and bool(lock_is_held(view.tables))


def _sayer(settings: Settings, view: View, found: Progress | None) -> Callable[[Mapping[str, Any]], tuple[str, bool]]:
    """A function from a group's facts, times in ms, to `why`, and whether it is stuck."""
    begun = None if found is None else found.begun
    schedule = None if found is None else found.schedule
    reconcile = Reconcile(
        None if begun is None else begun.time,
        quiet_after(settings),
        busy=_is_busy(settings, view, found),
        none_yet=found is not None and found.none_yet,
        next_run_by=None if schedule is None else schedule.next_by,
    )
    endpoints = {name: len(producer.endpoints) for name, producer in settings.producers.items()}
    unsigned = {name for name, producer in settings.producers.items() if producer.secret is None}

    def say(row: Mapping[str, Any]) -> tuple[str, bool]:
        facts: dict[str, Any] = {name: row[f"{name}_share"] or 0.0 for name in _SHARES}
        same = ("overdue", "op_waiting", "requested", "outcomes", "held_back", "said", "skipped_error", *_TIMES)
        group = Group(
            **facts | {name: row[name] for name in same},
            young=row["pending"] - row["overdue"] - row["op_waiting"],
            endpoints=endpoints.get(row["producer_group"], 0),
            signed=row["producer_group"] not in unsigned,
            any_endpoint=bool(row["endpoints"]),
            error=row["last_error"],
            name=row["producer_group"],
        )
        return diagnose(group, reconcile, row["as_of"]), is_stuck(group, reconcile, row["as_of"])

    return say


def _ms(times: pa.ChunkedArray) -> list[int | None]:
    found: list[int | None] = [None if us is None else us // 1000 for us in times.cast(pa.int64()).to_pylist()]
    return found
