"""Counts of what a batch did, and of what is pending and scheduled, as the segments report."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from xxhash import xxh64_intdigest

from checkback.reconcile.records.actions import AS_BEFORE, GROUP
from checkback.reconcile.records.segment_records import Action
from checkback.storage.valid_texts import valid_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from checkback.reconcile.records.actions import Actions
    from checkback.reconcile.records.segment_records import Records

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


_FIELDS = ("queue_id", "segment", "pending", "oldest", "scheduled")
#: of org.apache.spark.sql.catalyst.expressions.XxHash64
_SEED = 42

_Groups = list[tuple[int, int, int]]


def xxhash64(text: str) -> int:
    """Spark's function xxhash64 of a string: signed, seed 42."""
    found = xxh64_intdigest(text.encode(errors="surrogatepass"), _SEED)
    return found - (found >> 63 << 64)


def names_by_hash(groups: Iterable[str]) -> dict[int, str]:
    """The groups by the hashes that events and actions name them by, as `identity_columns` does."""
    found = {}
    for name in groups:
        found[xxhash64(hashlib.sha1(name.encode()).hexdigest())] = name  # noqa: S324 - not for security
    return found


class PendingCount:
    """The segments with pending half messages or scheduled messages, each as of the last batch that touched it.

    ``groups``: those with a count of their own; all others are OTHER. Segments that no batch has touched since the
    start are known only if ``update`` was called for them before.
    """

    def __init__(self, groups: Iterable[str] = ()) -> None:
        self._names: Mapping[int, str] = names_by_hash(groups)
        self._segments: dict[tuple[int, int], tuple[int, int, int, _Groups]] = {}
        self._lock = threading.Lock()

    def update(self, told: Records, groups: Records | None = None) -> None:
        """Apply the SEGMENT records (`reconcile.records.actions`) of a batch, and their GROUP records."""
        of: dict[tuple[int, int], _Groups] = {}
        for queue_id, segment, *group in (np.empty(0, GROUP) if groups is None else groups).tolist():
            of.setdefault((queue_id, segment), []).append((group[0], group[1], group[2]))
        with self._lock:
            columns = (told[name].tolist() for name in _FIELDS)
            for queue_id, segment, pending, oldest, scheduled in zip(*columns, strict=True):
                if pending == AS_BEFORE:
                    continue
                key = queue_id, segment
                # Deliveries alone do not read the block: what is pending is as before.
                before = self._segments.get(key, (0, 0, 0, []))[3] if pending else []
                if pending or scheduled:
                    self._segments[key] = pending, oldest, scheduled, of.get(key, before)
                else:
                    self._segments.pop(key, None)

    @property
    def scheduled(self) -> int:
        """Number of scheduled messages."""
        with self._lock:
            return sum(scheduled for _, _, scheduled, _ in self._segments.values())

    def by_group(self) -> dict[str, tuple[int, int | None]]:
        """By group its pending half messages, and born_timestamp of the oldest (ms; None = nothing is pending)."""
        found: dict[str, tuple[int, int | None]] = dict.fromkeys((*self._names.values(), OTHER), (0, None))
        with self._lock:
            for pending, oldest, _, groups in self._segments.values():
                told = sum(number for _, number, _ in groups)
                # A segment reports its largest groups only.
                rest = [(0, pending - told, oldest)] if pending > told else []
                for group, number, since in (*groups, *rest):
                    name = self._names.get(group, OTHER)
                    count, first = found[name]
                    found[name] = count + number, since if first is None else min(first, since)
        return found
