"""The rules of an op, single and batched, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from checkback.messages.limits import OFFSETS_MAX
from checkback.messages.op import Op, parse_ops
from support.message_lines import ABSENT, BATCHED, OP, line, reason_of


def test_op_has_every_field() -> None:
    assert parse_ops(line(OP)) == [Op(3, 12, "7F000001", "orders", "COMMIT", 1_700_000_000_000)]


@pytest.mark.parametrize(
    ("changes", "offsets"),
    [
        ({"queue_offsets": "12,13,"}, [12, 13]),
        ({"queue_offsets": "12"}, [12]),
        ({"queue_offsets": "0,9223372036854775807"}, [0, 2**63 - 1]),
        ({"queue_offsets": ",".join(map(str, range(OFFSETS_MAX)))}, list(range(OFFSETS_MAX))),
        ({"queue_offsets": "3,12,03,12,1,"}, [3, 12, 1]),
        ({"queue_offsets": "1," * OFFSETS_MAX}, [1]),
    ],
    ids=["two", "one", "limits", "many", "repeats", "one so often"],
)
def test_batched_op_is_one_op_an_offset(changes: dict[str, Any], offsets: list[int]) -> None:
    assert parse_ops(line(BATCHED, **changes)) == [
        Op(3, offset, None, "orders", "COMMIT", 1_700_000_000_000) for offset in offsets
    ]


def test_batched_op_may_state_its_transaction() -> None:
    assert [op.transaction_id for op in parse_ops(line(BATCHED, queue_offsets="1,2", transaction_id="T"))] == ["T", "T"]
    assert [op.transaction_id for op in parse_ops(line(BATCHED, queue_offsets="1", transaction_id=None))] == [None]


def test_recorded_op_has_the_offset_by_its_other_name() -> None:
    recorded = {"half_offset" if name == "queue_offset" else name: value for name, value in OP.items()}
    assert parse_ops(line(recorded)) == parse_ops(line(OP))
    assert parse_ops(line(BATCHED, half_offsets="1,2")) == parse_ops(line(BATCHED, queue_offsets="1,2"))


REJECTED_OPS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    *((OP, {name: ABSENT}, f"{name}: missing") for name in OP),
    (OP, {"state": "UNKNOWN"}, 'state: unknown state "UNKNOWN", neither COMMIT nor ROLLBACK'),
    (OP, {"state": "commit"}, 'state: unknown state "commit", neither COMMIT nor ROLLBACK: did you mean COMMIT?'),
    (
        OP,
        {"state": "ROLLBACK_MESSAGE"},
        'state: unknown state "ROLLBACK_MESSAGE", neither COMMIT nor ROLLBACK: did you mean ROLLBACK?',
    ),
    (OP, {"state": None}, "state: unknown state null"),
    (OP, {"state": ["COMMIT"]}, "state: unknown state an array"),
    (OP, {"queue_offset": -1}, "queue_offset: -1 is negative"),
    (OP, {"queue_offset": False}, "queue_offset: false is not an integer"),
    (OP, {"transaction_id": None}, "transaction_id: null, not a string"),
    (OP, {"queue_offsets": "12,"}, "queue_offsets: queue_offset is there too, only one of them may be"),
    (OP, {"queue_offsets": None}, "queue_offsets: queue_offset is there too"),
    (OP, {"half_offset": 12}, "queue_offset: half_offset, its other name, is there too, only one of them may be"),
    (OP, {"half_offset": None}, "queue_offset: half_offset, its other name, is there too"),
    (OP, {"half_offsets": "12,"}, "queue_offsets: queue_offset is there too"),
    (BATCHED, {"half_offset": 12, "half_offsets": "12,"}, "queue_offsets: queue_offset is there too"),
    (BATCHED, {"half_offsets": "12,", "queue_offsets": "12,"}, "queue_offsets: half_offsets, its other name, is there"),
    (BATCHED, {"half_offset": -1, "transaction_id": "T"}, "queue_offset: -1 is negative"),
    (BATCHED, {"queue_offsets": ""}, 'queue_offsets: "" is no list of offsets like 12,13,'),
    (BATCHED, {"queue_offsets": ","}, 'queue_offsets: "," is no list'),
    (BATCHED, {"queue_offsets": "12,,13"}, 'queue_offsets: "12,,13" is no list'),
    (BATCHED, {"queue_offsets": ",12"}, 'queue_offsets: ",12" is no list'),
    (BATCHED, {"queue_offsets": "12, 13"}, 'queue_offsets: "12, 13" is no list'),
    (BATCHED, {"queue_offsets": "12,x"}, 'queue_offsets: "12,x" is no list'),
    (BATCHED, {"queue_offsets": "12,\u0661"}, 'queue_offsets: "12,\\u0661" is no list'),
    (BATCHED, {"queue_offsets": "12\n"}, 'queue_offsets: "12\\n" is no list'),
    (BATCHED, {"queue_offsets": "-1"}, 'queue_offsets: "-1" is no list'),
    (
        BATCHED,
        {"queue_offsets": "1,9223372036854775808"},
        "queue_offsets: 9223372036854775808 is over 9223372036854775807",
    ),
    (BATCHED, {"queue_offsets": "1," * (OFFSETS_MAX + 1)}, "queue_offsets: more than 10000 offsets"),
    (BATCHED, {"queue_offsets": "1," * OFFSETS_MAX + "1"}, "queue_offsets: more than 10000 offsets"),
    (BATCHED, {"queue_offsets": "1," * 99 + "x"}, "queue_offsets: a string is no list"),
    (BATCHED, {"queue_offsets": [12, 13]}, "queue_offsets: an array, not a string"),
    (BATCHED, {"queue_offsets": None}, "queue_offsets: null, not a string"),
    (BATCHED, {"queue_offsets": "12", "producer_group": ABSENT}, "producer_group: missing"),
    (BATCHED, {"queue_offsets": "12", "transaction_id": ""}, "transaction_id: empty"),
    (BATCHED, {"queue_offsets": "12", "transaction_id": 1}, "transaction_id: an integer, not a string"),
]


@pytest.mark.parametrize(
    ("message", "changes", "reason"), REJECTED_OPS, ids=[reason[:60] for _, _, reason in REJECTED_OPS]
)
def test_op_is_rejected(message: dict[str, Any], changes: dict[str, Any], reason: str) -> None:
    assert reason_of(parse_ops, line(message, **changes)).startswith(reason)
