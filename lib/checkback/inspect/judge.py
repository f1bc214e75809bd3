"""Which findings apply to a transaction: conditions on its facts (`facts.facts`), as Spark columns."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from checkback.inspect.facts import COMMITS, DISCARD, REJECTED_EARLY, REJECTED_HALF, REJECTED_OP, ROLLBACKS

if TYPE_CHECKING:
    from pyspark.sql import Column

    from checkback.settings import Transaction

#: What landed so long before a batch was surely there when it began: clocks differ, and a commit takes its time.
MARGIN = timedelta(minutes=10)


def conditions(transaction: Transaction, batch_time: int | None, half_until: int | None) -> dict[str, Column]:
    """By the name of a finding: does a transaction have it? A null counts as no.

    ``batch_time``: ms of the last batch; what landed up to ``half_until`` (ms) of `half`, it has read. None: not known.
    """
    return {
        **_states(),
        **_publishing(),
        **_deciding(),
        **_checking(transaction),
        **_sources(transaction, batch_time, half_until),
    }


def _there(name: str) -> Column:
    return F.col(name) > 0


def _has(column: str, bits: int) -> Column:
    return F.col(column).bitwiseAND(bits) != 0


def _decided(bits: int) -> Column:
    return _has("decision_states", bits)


def _lacks_op(bits: int) -> Column:
    """Is there a decision of these bits without an op that says the same, from the same source?"""
    missing = F.col("decision_states").bitwiseAND(F.bitwise_not("op_states")).bitwiseAND(F.lit(bits))
    return _there("halves") & (missing != 0)


def _unlike(name: str, first: str, others: str) -> Column:
    """Is one of the hashes in ``name`` of no half message of this offset?"""
    of_half = F.array_append(F.col(others), F.col(first))
    return _there("halves") & (F.size(F.array_except(F.filter(name, lambda value: value.isNotNull()), of_half)) > 0)


def _states() -> dict[str, Column]:
    undecided = ~_there("decisions") & ~_there("published") & ~_there("discarded")
    return {
        "halves": _there("halves"),
        "published": _there("published"),
        "rolled_back": _decided(ROLLBACKS),
        "discarded": _there("discarded"),
        "pending": _there("halves") & undecided,
        "half_repeated": (F.col("halves") > 1) & _has("rejected", REJECTED_HALF),
        "half_not_rejected": (F.col("halves") > 1) & ~_has("rejected", REJECTED_HALF),
    }


def _publishing() -> dict[str, Column]:
    return {
        "published_without_half": _there("published") & ~_there("halves"),
        "published_without_commit": _there("published") & ~_decided(COMMITS),
        "published_twice": F.col("published") > 1,
        "published_and_discarded": _there("published") & _there("discarded"),
        "published_differs": _unlike("topic_contents", "content", "half_contents"),
        "commit_not_published": _decided(COMMITS) & ~_there("published") & ~_there("unpublished"),
        "unpublished": _decided(COMMITS) & ~_there("published") & _there("unpublished"),
        "discarded_without_half": _there("discarded") & ~_there("halves"),
        "discarded_without_decision": _there("discarded") & ~_decided(DISCARD),
        "discarded_twice": F.col("discarded") > 1,
        "discarded_differs": _unlike("discarded_contents", "content", "half_contents"),
        "discard_not_kept": _decided(DISCARD) & ~_there("discarded"),
    }


def _deciding() -> dict[str, Column]:
    commit_said = _has("op_states", COMMITS) & ~_decided(COMMITS)
    rollback_said = _has("op_states", ROLLBACKS) & ~_decided(ROLLBACKS)
    return {
        "decision_without_half": _there("decisions") & ~_there("halves"),
        "decided_twice": F.col("decisions") > 1,
        "decision_of_another": _unlike("decision_owners", "who", "half_owners"),
        "commit_without_op": _lacks_op(COMMITS),
        "rollback_without_op": _lacks_op(ROLLBACKS),
        "op_conflict": _there("decisions") & (commit_said | rollback_said),
    }


def _checking(transaction: Transaction) -> dict[str, Column]:
    interval_ms = round(transaction.check_interval.total_seconds() * 1000)
    return {
        "check_without_half": _there("checks") & ~_there("halves"),
        "check_over_limit": F.col("last_check") > transaction.check_max,
        # By the count, not by the clock, which may be put back: a decision says after how many checks it came.
        "check_after_decision": F.col("last_check") > F.col("decided_checks") + F.col("undelivered"),
        "check_too_early": F.col("first_check_at") <= F.col("immune_until"),
        "check_too_close": F.col("least_gap") < interval_ms,
        "check_twice": F.col("repeated_checks") > F.col("undelivered"),
    }


def _sources(transaction: Transaction, batch_time: int | None, half_until: int | None) -> dict[str, Column]:
    recorded = _has("rejected", REJECTED_OP | REJECTED_EARLY)
    early = _there("ops") & ~_there("halves")
    alien = _there("alien_ops") & _there("halves")
    passed_over = not_rejected = F.lit(False)
    if batch_time is not None:
        before = batch_time - MARGIN // timedelta(milliseconds=1)
        not_rejected = F.col("alien_landed") < before * 1000
        if half_until is not None:
            read = F.col("landed") < (half_until - MARGIN // timedelta(milliseconds=1)) * 1000
            reserved = transaction.reserved // timedelta(milliseconds=1)
            overdue = (F.col("op_landed") < before * 1000) | (F.col("born") < before - reserved)
            passed_over = read & overdue
    return {
        "op_rejected": (early | alien) & recorded,
        "op_without_half": early & ~recorded,
        "op_not_rejected": alien & ~_has("rejected", REJECTED_OP) & not_rejected,
        "pending_overdue": _states()["pending"] & passed_over,
    }
