"""Pending half messages: since when, how often checked, when next, and why still pending."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from checkback.query.check_results import BROKEN_GROUPS, NEWEST_ANSWERS, hint_sql, no_answer_sql
from checkback.query.engines.question import Question
from checkback.storage.schemas import CONTENT
from checkback.storage.timestamps import MOST
from checkback.storage.valid_texts import NOT_UTF8

if TYPE_CHECKING:
    from collections.abc import Collection

    from checkback.query.engines.engine import Value
    from checkback.settings import Settings

#: CTE `halves`: the undecided half messages, of each offset the first that landed, as in the segments; born_us: rule 4
_HALVES = """
left_over AS (
    SELECT queue_id, queue_offset FROM {half} AS h
    WHERE NOT EXISTS (
        SELECT 1 FROM {decisions} AS d WHERE d.queue_id = h.queue_id AND d.queue_offset = h.queue_offset)),
landed AS (
    SELECT queue_id, queue_offset, transaction_id, producer_group, real_topic, born_timestamp, check_immunity_s,
        store_timestamp, committed CONTENT,
        unix_micros(least(born_timestamp, store_timestamp)) AS born_us,
        row_number() OVER (
            PARTITION BY queue_id, queue_offset
            ORDER BY store_timestamp NULLS LAST, born_timestamp NULLS LAST, transaction_id NULLS LAST,
                producer_group NULLS LAST, real_topic NULLS LAST) AS copy
    FROM {half} AS h
    WHERE EXISTS (
        SELECT 1 FROM left_over AS l
        WHERE l.queue_id IS NOT DISTINCT FROM h.queue_id AND l.queue_offset IS NOT DISTINCT FROM h.queue_offset)),
halves AS (SELECT * FROM landed WHERE copy = 1)"""

#: CTE `checks`: of each half message the checks that count (docs/protocol.md, rule 9; `check_counts`), and
#: when the last was requested. A half message is identified by its names, too: after a restore of `half` from a backup
#: an offset may be reused.
_CHECKS = """
last_counted AS (
    SELECT queue_id, queue_offset, producer_group, transaction_id,
        max(coalesce(TRY_CAST(regexp_extract(remark, '^check ([0-9]{{1,9}})$', 1) AS BIGINT), -1)) AS counted
    FROM {op} WHERE source = 'check' AND state IN ('COUNTED', 'COMMIT', 'ROLLBACK')
    GROUP BY queue_id, queue_offset, producer_group, transaction_id),
requests AS (
    SELECT queue_id, queue_offset, producer_group, transaction_id, check_times, requested_at,
        row_number() OVER (
            PARTITION BY queue_id, queue_offset, producer_group, transaction_id
            ORDER BY requested_at DESC NULLS LAST, check_times DESC NULLS LAST) AS turn,
        count(*) OVER (PARTITION BY queue_id, queue_offset, producer_group, transaction_id) AS requested
    FROM {check_requests}),
numbered AS (
    SELECT a.queue_id, a.queue_offset, a.producer_group, a.transaction_id, a.requested, a.requested_at,
        CAST(a.check_times AS BIGINT) AS number, coalesce(c.counted, 0) AS counted
    FROM requests AS a
    LEFT JOIN last_counted AS c
        ON c.queue_id = a.queue_id AND c.queue_offset = a.queue_offset AND c.producer_group = a.producer_group
        AND c.transaction_id IS NOT DISTINCT FROM a.transaction_id
    WHERE a.turn = 1),
checks AS (
    SELECT queue_id, queue_offset, producer_group, transaction_id, requested_at,
        CAST(CASE
            WHEN :count_undelivered = 0 THEN least(counted, requested)
            WHEN number >= :check_max AND counted < number THEN greatest(counted, :check_max - 1)
            ELSE number
        END AS INT) AS check_times
    FROM numbered)"""

#: CTE `waiting`: the op that will decide a half message: the first (rule 1) of its own (rule 2) that is not in
#: `rejected` (rule 3; as `rejected_ops`)
_WAITING = """
rejected_ops AS (
    SELECT TRY_CAST(get_json_object(raw, '$.queue_id') AS INT) AS queue_id,
        TRY_CAST(get_json_object(raw, '$.queue_offset') AS BIGINT) AS queue_offset,
        get_json_object(raw, '$.producer_group') AS producer_group,
        get_json_object(raw, '$.transaction_id') AS transaction_id,
        get_json_object(raw, '$.state') AS state,
        TRY_CAST(get_json_object(raw, '$.born_timestamp') AS BIGINT) AS born_ms,
        unix_micros(rejected_at) AS rejected_us
    FROM {rejected} WHERE source = 'op' AND file IS NULL),
waiting AS (
    SELECT o.queue_id, o.queue_offset, o.state, o.store_timestamp, row_number() OVER (
        PARTITION BY o.queue_id, o.queue_offset
        ORDER BY o.store_timestamp NULLS FIRST, o.born_timestamp NULLS FIRST, o.state DESC) AS turn
    FROM {op} AS o JOIN halves AS h ON h.queue_id = o.queue_id AND h.queue_offset = o.queue_offset
    WHERE o.state IN ('COMMIT', 'ROLLBACK') AND o.producer_group = h.producer_group
        AND (o.transaction_id IS NULL OR o.transaction_id = h.transaction_id)
        AND NOT EXISTS (
            SELECT 1 FROM rejected_ops AS r
            WHERE r.queue_id = o.queue_id AND r.queue_offset = o.queue_offset AND r.state = o.state
                AND r.producer_group = o.producer_group AND r.transaction_id IS NOT DISTINCT FROM o.transaction_id
                AND r.born_ms IS NOT DISTINCT FROM unix_millis(o.born_timestamp)
                AND coalesce(unix_micros(o.store_timestamp), 0) <= r.rejected_us))"""


def _clock(time: str) -> str:
    """SQL: as `diagnosis.clock`."""
    at, now = (f"date_format({of}, 'yyyy-MM-dd HH:mm:ss.SSS')" for of in (time, "timestamp_micros(:now)"))
    same = f"substring({at}, 1, 10) = substring({now}, 1, 10)"
    return f"CASE WHEN {same} THEN substring({at}, 12, 5) ELSE substring({at}, 1, 16) END"


#: That circuit breakers hold the group's checks back, since when: the same for all its half messages.
_OPEN = f"'; breaker open since ' || {_clock('open_since')}"
_SILENT = "last_outcome = 'NO_ANSWER' AND last_endpoint IS NOT NULL"
#: The sentence `why`; `status.diagnosis` says the same of a group. What differs between half messages of one cause
#: does not belong into it: it is what they are counted by.
_WHY = f"""CASE
    WHEN op_waiting IS NOT NULL
        THEN op_waiting || ' has landed, not yet read by reconcile: the next batch decides'
    WHEN open_since IS NOT NULL AND {_SILENT}
        THEN {no_answer_sql("silence")} || {_OPEN} || {hint_sql("silence", "producer_group", "SIGNED")}
    WHEN open_since IS NOT NULL AND held THEN SAID || {_OPEN}
    ELSE SAID
END"""
_SAID = f"""CASE
    WHEN last_outcome = 'UNKNOWN' THEN 'answered UNKNOWN' || coalesce(': ' || last_error, '')
    WHEN last_outcome = 'NO_ANSWER' AND last_error = '{NOT_UTF8}' THEN last_error
    WHEN last_outcome = 'NO_ANSWER' AND last_endpoint IS NULL THEN 'no endpoint is set for the group'
    WHEN last_outcome = 'NO_ANSWER' AND NOT asked THEN 'a breaker, closed now, held it back: its next check asks'
    WHEN last_outcome = 'NO_ANSWER' THEN {no_answer_sql("last_error")} || HINT
    WHEN last_outcome = 'SKIPPED' THEN 'check skipped: ' || coalesce(last_error, 'no reason given')
    WHEN last_outcome IS NOT NULL THEN 'answered ' || last_outcome || ': its op is not there yet'
    WHEN check_times > 0 THEN 'asked, no outcome yet'
    WHEN NOT next_us <= CAST(:now AS BIGINT) THEN 'young: the first check is not due yet'
    WHEN NOT KNOWN_GROUP THEN 'no endpoint is set for the group in these settings'
    ELSE 'its first check is due'
END""".replace("HINT", hint_sql("last_error", "producer_group", "SIGNED"))

_KNOWN = """
known AS (
    SELECT h.queue_id, h.queue_offset, h.transaction_id, h.producer_group, h.real_topic, h.born_timestamp, h.born_us
        CONTENT,
        coalesce(c.check_times, CAST(0 AS INT)) AS check_times, a.outcome AS last_outcome, a.error AS last_error,
        a.endpoint AS last_endpoint, a.answered_at AS last_answered_at, a.asked, a.held,
        b.open_since, b.silence,
        CASE WHEN h.committed THEN 'COMMIT' ELSE w.state END AS op_waiting,
        CASE WHEN h.committed THEN h.store_timestamp ELSE w.store_timestamp END AS op_landed_at,
        coalesce(
            CASE WHEN c.requested_at > timestamp_micros(:most) THEN CAST(:most AS BIGINT)
                ELSE unix_millis(c.requested_at) * 1000 END + CAST(:check_interval AS BIGINT),
            CASE WHEN h.born_us > :most THEN CAST(:most AS BIGINT) ELSE h.born_us END + CASE
                WHEN h.check_immunity_s >= 0
                    THEN least(CAST(h.check_immunity_s AS BIGINT) * 1000000, CAST(:max_age AS BIGINT))
                ELSE CAST(:timeout AS BIGINT) END) AS next_us
    FROM halves AS h
    LEFT JOIN checks AS c
        ON c.queue_id = h.queue_id AND c.queue_offset = h.queue_offset AND c.producer_group = h.producer_group
        AND c.transaction_id IS NOT DISTINCT FROM h.transaction_id
    LEFT JOIN answers AS a
        ON a.queue_id = h.queue_id AND a.queue_offset = h.queue_offset AND a.producer_group = h.producer_group
        AND a.transaction_id = h.transaction_id
    LEFT JOIN broken AS b ON b.producer_group = h.producer_group
    LEFT JOIN waiting AS w ON w.queue_id = h.queue_id AND w.queue_offset = h.queue_offset AND w.turn = 1)"""

_SELECT = f"""
SELECT queue_id, queue_offset, transaction_id, producer_group, real_topic, born_timestamp,
    (CAST(:now AS DOUBLE) - CAST(born_us AS DOUBLE)) / 1e6 AS age_s,
    check_times, last_outcome, last_error, last_endpoint, last_answered_at,
    CASE WHEN op_waiting IS NULL THEN timestamp_micros(next_us) END AS next_check_at, op_waiting, op_landed_at,
    {_WHY.replace("SAID", _SAID)} AS why,
    timestamp_micros(:now) AS as_of CONTENT
FROM known"""

_PENDING = f"WITH {','.join((_HALVES, _CHECKS, NEWEST_ANSWERS, BROKEN_GROUPS, _WAITING, _KNOWN))} {_SELECT}"


def pending_question(settings: Settings, *, bodies: bool = False) -> Question:
    """The pending half messages, oldest first, now or as of a point in time.

    Columns: queue_id INT, queue_offset BIGINT, transaction_id, producer_group, real_topic, born_timestamp, age_s DOUBLE
    (seconds since birth), check_times INT (checks that count; 0 = none yet), last_outcome, last_error, last_endpoint
    and last_answered_at (of the newest outcome of a check, of those that no circuit breaker prevented if there are any;
    null = none yet), next_check_at (after check_max checks: when it is discarded; up to transaction.check_jitter
    later; null with op_waiting: it is not checked), op_waiting (COMMIT
    or ROLLBACK: the next batch decides it so, as its own op has landed, or it is a message without a transaction; else
    null), op_landed_at (when that op, or that message, landed), why (a sentence), as_of (TIMESTAMP). With ``bodies``
    also tags, keys, properties and body.

    Reads half twice, first only offsets, and decisions, op, rejected, check_requests and check_answers, without bodies.
    """
    groups = sorted(name for name, producer in settings.producers.items() if producer.endpoints)
    names = {f"group_{number}": name for number, name in enumerate(groups)}
    known = _one_of(names)
    unsigned = _one_of([name for name, group in names.items() if settings.producers[group].secret is None])
    content = "".join(f", {name}" for name in CONTENT) if bodies else ""
    rules = settings.transaction
    values: dict[str, Value] = {
        "check_max": rules.check_max,
        "count_undelivered": int(rules.count_undelivered),
        "check_interval": _us(rules.check_interval),
        "timeout": _us(rules.timeout),
        "max_age": _us(rules.max_age),
        "most": MOST,
        **names,
    }
    sql = _PENDING.replace("CONTENT", content).replace("KNOWN_GROUP", known).replace("SIGNED", f"NOT {unsigned}")
    return Question(sql, "born_timestamp, queue_id, queue_offset", values)


def _one_of(names: Collection[str]) -> str:
    """SQL: whether the group is one of these values."""
    return f"coalesce(producer_group IN ({', '.join(f':{name}' for name in names)}), FALSE)" if names else "FALSE"


def _us(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)
