"""Which findings apply to a transaction: predicates on its facts (`audit_facts.facts`), as Spark columns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from checkback.inspect.audit_facts import (
    COMMITS,
    DISCARD,
    REJECTED_CANCEL,
    REJECTED_EARLY,
    REJECTED_HALF,
    REJECTED_OP,
    ROLLBACKS,
    SCHEDULED,
)
from checkback.inspect.batches import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column

    from checkback.inspect.batches import Epoch

#: What landed this long before a batch began was certainly visible to it, despite clock skew and commit latency.
MARGIN = timedelta(minutes=10)
_MARGIN_MS = MARGIN // timedelta(milliseconds=1)


@dataclass(frozen=True)
class RulesInForce:
    """What is known about the batches that read the half messages; times are ms.

    ``batch_time``: of the last one. It has read all of `half` that landed up to ``half_until``. None: unknown.
    ``epochs``: the rules, in order. By the last of them, ``longest``: from a check to the next; ``enough``: checks
    required before EXPIRED. ``past``: whether there were earlier batches, of which nothing is known. ``uncounted``:
    whether checks ever counted only when they were received.
    """

    batch_time: int | None
    half_until: int | None
    epochs: Sequence[Epoch] = ()
    longest: int = 0
    enough: int = 0
    uncounted: bool = False
    past: bool = True


def conditions(known: RulesInForce) -> dict[str, Column]:
    """By name of a finding: whether a transaction has it. Null counts as false."""
    return {
        **_states(),
        **_publishing(),
        **_scheduling(known),
        **_deciding(),
        **_checking(known),
        **_discarding(),
        **_sources(known),
    }


def _there(name: str) -> Column:
    return F.col(name) > 0


def _has(column: str, bits: int) -> Column:
    return F.col(column).bitwiseAND(bits) != 0


def _decided(bits: int) -> Column:
    return _has("decision_states", bits)


def _lacks_op(bits: int) -> Column:
    """Whether there is a decision with these bits but no op with the same state and source."""
    missing = F.col("decision_states").bitwiseAND(F.bitwise_not("op_states")).bitwiseAND(F.lit(bits))
    return _there("halves") & (missing != 0)


def _unlike(name: str, first: str, others: str) -> Column:
    """Whether a hash in ``name`` belongs to none of the half messages at this offset."""
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
        "published_and_discarded": _there("published") & (_there("discarded") | _there("cancelled")),
        "published_differs": _unlike("topic_contents", "content", "half_contents"),
        "commit_not_published": _decided(COMMITS) & ~_there("published") & ~_there("unpublished") & ~_waiting(),
        "unpublished": _decided(COMMITS) & ~_there("published") & _there("unpublished"),
        "discarded_without_half": (_there("discarded") | _there("cancelled")) & ~_there("halves"),
        "discarded_without_decision": (_there("discarded") & ~_decided(DISCARD))
        | (_there("cancelled") & ~_there("cancels")),
        "discarded_twice": F.col("discarded") + F.col("cancelled") > 1,
        "discarded_differs": _unlike("discarded_contents", "content", "half_contents"),
        "discard_not_kept": (_decided(DISCARD) & ~_there("discarded")) | (_there("cancels") & ~_there("cancelled")),
    }


def _waiting() -> Column:
    """Whether the message is scheduled, or was cancelled."""
    return _decided(SCHEDULED) & ~_there("deliveries")


def _scheduling(known: RulesInForce) -> dict[str, Column]:
    scheduled = _waiting() & ~_there("cancels")
    out = _there("published") | _there("unpublished")
    late = passed_over = F.lit(False)
    if known.batch_time is not None:
        late = F.col("deliver_at") < known.batch_time - _MARGIN_MS
        passed_over = F.col("cancel_landed") < (known.batch_time - _MARGIN_MS) * 1000
    unheeded = _there("cancel_ops") & ~_there("cancels") & ~_has("rejected", REJECTED_CANCEL)
    return {
        "scheduled": scheduled,
        "cancelled": _there("cancels"),
        "published_while_scheduled": out & _waiting(),
        "delay_not_kept": (F.col("decisions") == 1) & _decided(COMMITS) & _there("halves") & ~_as_delayed(),
        "delivered_early": F.coalesce(_out_at() < F.col("due_at"), F.lit(False)),
        "delivered_twice": F.col("deliveries") > 1,
        "delivery_without_commit": _there("deliveries") & ~_decided(SCHEDULED),
        "delivered_and_cancelled": _there("deliveries") & _there("cancels"),
        "cancel_without_commit": _there("cancels") & ~_decided(SCHEDULED),
        "cancel_without_op": _there("cancels") & ~_there("cancel_ops") & _there("halves"),
        "cancel_passed_over": unheeded & passed_over,
        "delivery_overdue": scheduled & late,
    }


def _out_at() -> Column:
    """When it was first published or delivered; if another batch published it late: when it began to wait for that."""
    return F.least("delivered_at", "unpublished_at", F.when(~_there("unpublished"), F.col("published_at")))


def _as_delayed() -> Column:
    """Whether the COMMIT has the deliver_at that the delay of a half message at the offset gives (rule 10)."""

    def is_due(delay: Column) -> Column:
        at = F.when(delay < 0, F.col("committed_at") - delay).otherwise(delay)
        return F.when(at > F.col("committed_at"), at).eqNullSafe(F.col("deliver_at"))

    return F.exists("delays", is_due)


def _alone() -> Column:
    """Whether it is a message without a transaction."""
    return _there("messages") & (F.col("messages") == F.col("halves"))


def _deciding() -> dict[str, Column]:
    commit_said = _has("op_states", COMMITS) & ~_decided(COMMITS)
    rollback_said = _has("op_states", ROLLBACKS) & ~_decided(ROLLBACKS)
    return {
        "decision_without_half": _there("decisions") & ~_there("halves"),
        "decided_twice": (F.col("decisions") > 1) | (F.col("cancels") > 1),
        "decision_of_another": _unlike("decision_owners", "who", "half_owners"),
        "commit_without_op": _lacks_op(COMMITS),
        "rollback_without_op": _lacks_op(ROLLBACKS),
        "message_not_committed": _alone() & _there("decisions") & ~_decided(COMMITS),
        "op_conflict": _there("decisions") & (commit_said | rollback_said),
    }


def _checking(known: RulesInForce) -> dict[str, Column]:
    # By number, not by time, as the clock may be set back: a decision records how many checks preceded it.
    too_many = F.col("last_check") > F.col("decided_checks") + F.col("undelivered")
    too_many = F.lit(False) if known.uncounted else F.coalesce(too_many, F.lit(False))
    return {
        "check_without_half": _there("checks") & ~_there("halves"),
        "message_checked": _there("checks") & _alone(),
        "check_over_limit": F.col("over_limit") > 0,
        "check_after_decision": too_many | (F.col("last_turn") >= F.col("decided_turn")),
        "check_too_early": F.col("first_check_at") <= F.col("born") + _immunity(known),
        "check_too_close": F.col("least_slack") < 0,
        "check_twice": F.col("repeated_checks") > F.col("undelivered"),
    }


def _discarding() -> dict[str, Column]:
    too_soon = (F.col("least_end_slack") < 0) | (F.col("landed") >= F.col("too_young") * 1000)
    return {
        "discard_too_soon": F.coalesce(too_soon, F.lit(False)) | (F.col("lacking") > 0),
        "discard_not_received": F.col("unreceived") > F.coalesce("received", F.lit(0)),
    }


def _immunity(known: RulesInForce) -> Column:
    """The shortest possible immunity, in ms; null = unknown (rule 4).

    No table records which batch read a half message: it was one between its landing and its first check.
    """
    begin, end = F.floor(F.col("landed") / 1000) - _MARGIN_MS, F.col("first_check_at")
    nothing = F.lit(None).cast("bigint")
    timeouts, most, unknown = [nothing, nothing], [nothing, nothing], F.lit(not known.epochs)
    for epoch in known.epochs:
        then = (F.lit(epoch.end) >= begin) & (F.lit(epoch.begin) <= end)
        if epoch.timeout == UNKNOWN:
            unknown = unknown | then
        else:
            timeouts.append(F.when(then, F.lit(epoch.timeout)))
            most.append(F.when(then, F.lit(epoch.reserved)))
    if known.epochs and known.past:
        unknown = unknown | (F.lit(known.epochs[0].begin) > begin)
    # A half's own immunity is at most transaction.reserved; the previous release had no such limit.
    own = F.least("own_immunity", *most)
    return F.when(F.col("own_immunity").isNotNull(), own).when(~unknown, F.least(*timeouts))


def _sources(known: RulesInForce) -> dict[str, Column]:
    recorded = _has("rejected", REJECTED_OP | REJECTED_EARLY)
    early = _there("ops") & ~_there("halves")
    alien = _there("alien_ops") & _there("halves")
    passed_over = not_rejected = F.lit(False)
    if known.batch_time is not None:
        before = known.batch_time - _MARGIN_MS
        not_rejected = F.col("alien_landed") < before * 1000
        if known.half_until is not None:
            read = F.col("landed") < (known.half_until - _MARGIN_MS) * 1000
            passed_over = read & ((F.col("op_landed") < before * 1000) | _outlived(known, before))
    return {
        "op_rejected": (early | alien) & recorded,
        "op_without_half": early & ~recorded,
        "op_not_rejected": alien & ~_has("rejected", REJECTED_OP) & not_rejected,
        "pending_overdue": _states()["pending"] & passed_over,
    }


def _outlived(known: RulesInForce, before: int) -> Column:
    """Whether it was due ``before`` (ms), and then past transaction.reserved and checked often enough (rule 7)."""
    reserved = known.epochs[-1].reserved if known.epochs else UNKNOWN
    if reserved == UNKNOWN:
        return F.lit(False)
    waited = F.col("next_check_at") - known.longest - F.floor(F.col("landed") / 1000)
    often = (F.col("checks") >= known.enough) & (F.col("undelivered") == 0)
    return F.coalesce((F.col("next_check_at") < before) & often & (waited > reserved), F.lit(False))
