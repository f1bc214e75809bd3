"""What an operator may do with a transaction, and what is refused and why. Pure: no tables, no clock.

Operators are bound by the protocol: one decision per transaction, by its first op. Therefore an op is appended only if
there is none, and a discarded message is resumed as a new half message; its decision stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.errors import CheckbackError
from checkback.messages.names import reserved
from checkback.operate.operations import OperatorSignature
from checkback.operate.transaction import readable

if TYPE_CHECKING:
    from checkback.operate.transaction import Transaction


#: decisions whose message is in `discarded`
_KEPT = ("DISCARD", "CANCEL")


class RefusedError(CheckbackError):
    """The transaction is not in a state that allows the action."""


def judge_resolve(transaction: Transaction) -> None:
    """Verify that an op may be appended. Raises RefusedError if it is decided, or an op of it has landed."""
    where = _name(transaction)
    if transaction.decision is not None:
        fix = "a decision is final"
        if transaction.resumed_as is not None:
            fix = f"it goes on as {transaction.resumed_as}"
        elif transaction.decision.state in _KEPT:
            fix = "resume it: that makes a new half message of it"
        raise RefusedError(f"is decided: {_decision(transaction)}", where, fix)
    if transaction.committed:
        raise _own_commit(transaction)
    if transaction.ops:
        op = transaction.ops[0]
        signed = f" ({OperatorSignature.parse(op.remark).actor})" if op.source == "operator" else ""
        raise RefusedError(
            f"{op.state} by {op.source}{signed} has landed at {readable(op.stored)}",
            where,
            "`checkback reconcile` decides by it when it next runs",
        )


def judge_cancel(transaction: Transaction) -> None:
    """Verify that it may be cancelled. Raises RefusedError unless it is scheduled, and no CANCEL of it has landed."""
    where, decision = _name(transaction), transaction.decision
    if decision is None and transaction.committed:
        raise _own_commit(transaction)
    if decision is None:
        raise RefusedError("is not scheduled but pending", where, "a ROLLBACK ends it")
    if decision.state == "CANCEL":
        raise RefusedError(f"is cancelled already: {_decision(transaction)}", where, "a decision is final")
    if decision.state != "COMMIT" or transaction.deliver_at is None:
        raise RefusedError(f"is not scheduled but decided: {_decision(transaction)}", where, "a decision is final")
    if transaction.delivered_at is not None and transaction.unpublished is not None:
        what = f"came due at {readable(transaction.delivered_at)}, and its topic's table did not take it"
        fix = "it is published once that does: `checkback tx describe` says whether it is; nothing can stop it any more"
        raise RefusedError(f"{what}: {transaction.unpublished}", where, fix)
    if transaction.delivered_at is not None:
        what = f"was published at {readable(transaction.delivered_at)}, when its time had come"
        raise RefusedError(what, where, "tell its consumers")
    if transaction.cancels:
        op = transaction.cancels[0]
        actor = OperatorSignature.parse(op.remark).actor if op.source == "operator" else "its producer"
        raise RefusedError(
            f"CANCEL by {actor} has landed at {readable(op.stored)}",
            where,
            "`checkback reconcile` applies it when it next runs",
        )


def judge_resume(transaction: Transaction) -> None:
    """Verify that it may be resumed. Raises RefusedError unless it is discarded and not resumed yet."""
    where = _name(transaction)
    if transaction.resumed_as is not None:
        fix = "that one goes on"
        raise RefusedError(f"was discarded, and resumed as {transaction.resumed_as}", where, fix)
    if transaction.decision is None and transaction.resumed_from is not None:
        by = OperatorSignature.parse(transaction.resumed_by).actor
        raise RefusedError(
            f"was resumed from {transaction.resumed_from} at {readable(transaction.stored)} by {by}, and is pending",
            where,
            "wait for its decision, or resolve it by hand",
        )
    if transaction.decision is None and transaction.committed:
        raise _own_commit(transaction)
    if transaction.decision is None:
        raise RefusedError("is not discarded but pending", where, "wait for its decision, or resolve it by hand")
    if transaction.decision.state in _KEPT and (why := reserved(transaction.real_topic)) is not None:
        what = f"is meant for the topic {transaction.real_topic}, which {why}"
        raise RefusedError(what, where, "no table can be created for it")
    if transaction.decision.state not in _KEPT:
        raise RefusedError(f"is not discarded but decided: {_decision(transaction)}", where, "a decision is final")
    if transaction.erased:
        raise RefusedError("was erased", where, "nothing of it is left to publish")


def _own_commit(transaction: Transaction) -> RefusedError:
    return RefusedError(
        "is a message without a transaction: it is its own COMMIT (rule 12), whatever op lands",
        _name(transaction),
        "`checkback reconcile` publishes or schedules it when it next runs; it may be cancelled once it is scheduled",
    )


def _name(transaction: Transaction) -> str:
    return f"transaction {transaction.place}"


def _decision(transaction: Transaction) -> str:
    decision = transaction.decision
    return "" if decision is None else f"{decision.state} since {readable(decision.decided_at)} by {decision.source}"
