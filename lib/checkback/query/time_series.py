"""Time series of what happened, by minute or another interval, from the times in the tables: rows to plot.

``every`` is the interval; the column, its beginning, is called `minute` regardless. Intervals start at the epoch, UTC.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from checkback.errors import SettingsError
from checkback.query.engines.question import Question
from checkback.storage.valid_texts import NOT_TRIED

if TYPE_CHECKING:
    from checkback.query.engines.engine import Value
    from checkback.query.versions.view import View

#: most bars of a plot
MOST = 90
_SECOND, _MINUTE, _HOUR, _DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
#: lengths of intervals: each divides the next larger unit, so that bars begin at round times
LENGTHS = (
    *(number * _SECOND for number in (1, 2, 5, 10, 15, 30)),
    *(number * _MINUTE for number in (1, 2, 5, 10, 15, 30)),
    *(number * _HOUR for number in (1, 2, 3, 6, 12)),
    _DAY,
)


def interval_for(span: timedelta, most: int = MOST) -> timedelta:
    """The shortest usual interval that divides the span into at most ``most``: 1 s to 1 d, then whole days."""
    for length in LENGTHS:
        if span <= most * length:
            return length
    return -(-span // (most * _DAY)) * _DAY


def in_words(seconds: float) -> str:
    """A duration for display: 0.4 s, 12 s, 3 min, 2.5 h, 3 d."""
    for unit, name, until in ((1, "s", 120), (60, "min", 120 * 60), (3600, "h", 48 * 3600)):
        if abs(seconds) < until:
            return f"{_short(seconds / unit)} {name}"
    return f"{_short(seconds / 86400)} d"


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0") if abs(number) < 10 else f"{number:,.0f}"


#: outcome of a failed attempt at an endpoint, after which another one was tried
FAILED_TRY = "FAILED_TRY"
MINUTE = timedelta(minutes=1)
#: us: before all times
_EVER = -(1 << 62)
#: the time column of each table
_TIMES = {"half": "store_timestamp", "decisions": "decided_at", "check_answers": "answered_at"}


def decisions_question(
    since: datetime | str | None = None, every: timedelta = MINUTE, source: str | None = None
) -> Question:
    """Number of decisions per interval; ``source``: only of ops by it, None = all.

    Columns: minute TIMESTAMP (its beginning), producer_group, state (COMMIT, ROLLBACK, DISCARD; CANCEL of scheduled
    messages), decisions BIGINT. A
    minute without decisions has no row. Reads `decisions` once; with ``since`` only the files of that time.
    """
    whose = "TRUE" if source is None else "source = :source"
    sql = f"""
        SELECT {_beginning("decided_at")} AS minute, producer_group, state, count(*) AS decisions
        FROM {{decisions}} WHERE {_since("decided_at", since)} AND {whose} GROUP BY 1, 2, 3"""
    return Question(sql, "minute, producer_group, state", {**_interval(every), "source": source}, since)


def decided_question(since: datetime | str | None = None) -> Question:
    """The decisions one by one, the last first: columns of `decisions` (docs/tables.md)."""
    sql = f"SELECT * FROM {{decisions}} WHERE {_since('decided_at', since)}"
    return Question(sql, "decided_at DESC, queue_id, queue_offset, state", since=since)


def outcomes_question(since: datetime | str | None = None, every: timedelta = MINUTE) -> Question:
    """Outcomes of the checks, by endpoint and minute.

    Columns: minute TIMESTAMP, producer_group, endpoint (null = the group had none), outcome (COMMIT, ROLLBACK, UNKNOWN,
    NO_ANSWER, SKIPPED; FAILED_TRY: not the outcome of a check, the next endpoint was tried), checks BIGINT,
    latency_p50_ms INT (null for a FAILED_TRY). Reads `check_answers` once; with ``since`` only the files of that time.
    """
    sql = f"""
        WITH recent AS (
            SELECT {_beginning("answered_at")} AS minute, producer_group, endpoint, outcome, latency_ms, failed_tries
            FROM {{check_answers}} WHERE {_since("answered_at", since)}),
        tried AS (SELECT minute, producer_group, explode(failed_tries) AS failed FROM recent),
        attempts AS (
            SELECT minute, producer_group, endpoint, outcome, latency_ms FROM recent
            UNION ALL
            SELECT minute, producer_group, failed.endpoint, '{FAILED_TRY}', CAST(NULL AS INT) FROM tried)
        SELECT minute, producer_group, endpoint, outcome, count(*) AS checks,
            CAST(percentile_disc(0.5) WITHIN GROUP (ORDER BY latency_ms) AS INT) AS latency_p50_ms
        FROM attempts GROUP BY minute, producer_group, endpoint, outcome"""
    return Question(sql, "minute, producer_group, endpoint, outcome", _interval(every), since)


def said_question(since: datetime | str | None = None) -> Question:
    """The result of each attempt of a check, by endpoint and text, the most frequent first.

    Columns: producer_group, endpoint, said (the outcome, or the error of a failed attempt), tries BIGINT, first_at,
    last_at. Attempts that an open circuit breaker prevented are left out. Reads `check_answers` once.
    """
    sql = f"""
        WITH recent AS (
            SELECT answered_at, producer_group, endpoint, coalesce(error, outcome) AS said, failed_tries
            FROM {{check_answers}} WHERE outcome <> 'SKIPPED' AND {_since("answered_at", since)}),
        tried AS (SELECT answered_at, producer_group, explode(failed_tries) AS failed FROM recent),
        attempts AS (
            SELECT answered_at, producer_group, endpoint, said FROM recent
            UNION ALL
            SELECT answered_at, producer_group, failed.endpoint, failed.error FROM tried)
        SELECT producer_group, endpoint, said, count(*) AS tries, min(answered_at) AS first_at,
            max(answered_at) AS last_at
        FROM attempts WHERE NOT startswith(said, '{NOT_TRIED}') GROUP BY producer_group, endpoint, said"""
    return Question(sql, "tries DESC, producer_group, endpoint, said", since=since)


def latency_question(since: datetime | str | None = None, every: timedelta = MINUTE) -> Question:
    """Time to decision, by group, topic and the minute of the decision.

    Columns: minute TIMESTAMP, producer_group, real_topic, decisions BIGINT; in seconds, DOUBLE: from_birth_p50_s,
    from_birth_p99_s, from_landing_p50_s, from_landing_p99_s (percentile_approx: exact for small groups). Joins
    `decisions` (with ``since``: its files of that time) with the times of `half`, which is read once.
    """
    shares = ", ".join(
        f"percentile_disc({share}) WITHIN GROUP (ORDER BY {of}) AS from_{name}_{label}_s"
        for name, of in (("birth", "from_birth"), ("landing", "from_landing"))
        for label, share in (("p50", 0.5), ("p99", 0.99))
    )
    sql = f"""
        WITH decided AS (  -- a CANCEL follows the COMMIT
            SELECT queue_id, queue_offset, producer_group, real_topic, decided_at
            FROM {{decisions}} WHERE state <> 'CANCEL' AND {_since("decided_at", since)}),
        halves AS (
            SELECT h.queue_id, h.queue_offset, min(unix_micros(store_timestamp)) AS landed,
                min(unix_micros(least(born_timestamp, store_timestamp))) AS born
            FROM {{half}} AS h
            WHERE EXISTS (
                SELECT 1 FROM decided AS d WHERE d.queue_id = h.queue_id AND d.queue_offset = h.queue_offset)
            GROUP BY h.queue_id, h.queue_offset),
        took AS (
            SELECT {_beginning("d.decided_at")} AS minute, d.producer_group, d.real_topic,
                CAST(unix_micros(d.decided_at) - h.born AS DOUBLE) / 1e6 AS from_birth,
                CAST(unix_micros(d.decided_at) - h.landed AS DOUBLE) / 1e6 AS from_landing
            FROM decided AS d JOIN halves AS h ON h.queue_id = d.queue_id AND h.queue_offset = d.queue_offset)
        SELECT minute, producer_group, real_topic, count(*) AS decisions, {shares}
        FROM took GROUP BY minute, producer_group, real_topic"""
    return Question(sql, "minute, producer_group, real_topic", _interval(every), since)


def pending_over_time_question(since: datetime | str | None = None, every: timedelta = MINUTE) -> Question:
    """Number pending at the end of each minute, by group, from the group's first half message on.

    Columns: minute TIMESTAMP, producer_group, pending BIGINT. Every minute has a row, up to the last one with any event
    in the tables; times after ``as_of`` are capped at it. Computed from landing and decision times, not by time travel.
    Reads `half` and `decisions` once and shuffles their offsets; ``since`` only drops earlier minutes from the result.
    """
    sql = f"""
        WITH placed AS (
            SELECT queue_id, queue_offset, min(store_timestamp) AS landed,
                min(coalesce(producer_group, '')) AS producer_group, count(*) AS number
            FROM {{half}} WHERE store_timestamp IS NOT NULL GROUP BY queue_id, queue_offset),
        halves AS (  -- the first of several at an offset takes ten times as long to tell: there are few
            SELECT queue_id, queue_offset, landed, producer_group FROM placed WHERE number = 1
            UNION ALL
            SELECT h.queue_id, h.queue_offset, min(h.store_timestamp), min_by(
                coalesce(h.producer_group, ''), (h.store_timestamp, coalesce(h.producer_group, '')))
            FROM {{half}} AS h JOIN placed AS p ON p.number > 1
                AND p.queue_id IS NOT DISTINCT FROM h.queue_id AND p.queue_offset IS NOT DISTINCT FROM h.queue_offset
            WHERE h.store_timestamp IS NOT NULL GROUP BY h.queue_id, h.queue_offset),
        decided AS (
            SELECT queue_id, queue_offset, min(decided_at) AS decided
            FROM {{decisions}} GROUP BY queue_id, queue_offset),
        lives AS (  -- a timestamp in the year 20000, which another writer may have appended, would be billions of rows
            SELECT h.producer_group, {_capped("h.landed")} AS landed, {_capped("d.decided")} AS decided
            FROM halves AS h
            LEFT JOIN decided AS d ON d.queue_id = h.queue_id AND d.queue_offset = h.queue_offset),
        counted AS (  -- after the clock was set back, a decision must not precede its landing
            SELECT producer_group, {_beginning_us("landed")} AS landed,
                CASE WHEN decided IS NOT NULL THEN {_beginning_us("greatest(landed, decided)")} END AS decided,
                count(*) AS number
            FROM lives GROUP BY 1, 2, 3),
        steps AS (
            SELECT producer_group, landed AS us, number AS step FROM counted
            UNION ALL
            SELECT producer_group, decided, -number FROM counted WHERE decided IS NOT NULL),
        changes AS (SELECT producer_group, us, sum(step) AS step FROM steps GROUP BY producer_group, us),
        so_far AS (
            SELECT producer_group, us, sum(step) OVER (PARTITION BY producer_group ORDER BY us) AS pending,
                lead(us) OVER (PARTITION BY producer_group ORDER BY us) AS next
            FROM changes),
        newest AS (SELECT {_beginning_us("least(max(time), timestamp_micros(:now))")} AS us FROM ({_ALL_TIMES})),
        spans AS (
            SELECT s.producer_group, s.us, CAST(s.pending AS BIGINT) AS pending,
                CAST(floor((coalesce(s.next - :every, greatest(s.us, n.us)) - s.us) / :every) AS BIGINT) AS more
            FROM so_far AS s CROSS JOIN newest AS n),
        minutes AS (
            SELECT producer_group, us, pending, explode(sequence(CAST(0 AS BIGINT), more)) AS number FROM spans)
        SELECT timestamp_micros(us + number * :every) AS minute, producer_group, pending
        FROM minutes WHERE us + number * :every >= :since"""
    return Question(sql, "minute, producer_group", _interval(every), since)


def pick_interval(view: View, since: datetime | str | None = None) -> timedelta:
    """An interval for plots of the whole time range: a second for tables of a minute, some minutes for those of a day.

    At most `MOST` intervals. Reads one column each of half, decisions and check_answers.
    """
    condition = _since("time", since)
    sql = f"SELECT max(unix_micros(time)) - min(unix_micros(time)) AS us FROM ({_ALL_TIMES}) WHERE {condition}"
    found = view.engine.arrow(view.ask(Question(sql, "us", _interval(MINUTE), since))).column("us").to_pylist()
    return interval_for(timedelta(microseconds=found[0] or 0))


#: one column, `time`
_ALL_TIMES = " UNION ALL ".join(f"SELECT {time} AS time FROM {{{name}}}" for name, time in _TIMES.items())


def _since(time: str, since: datetime | str | None) -> str:
    """SQL: whether a time is at or after ``since``. A plain column: its statistics allow file skipping."""
    return "TRUE" if since is None else f"{time} >= timestamp_micros(:since)"


def _beginning(time: str) -> str:
    """SQL: the beginning of the interval that contains a time."""
    return f"timestamp_micros({_beginning_us(time)})"


def _beginning_us(time: str) -> str:
    us = f"unix_micros({time})"
    return f"({us} - (({us} % :every) + :every) % :every)"


def _capped(time: str) -> str:
    """SQL: a time, but not later than now."""
    return f"CASE WHEN {time} > timestamp_micros(:now) THEN timestamp_micros(:now) ELSE {time} END"


def _interval(every: timedelta) -> dict[str, Value]:
    """The values of `_beginning` and, if no time is given, of `_since`. Raises SettingsError."""
    if every <= timedelta(0):
        raise SettingsError(f"{every} is not an interval", "every", "give a timedelta above zero")
    return {"every": every // timedelta(microseconds=1), "since": _EVER}
