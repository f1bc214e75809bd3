"""What a batch did, in numbers. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.reconcile.segment import Action

if TYPE_CHECKING:
    import pyarrow as pa

    from checkback.reconcile.actions import Actions

_NAMES = {
    "commit": (Action.COMMIT,),
    "rollback": (Action.ROLLBACK,),
    "discard": (Action.DISCARD,),
    "check": (Action.CHECK,),
    "rejected_op": (Action.REJECT_OP,),
    "rejected_half": (Action.REJECT_HALF,),
}


def counts(actions: Actions) -> dict[str, int]:
    """Actions of a batch of `reconcile`: commit, rollback, discard, check, rejected_op, rejected_half.

    An op that came after the decision is not among the rejected ones, whatever it says.
    """
    return {name: actions.count(*kinds) for name, kinds in _NAMES.items()}


def outcomes(answers: pa.Table) -> dict[tuple[str, str], int]:
    """By (outcome, producer_group), how many ``answers`` (CHECK_ANSWERS)."""
    found = answers.group_by(["outcome", "producer_group"]).aggregate([([], "count_all")])
    columns = (found.column(name).to_pylist() for name in ("outcome", "producer_group", "count_all"))
    return {(outcome, group): count for outcome, group, count in zip(*columns, strict=True)}
