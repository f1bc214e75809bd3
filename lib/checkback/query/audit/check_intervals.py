"""Checks and discards of each transaction in order, each with the rules of its batch (`batches.RULES`): SQL."""

from __future__ import annotations

from checkback.reconcile.segment import CHECKS_AT_LEAST

_ORDER = "PARTITION BY queue_id, queue_offset ORDER BY turn, number, ms, discard"
_BEFORE = f"{_ORDER} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
#: up to this row and those equal to it
_SO_FAR = f"{_ORDER} RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
_TWIN = "PARTITION BY queue_id, queue_offset, number, discard ORDER BY turn, ms"

_EVENTS = """
events AS (
    SELECT queue_id, queue_offset, FALSE AS discard, CAST(NULL AS STRING) AS reason,
        check_times AS number, unix_millis(requested_at) AS ms, batch_id FROM {check_requests}
    UNION ALL
    SELECT queue_id, queue_offset, TRUE AS discard, reason, check_times AS number,
        unix_millis(decided_at) AS ms, batch_id FROM {decisions} WHERE state = 'DISCARD'),
ruled AS (
    SELECT e.*, r.turn, r.application, r.check_interval, r.check_max, r.max_age, r.count_undelivered,
        r.first_interval
    FROM events AS e LEFT JOIN rules AS r ON r.batch_id = e.batch_id AND r.ms = e.ms)"""


def timed(uncounted: bool) -> str:
    """CTE `timed`: one row per check and per DISCARD. It reads the CTE `rules`.

    ``uncounted``: transaction.count_undelivered was ever false. What transaction.check_jitter adds to an interval is
    not asked for.

    Columns queue_id, queue_offset, discard (BOOLEAN), reason, number (check_times), ms (time), turn; slack (ms since it
    was due according to the previous check: negative is too early; null = unknown), due (of a check: when the next one
    is due, ms), over (number exceeds check_max), again (an earlier check had this number, and counted), all_uncounted
    (so far only received checks counted), needed (of a discard: checks that its reason requires), requested
    (checks before it), landed_before (of a discard EXPIRED: a half that landed then or later was too young, ms).

    Rules 5 to 7 and 9 of docs/protocol.md, as implemented in `reconcile.segment`. Null = unknown.
    """
    # If checks were ever not counted, a rebuild may have lost some: then only within one application.
    other = "coalesce(twin_application <> application, FALSE)" if uncounted else "FALSE"
    return f"""{_EVENTS},
numbered AS (
    SELECT *, CAST(count(CASE WHEN NOT discard THEN 1 END) OVER ({_BEFORE}) AS INT) AS requested,
        NOT count_undelivered AS by_receipt,
        (NOT count_undelivered) OR number >= check_max AS uncounted
    FROM ruled),
dued AS (
    SELECT *, CASE WHEN NOT discard THEN ms + check_interval END AS due
    FROM numbered),
linked AS (
    SELECT *, lag(discard) OVER ({_ORDER}) AS last_discard, lag(application) OVER ({_ORDER}) AS last_application,
        lag(ms) OVER ({_ORDER}) AS last_ms, lag(due) OVER ({_ORDER}) AS last_due,
        lag(1) OVER ({_TWIN}) AS twin, lag(application) OVER ({_TWIN}) AS twin_application,
        lag(uncounted) OVER ({_TWIN}) AS twin_uncounted,
        count(CASE WHEN NOT coalesce(by_receipt, FALSE) THEN 1 END) OVER ({_SO_FAR}) = 0 AS all_uncounted
    FROM dued),
timed AS (
    SELECT queue_id, queue_offset, discard, reason, number, ms, turn,
        -- A rebuild resets when it is due by the rules of its first batch: then the earlier of both.
        CASE WHEN NOT last_discard THEN ms - CASE
            WHEN last_application = application THEN last_due
            WHEN last_due IS NOT NULL AND last_ms + first_interval IS NOT NULL
                THEN least(last_due, last_ms + first_interval) END END AS slack,
        due, (NOT discard) AND number > check_max AS over,
        (NOT discard) AND twin IS NOT NULL AND NOT coalesce(uncounted, FALSE) AND NOT coalesce(twin_uncounted, FALSE)
            AND NOT {other} AS again,
        all_uncounted,
        CASE
            WHEN discard AND reason = 'EXPIRED' THEN CASE WHEN check_interval IS NOT NULL THEN CAST(least(
                check_max, {CHECKS_AT_LEAST},
                CAST(floor(max_age / CAST(greatest(check_interval, 1) AS DOUBLE)) AS BIGINT) + 1) AS INT) END
            WHEN discard THEN check_max END AS needed,
        requested,
        CASE WHEN discard AND reason = 'EXPIRED' AND coalesce(last_application = application, FALSE)
            THEN last_due - check_interval - max_age END AS landed_before
    FROM linked)"""
