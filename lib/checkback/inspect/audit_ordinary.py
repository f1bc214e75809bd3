"""Transactions that took one of the usual courses, recognized in bulk: the audit need not look closer at them. SQL.

`audit_facts` computes some sixty facts of each transaction, which takes ten times as long as reading the tables. Most
transactions have one half message, one op of their own, one decision that says the same, one row in their topic with
the same content, and nothing else: then that alone tells the findings. All others go through the facts.

An ordinary transaction is one of which the facts could give no findings but those of its course. Therefore each
comparison here is the one of `audit_rules`, by the same hashes; whatever is out of the ordinary about a row, if only
that a value is missing, makes the transaction one that is looked at.
"""

from __future__ import annotations

from checkback.inspect.audit_facts import COMMITS, OF_HALF, OF_TOPIC, REJECTED_ROWS, ROLLBACKS, STATE_BITS, WHO, content

#: Bits of a transaction's rows. OTHER: a row that an ordinary one does not have. NAMED: one of a table that is not read
#: in parts.
_HALF, _TOPIC, _OTHER, _NAMED = 1, 2, 4, 8
#: by how many bits the state of the op, and that of the decision, are shifted: COMMIT or ROLLBACK, by source
_OP, _DECISION = 8, 16
_STATE = COMMITS | ROLLBACKS
_KEY = ("queue_id", "queue_offset")
_TOPIC_KEY = ("half_queue_id", "half_queue_offset")
#: who: a hash of half message, op and decision; content: of half message and topic's row; born: of the half message, ms
_COLUMNS = ("who", "content", "born")


def ordinary(*, ignore_case: bool) -> str:
    """SQL: queue_id, queue_offset, labels, born (ms) of each transaction; labels null: it is not an ordinary one.

    It reads the tables and `topics`, as `audit_facts.facts`.
    """
    decided = f"(bits & {_STATE << _OP}) * {1 << _DECISION - _OP} = (bits & {_STATE << _DECISION})"
    # With so many rows, and one of each kind at least, there is one of each.
    once = f"(bits & {_OTHER | _NAMED}) = 0 AND (bits & {_HALF}) <> 0 AND {decided} AND first_who = last_who"
    committed = f"rows = 4 AND {once} AND (bits & {_TOPIC}) <> 0 AND (bits & {COMMITS << _OP}) <> 0 AND contents = 0"
    rolled_back = f"rows = 3 AND {once} AND (bits & {_TOPIC}) = 0 AND (bits & {ROLLBACKS << _OP}) <> 0"
    # Rows of tables that are not read in parts are here in every part; by themselves they mean nothing.
    return f"""
        WITH all_rows AS ({" UNION ALL ".join(_sources(ignore_case))}),
        briefs AS (
            SELECT queue_id, queue_offset, count(*) AS rows, bit_or(bits) AS bits, max(born) AS born,
                min(who) AS first_who, max(who) AS last_who, bit_xor(content) AS contents
            FROM all_rows GROUP BY queue_id, queue_offset)
        SELECT queue_id, queue_offset, born, CASE
            WHEN {committed} THEN 'halves,published'
            WHEN rows = 1 AND bits = {_HALF} THEN 'halves,pending'
            WHEN {rolled_back} THEN 'halves,rolled_back' END AS labels
        FROM briefs WHERE bits <> {_NAMED}"""


def _rows(table: str, bits: str, key: tuple[str, str] = _KEY, **columns: str) -> str:
    values = ", ".join(f"CAST({columns.get(name, 'NULL')} AS BIGINT) AS {name}" for name in _COLUMNS)
    return (
        f"SELECT {key[0]} AS queue_id, {key[1]} AS queue_offset, CAST({bits} AS BIGINT) AS bits, {values} FROM {table}"
    )


def _if(condition: str, bits: int | str, otherwise: int | str = _OTHER) -> str:
    return f"CASE WHEN {condition} THEN {bits} ELSE {otherwise} END"


def _sources(ignore_case: bool) -> list[str]:
    said = "state IN ('COMMIT', 'ROLLBACK')"
    at_once = "delay_ms IS NULL AND deliver_at IS NULL AND NOT coalesce(committed, FALSE)"
    # A COMMIT of before 1970 would be due by its delay of 0 (rule 10).
    decided = f"{said} AND deliver_at IS NULL AND coalesce(unix_millis(decided_at) >= 0, FALSE)"
    others = ("check_requests", "deliveries", "discarded")
    return [
        _rows(
            "{half}",
            _if(at_once, _HALF, _HALF | _OTHER),
            born="unix_millis(least(born_timestamp, store_timestamp))",
            who=WHO,
            content=content(*OF_HALF, ignore_case=ignore_case),
        ),
        _rows(
            "{op}",
            # One in the batched form states no transaction id: it is the half message's own all the same (rule 2).
            _if(
                f"{said} AND producer_group IS NOT NULL AND transaction_id IS NOT NULL",
                f"({STATE_BITS}) * {1 << _OP}",
            ),
            ("queue_id", "half_offset"),
            who=WHO,
        ),
        _rows("{decisions}", _if(decided, f"({STATE_BITS}) * {1 << _DECISION}"), who=WHO),
        _rows("{topics}", str(_TOPIC), _TOPIC_KEY, content=content(*OF_TOPIC, ignore_case=ignore_case)),
        *(_rows(f"{{{name}}}", str(_OTHER)) for name in others),
        _rows("{unpublished}", str(_OTHER), _TOPIC_KEY),
        _rows(REJECTED_ROWS, str(_NAMED)),
    ]
