"""Counts of what a batch did. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from checkback.reconcile.records.records import Action
from checkback.storage.valid_texts import valid_texts

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from checkback.reconcile.records.actions import Actions

#: label for groups without one of their own: messages may contain any group name
OTHER = "other"
_NAMES = {
    "commit": (Action.COMMIT, Action.SCHEDULE),
    "rollback": (Action.ROLLBACK,),
    "discard": (Action.DISCARD,),
    "cancel": (Action.CANCEL,),
    "schedule": (Action.SCHEDULE,),
    "deliver": (Action.DELIVER,),
    "check": (Action.CHECK,),
    "rejected_op": (Action.REJECT_OP,),
    "rejected_half": (Action.REJECT_HALF,),
}


#: the actions of each state of a decision
_STATES = {name.upper(): _NAMES[name] for name in ("commit", "rollback", "discard", "cancel")}


def counts(actions: Actions) -> dict[str, int]:
    """Actions of a batch of `reconcile`, by the names of _NAMES.

    A COMMIT that schedules its message counts as both. An op after the decision does not count as rejected, whatever
    its content.
    """
    return {name: actions.count(*kinds) for name, kinds in _NAMES.items()}


def decisions(actions: Actions, names: Mapping[int, str]) -> dict[tuple[str, str], int]:
    """Number of decisions of a batch by (state, group); ``names``: of the groups by hash, others are OTHER."""
    found = Counter[tuple[str, str]]()
    for state, kinds in _STATES.items():
        groups = actions.only(*kinds).records["group"]
        for group, number in zip(*(part.tolist() for part in np.unique(groups, return_counts=True)), strict=True):
            found[state, names.get(group, OTHER)] += number
    return dict(found)


def lateness(actions: Actions) -> float:
    """How late the latest delivery of a batch was, in seconds from its deliver_at to the batch; 0 without one."""
    delivered = actions.only(Action.DELIVER).records
    return max(0.0, (actions.batch_time - int(delivered["due"].min())) / 1000) if len(delivered) else 0.0


def outcomes(answers: pa.Table) -> dict[tuple[str, str], int]:
    """Number of ``answers`` (CHECK_ANSWERS) by (outcome, producer_group)."""
    about = valid_texts(answers.select(["outcome", "producer_group"]))
    found = about.group_by(about.column_names).aggregate([([], "count_all")])
    columns = (found.column(name).to_pylist() for name in ("outcome", "producer_group", "count_all"))
    return {(outcome, group): count for outcome, group, count in zip(*columns, strict=True)}


def by_group(outcomes: Mapping[tuple[str, str], int], most: int) -> dict[str, Counter[str]]:
    """Outcomes by producer_group, for the ``most`` groups with the most checks; all others are merged into OTHER.

    Group names come from producers: their number is unbounded.
    """
    checks = Counter[str]()
    for (_, group), count in outcomes.items():
        checks[group] += count
    told = {group for group, _ in checks.most_common(most)}
    found: dict[str, Counter[str]] = {}
    for (outcome, group), count in outcomes.items():
        found.setdefault(group if group in told else OTHER, Counter())[outcome] += count
    return found
