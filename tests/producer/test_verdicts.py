"""The verdicts on played behaviours: nothing is wrong with an honest play, and every kind of lie is found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from checkback.check.query import COUNTED
from checkback.producer import LocalTransactionState, SendStatus, TransactionSendResult
from conftest import TRACE
from producer.playing import Part
from producer.recorded import DECISIVE, EXCEPTION, GONE, UNKNOWN, Behaviour, behaviours, immunity_s
from producer.verdicts import Evidence, Row, Rules, faults, kept_properties

RULES = Rules(4, 2, 15, {"a": "A", "b": "B"})
#: each script once
PLAN = list({behaviour.script: behaviour for behaviour in behaviours(TRACE, 1.0, 1)}.values())
_BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)
_ACCEPTED, _REPEATED, _CONTRADICTION = (200, ""), (200, "repeated"), (409, "contradiction")


def honest(*plan: Behaviour) -> tuple[list[Part], Evidence]:
    """A plan as it is played with checks and answers that take no time."""
    parts: list[Part] = []
    evidence = Evidence([], [], [], [], [], [], [])
    for offset, behaviour in enumerate(plan):
        parts.append(_played(behaviour, offset))
        _tell(parts[-1], offset, evidence)
    return parts, evidence


def _played(behaviour: Behaviour, offset: int) -> Part:
    name = behaviour.message.transaction_id or f"made-{offset}"
    state = behaviour.local if behaviour.local in DECISIVE else UNKNOWN
    error = RuntimeError() if behaviour.local == EXCEPTION else None
    result = TransactionSendResult(
        SendStatus.SEND_OK,
        name,
        LocalTransactionState(state),
        0,
        offset,
        op_sent=state != UNKNOWN,
        local_error=error,
    )
    part = Part(behaviour, name, result)
    if behaviour.misdirected is not None:
        part.by_hand.append((behaviour.misdirected, 422, "wrong_group"))
    for number in range(len(behaviour.own) - len(behaviour.later), len(behaviour.own)):
        own = behaviour.own[number]
        status = _ACCEPTED if number == 0 else _REPEATED if own == behaviour.own[0] else _CONTRADICTION
        part.by_hand.append((own, *status))
    return part


def _tell(part: Part, offset: int, evidence: Evidence) -> None:
    """Append the rows of one transaction: its own op first of all, where it has one, else checks to their end."""
    behaviour, message = part.behaviour, part.behaviour.message
    place: Row = {"queue_id": 0, "queue_offset": offset}
    names = {"transaction_id": part.transaction_id, "producer_group": behaviour.group}
    kept = names | {"tags": message.tags, "keys": message.keys, "properties": kept_properties(message)}
    evidence.halves.append(place | kept | {"born_timestamp": _BEGAN, "store_timestamp": _BEGAN})
    own = immunity_s(message)
    now = _BEGAN + timedelta(seconds=RULES.timeout_s if own is None else own)
    ended, source, checks = "DISCARD", "checkback", 0
    if behaviour.own:
        ended, source, now = behaviour.own[0], "producer", _BEGAN
        evidence.ops.append(_op(place, ended, source, now))
    while ended == "DISCARD" and checks < RULES.check_max:
        checks += 1
        endpoint = "ab"[(checks - 1) % 2]
        said = behaviour.says(checks, endpoint.upper())
        said = "NO_ANSWER" if behaviour.group == GONE else UNKNOWN if said == EXCEPTION else said
        evidence.requests.append(place | {"check_times": checks, "requested_at": now})
        evidence.answers.append(place | {"check_times": checks, "endpoint": endpoint, "outcome": said, "error": None})
        if said in DECISIVE:
            ended, source = said, "check"
            evidence.ops.append(_op(place, ended, source, now))
        elif checks == RULES.check_max:
            evidence.ops.append(_op(place, COUNTED, "check", now))
        now += timedelta(seconds=RULES.check_interval_s)
    reason = "CHECK_MAX" if ended == "DISCARD" else None
    decision = {"state": ended, "source": source, "reason": reason, "check_times": checks, "decided_at": now}
    evidence.decisions.append(place | names | decision)
    if ended == "COMMIT":
        at = {"half_queue_id": 0, "half_queue_offset": offset, "queue_id": message.real_queue_id}
        evidence.published.append(kept | at | {"topic": message.topic, "body": message.body})
    if ended == "DISCARD":
        real = {"real_topic": message.topic, "real_queue_id": message.real_queue_id, "body": message.body}
        evidence.discarded.append(place | kept | real)


def _op(place: Row, state: str, source: str, now: datetime) -> Row:
    times = {"born_timestamp": now, "store_timestamp": now}
    return {"queue_id": 0, "queue_offset": place["queue_offset"], "state": state, "source": source, **times}


def test_honest_play_has_no_fault() -> None:
    """And is of every kind."""
    parts, evidence = honest(*PLAN)
    assert faults(parts, evidence, RULES) == []
    kinds = {(row["state"], row["source"]) for row in evidence.decisions}
    assert kinds == {
        ("COMMIT", "producer"),
        ("ROLLBACK", "producer"),
        ("COMMIT", "check"),
        ("ROLLBACK", "check"),
        ("DISCARD", "checkback"),
    }


def _again(rows: list[Row], row: Row) -> None:
    rows.append(dict(row))


def _gone(rows: list[Row], row: Row) -> None:
    rows[:] = [kept for kept in rows if kept is not row]


def _with(**fields: Any) -> Callable[[list[Row], Row], None]:
    """Another value: what the function makes of the one there is, or the value that is given."""
    return lambda _, row: row.update({name: f(row[name]) if callable(f) else f for name, f in fields.items()})


def _other(state: str) -> str:
    return "ROLLBACK" if state == "COMMIT" else "COMMIT"


def _earlier(moment: datetime) -> datetime:
    return moment - timedelta(milliseconds=1)


_by_another = _with(endpoint="c")

LIES: Sequence[tuple[str, Callable[[list[Row], Row], None]]] = [
    *((name, _again) for name in ("halves", "decisions", "published", "discarded", "requests", "answers")),
    *((name, _gone) for name in ("halves", "decisions", "published", "discarded", "requests", "answers", "ops")),
    *((name, _with(body=lambda body: body[1:])) for name in ("published", "discarded")),
    *((name, _with(properties={})) for name in ("published", "discarded")),
    ("published", _with(topic=lambda topic: topic + "x")),
    ("published", _with(half_queue_offset=lambda offset: offset + 1)),
    ("published", _with(queue_id=lambda queue_id: queue_id + 1)),
    ("discarded", _with(transaction_id=lambda name: name + "x")),
    ("decisions", _with(state=_other)),
    ("decisions", _with(source=lambda source: "check" if source == "producer" else "producer")),
    ("decisions", _with(check_times=lambda times: times + 1)),
    ("ops", _with(state=_other)),
    ("answers", _with(outcome=lambda outcome: "COMMIT" if outcome == UNKNOWN else UNKNOWN)),
    ("answers", _by_another),
    ("requests", _with(requested_at=_earlier)),
    ("requests", _with(requested_at=lambda moment: moment + timedelta(hours=1))),
]


@given(st.sampled_from(LIES), st.data())
def test_every_lie_of_a_table_is_found(lie: tuple[str, Callable[[list[Row], Row], None]], data: st.DataObject) -> None:
    """One row more, less or different."""
    table, tell = lie
    parts, evidence = honest(data.draw(st.sampled_from([one for one in PLAN if getattr(honest(one)[1], table)])))
    rows = getattr(evidence, table)
    row = data.draw(st.sampled_from(rows))
    assume(tell is not _by_another or parts[0].behaviour.group != GONE)
    tell(rows, row)
    assert faults(parts, evidence, RULES) != []


@pytest.mark.parametrize(
    "changes",
    [
        {"send_status": SendStatus.NO_ANSWER},
        {"transaction_id": "another"},
        {"op_sent": None},
        {"local_transaction_state": None},
        {"local_error": None},
        {"queue_offset": -1},
    ],
)
def test_every_lie_of_the_sdk_is_found(changes: dict[str, Any]) -> None:
    """None: another value than the one there is."""
    for behaviour in PLAN:
        parts, evidence = honest(behaviour)
        result = parts[0].result
        assert result is not None
        others = {
            "op_sent": not result.op_sent,
            "local_error": RuntimeError() if result.local_error is None else None,
            "local_transaction_state": LocalTransactionState(_other(result.local_transaction_state.value)),
        }
        told = {name: others[name] if value is None else value for name, value in changes.items()}
        parts[0].result = dataclasses.replace(result, **told)  # type: ignore[arg-type]  # each its own kind
        assert faults(parts, evidence, RULES) != [], behaviour.label


def test_discard_while_an_op_had_come_is_found() -> None:
    """Checked to the end although the producer had committed."""
    parts, evidence = honest(*(behaviour for behaviour in PLAN if behaviour.group == GONE))
    (row,) = evidence.decisions
    evidence.ops.append(_op(row, "COMMIT", "producer", _BEGAN))
    assert any("before that came ['COMMIT']" in fault for fault in faults(parts, evidence, RULES))


def test_the_last_check_is_requested_again_until_it_was_sent() -> None:
    """Right before the row that says so, wrong after it."""
    parts, evidence = honest(*(behaviour for behaviour in PLAN if behaviour.group == GONE))
    (decision,), (told,) = evidence.decisions, evidence.ops
    for rows in (evidence.requests, evidence.answers, evidence.ops):
        rows.append(dict(rows[-1]))
    again = evidence.requests[-1]["requested_at"] + timedelta(seconds=RULES.check_interval_s)
    evidence.requests[-1]["requested_at"] = again
    decision["decided_at"] += timedelta(seconds=RULES.check_interval_s)
    told["store_timestamp"] = again
    assert faults(parts, evidence, RULES) == []
    told["store_timestamp"] = again - timedelta(minutes=1)
    assert any("again after it was sent" in fault for fault in faults(parts, evidence, RULES))
