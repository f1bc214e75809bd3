"""What an operator may do, to which half message, and signed by whom: pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.errors import SettingsError
from checkback.operate.operations import ACTOR_MAX, REASON_MAX, Operation, OperatorSignature, operations_of
from checkback.operate.permissions import RefusedError, judge_resolve, judge_resume
from checkback.operate.transaction import AmbiguousError, Asked, Decision, LandedOp, Place, Transaction, chosen
from operate.fixtures import ALICE, BOB, QUEUE, T0

PENDING = Transaction(Place(0, 12), "tx", "orders", "payments", T0, T0)
OP = LandedOp("COMMIT", "producer", None, T0)
OPERATORS = LandedOp("ROLLBACK", "operator", ALICE.remark, T0)
DISCARDED = replace(PENDING, decision=Decision("DISCARD", "checkback", "CHECK_MAX", 15, T0))
COMMITTED = replace(PENDING, ops=(OP,), decision=Decision("COMMIT", "check", None, 1, T0))
RESUMED = replace(PENDING, place=Place(QUEUE, 0), resumed_from=Place(0, 12), resumed_by=ALICE.remark)


@pytest.mark.parametrize(
    ("transaction", "told"),
    [
        (
            COMMITTED,
            "transaction 0/12: is decided: COMMIT since 2026-01-01 00:00:00 UTC by check; a decision is final",
        ),
        (DISCARDED, "is decided: DISCARD since 2026-01-01 00:00:00 UTC by checkback; resume it: that makes"),
        (replace(DISCARDED, resumed_as=Place(QUEUE, 0)), "it goes on as 2000000000/0"),
        (replace(PENDING, ops=(OP,)), "COMMIT by producer has landed at 2026-01-01 00:00:00 UTC; `checkback reconc"),
        (replace(PENDING, ops=(OPERATORS, OP)), "ROLLBACK by operator (alice) has landed at"),
        (replace(PENDING, committed=True), "is a message without a transaction: it is its own COMMIT (rule 12)"),
    ],
)
def test_resolve_is_refused(transaction: Transaction, told: str) -> None:
    """With the decision, since when and whose; it is no wrong usage."""
    with pytest.raises(RefusedError) as refused:
        judge_resolve(transaction)
    assert told in str(refused.value)
    assert refused.value.exit_code == 1


@pytest.mark.parametrize("transaction", [PENDING, RESUMED])
def test_pending_transaction_may_be_resolved(transaction: Transaction) -> None:
    """A resumed one, too."""
    judge_resolve(transaction)


@pytest.mark.parametrize(
    ("transaction", "told"),
    [
        (PENDING, "is not discarded but pending"),
        (replace(PENDING, ops=(OP,)), "is not discarded but pending"),
        (COMMITTED, "is not discarded but decided: COMMIT since 2026-01-01 00:00:00 UTC by check"),
        (replace(PENDING, committed=True), "is a message without a transaction: it is its own COMMIT (rule 12)"),
        (RESUMED, "was resumed from 0/12 at 2026-01-01 00:00:00 UTC by alice, and is pending"),
        (replace(DISCARDED, resumed_as=Place(QUEUE, 0)), "was discarded, and resumed as 2000000000/0"),
        (
            replace(DISCARDED, real_topic="_delta_log"),
            "is meant for the topic _delta_log, which begins with _ or a dot",
        ),
    ],
)
def test_resume_is_refused(transaction: Transaction, told: str) -> None:
    """Unless it is discarded, and not resumed yet."""
    with pytest.raises(RefusedError) as refused:
        judge_resume(transaction)
    assert told in str(refused.value)


@pytest.mark.parametrize("transaction", [DISCARDED, replace(RESUMED, decision=DISCARDED.decision)])
def test_discarded_message_may_be_resumed(transaction: Transaction) -> None:
    """One that was resumed before, too."""
    judge_resume(transaction)


def test_one_half_message_is_chosen() -> None:
    """By the group or the place where several have the transaction id; else nobody guesses."""
    other = replace(PENDING, producer_group="pay")
    again = replace(PENDING, place=Place(1, 3))
    assert chosen([PENDING], Asked("tx")) is PENDING
    assert chosen([PENDING, other], Asked("tx", group="pay")) is other
    assert chosen([PENDING, again], Asked("tx", place=Place(1, 3))) is again
    for asked in (Asked("tx", group="none"), Asked("tx", place=Place(9, 9)), Asked("tx", "pay", Place(1, 3))):
        with pytest.raises(SettingsError, match="has this transaction id"):
            chosen([PENDING, other, again], asked)
    for several, fix in (([PENDING, other], "--group G"), ([PENDING, again], "--queue-id N --queue-offset N")):
        with pytest.raises(AmbiguousError, match=fix) as ambiguous:
            chosen(several, Asked("tx"))
        assert ambiguous.value.transactions == tuple(several)
        assert ambiguous.value.exit_code == 2


def test_newest_of_a_resumed_message_is_chosen() -> None:
    """Unless the place is named."""
    first = replace(DISCARDED, resumed_as=RESUMED.place)
    assert chosen([first, RESUMED], Asked("tx")) is RESUMED
    assert chosen([first, RESUMED], Asked("tx", place=first.place)) is first


def test_operations_follow_from_ops_and_half_messages() -> None:
    """With the time and the signature of each; a producer's op is none."""
    later = replace(OPERATORS, stored=T0 + timedelta(seconds=9), remark=BOB.remark)
    found = operations_of([replace(RESUMED, ops=(OP, later)), COMMITTED])
    names = ("tx", "orders", "payments")
    assert found == [
        Operation(T0, "RESUME", ALICE, Place(0, 12), *names, Place(QUEUE, 0)),
        Operation(later.stored, "RESOLVE_ROLLBACK", BOB, Place(QUEUE, 0), *names),
    ]


_TEXT = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]).filter(str.isprintable), min_size=1)


@given(_TEXT.filter(lambda text: ": " not in text.strip() and text.strip()), _TEXT.filter(str.strip))
def test_signature_is_read_back_from_the_remark(actor: str, reason: str) -> None:
    """Whatever punctuation it has."""
    signed = OperatorSignature.of(actor[:ACTOR_MAX].strip() or "a", reason[:REASON_MAX].strip() or "b")
    assert OperatorSignature.parse(signed.remark) == signed


@pytest.mark.parametrize(
    ("actor", "reason", "told"),
    [
        ("", "why", "--actor: is empty"),
        ("alice", " ", "--reason: is empty"),
        ("a" * 121, "why", "--actor: 121 characters, over 120"),
        ("alice", "w" * 501, "--reason: 501 characters, over 500"),
        ("alice", "two\nlines", "--reason: is not one line of printable text"),
        ("al\x1b[2Jice", "why", "--actor: is not one line of printable text"),
        ("alice\u202e", "why", "--actor: is not one line of printable text"),
        ("alice: root", "why", '--actor: has a ": "'),
    ],
)
def test_signature_is_one_line_of_printable_text(actor: str, reason: str, told: str) -> None:
    with pytest.raises(SettingsError) as refused:
        OperatorSignature.of(actor, reason)
    assert str(refused.value).startswith(told)


def test_longest_signature_is_taken() -> None:
    assert OperatorSignature.of("a" * ACTOR_MAX, "w" * REASON_MAX).remark == "a" * ACTOR_MAX + ": " + "w" * REASON_MAX
