"""Which findings apply to a transaction: predicates on its facts (`facts.facts`), as SQL."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from checkback.query.audit.facts import (
    COMMITS,
    DISCARD,
    EXPIRED,
    REJECTED_CANCEL,
    REJECTED_EARLY,
    REJECTED_HALF,
    REJECTED_OP,
    ROLLBACKS,
    SCHEDULED,
)
from checkback.query.versions.batches import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from checkback.query.versions.batches import Epoch

#: What landed this long before a batch began was certainly visible to it, despite clock skew and commit latency.
MARGIN = timedelta(minutes=10)
_MARGIN_MS = MARGIN // timedelta(milliseconds=1)
_LANDED_MS = "CAST(floor(landed / 1e3) AS BIGINT)"


@dataclass(frozen=True)
class RulesInForce:
    """What is known about the batches that read the half messages; times are ms.

    ``batch_time``: of the last one. It has read all of `half` that landed up to ``half_until``. None: unknown, or it
    only restored a checkpoint. ``delivered_until``: see `batches.delivered_until`. ``set_back``: how far the clock of
    batches ever was.
    ``epochs``: the rules, in order. By the last of them, ``longest``: from a check to the next; ``enough``: checks
    required before EXPIRED. ``past``: whether there were earlier batches, of which nothing is known. ``uncounted``:
    whether checks ever counted only when they were received. ``discarded_since``: messages from before may be gone from
    `discarded`, whose retention is shorter than that of the history. ``floors``: by half queue the offset below which
    half messages may have been removed.
    """

    batch_time: int | None
    half_until: int | None
    delivered_until: int | None = None
    set_back: int = 0
    epochs: Sequence[Epoch] = ()
    longest: int = 0
    enough: int = 0
    uncounted: bool = False
    past: bool = True
    discarded_since: int | None = None
    floors: Mapping[int, int] = field(default_factory=dict)


def conditions(known: RulesInForce) -> dict[str, str]:
    """By name of a finding: whether a transaction has it. Null counts as false."""
    return {
        **_STATES,
        **_PUBLISHING,
        **_kept(known),
        **_scheduling(known),
        **_DECIDING,
        **_order(known),
        **_checking(known),
        **_DISCARDING,
        **_sources(known),
    }


def _has(column: str, bits: int) -> str:
    return f"({column} & {bits}) <> 0"


def _decided(bits: int) -> str:
    return _has("decision_states", bits)


def _lacks_op(bits: int) -> str:
    """Whether there is a decision with these bits but no op with the same state and source."""
    return f"halves > 0 AND (decision_states & ~op_states & {bits}) <> 0"


def _unlike(name: str, first: str, others: str) -> str:
    """Whether a hash in ``name`` belongs to none of the half messages at this offset; no erased one is compared."""
    strange = (
        f"({name}_{which} IS NOT NULL AND NOT coalesce({name}_{which} IN ({first}, {others}_min, {others}_max), FALSE))"
        for which in ("min", "max")
    )
    return f"halves > 0 AND {first} IS NOT NULL AND ({' OR '.join(strange)})"


#: the message is scheduled, or was cancelled
_WAITING = f"({_decided(SCHEDULED)} AND NOT deliveries > 0)"
_ONE_END = "decisions = 1 AND cancels <= 1 AND deliveries <= 1"
#: published after it had waited for its topic's table: by the order of the batches, as the clock may be set back
_LATE = "(unpublished > 0 AND coalesce(published_turn >= unpublished_turn, published_at >= unpublished_at, FALSE))"
_DECIDING_BATCH = "coalesce(delivered_batch, decided_batch)"
_PENDING = "halves > 0 AND NOT decisions > 0 AND NOT published > 0 AND NOT discarded > 0"

_STATES = {
    "halves": "halves > 0",
    "published": "published > 0",
    "rolled_back": _decided(ROLLBACKS),
    "discarded": "discarded > 0",
    "pending": _PENDING,
    "half_repeated": f"halves > 1 AND {_has('rejected', REJECTED_HALF)}",
    "half_not_rejected": f"halves > 1 AND NOT {_has('rejected', REJECTED_HALF)}",
}
_PUBLISHING = {
    "published_without_commit": f"published > 0 AND NOT {_decided(COMMITS)}",
    "published_twice": "published > 1",
    "published_differs": _unlike("topic_content", "content", "half_content"),
    "published_in_other_batch": f"{_ONE_END} AND NOT {_WAITING}"
    f" AND (published = 1 AND CASE WHEN unpublished > 0 THEN NOT {_LATE}"
    f" ELSE coalesce(published_batch <> {_DECIDING_BATCH}, FALSE) END"
    f" OR unpublished = 1 AND coalesce(unpublished_batch <> {_DECIDING_BATCH}, FALSE))",
    "unpublished_differs": _unlike("unpublished_content", "content", "half_content"),
    # One that was published late, and lost by its topic, waits once more when a rebuild could not publish it again.
    "unpublished_twice": "outstanding > 1",
    "unpublished": f"{_decided(COMMITS)} AND NOT published > 0 AND outstanding > 0",
    "discarded_without_decision": f"(discarded > 0 AND NOT {_decided(DISCARD)}) OR (cancelled > 0 AND NOT cancels > 0)",
    "discarded_twice": "discarded + cancelled > 1",
    "discarded_differs": _unlike("discarded_content", "content", "half_content"),
    "discarded_in_other_batch": f"{_ONE_END} AND discarded + cancelled = 1"
    " AND coalesce(kept_batch <> CASE WHEN cancelled > 0 THEN cancelled_batch ELSE decided_batch END, FALSE)",
    "discard_reason_differs": f"{_ONE_END} AND discarded + cancelled = 1 AND coalesce(kept_why <> decided_why, FALSE)",
}


def _kept(known: RulesInForce) -> dict[str, str]:
    not_there = f"NOT published > 0 AND NOT outstanding > 0 AND NOT {_decided(EXPIRED)}"
    not_kept = f"({_decided(DISCARD)} AND NOT discarded > 0) OR (cancels > 0 AND NOT cancelled > 0)"
    return {
        "commit_not_published": f"{_decided(COMMITS)} AND {not_there} AND NOT {_WAITING}",
        "discard_not_kept": f"({not_kept}) AND {_since(known.discarded_since, 'decided_at')}",
    }


def _since(horizon: int | None, time: str) -> str:
    return "TRUE" if horizon is None else f"coalesce({time} >= {horizon}, TRUE)"


def _scheduling(known: RulesInForce) -> dict[str, str]:
    scheduled = f"{_WAITING} AND NOT cancels > 0"
    late = passed_over = "FALSE"
    if known.batch_time is not None:
        passed_over = f"cancel_landed < {(known.batch_time - _MARGIN_MS) * 1000}"
    if known.delivered_until is not None:
        late = f"deliver_at < {known.delivered_until - _MARGIN_MS}"
    unheeded = f"cancel_ops > 0 AND NOT cancels > 0 AND NOT {_has('rejected', REJECTED_CANCEL)}"
    return {
        "scheduled": scheduled,
        "cancelled": "cancels > 0",
        "published_while_scheduled": f"(published > 0 OR unpublished > 0) AND {_WAITING}",
        "delay_not_kept": f"decisions = 1 AND {_decided(COMMITS)} AND halves > 0 AND NOT {_AS_DELAYED}",
        "delivered_early": f"coalesce({_OUT_AT} < due_at, FALSE)",
        "delivered_twice": "deliveries > 1",
        "delivery_without_commit": f"deliveries > 0 AND NOT {_decided(SCHEDULED)}",
        "delivered_and_cancelled": "deliveries > 0 AND cancels > 0",
        "cancel_without_commit": f"cancels > 0 AND NOT {_decided(SCHEDULED)}",
        "cancel_without_op": "cancels > 0 AND NOT cancel_ops > 0 AND halves > 0",
        "cancel_passed_over": f"{unheeded} AND {passed_over}",
        "delivery_overdue": f"{scheduled} AND {late}",
    }


def _is_due(delay: str) -> str:
    """Whether the COMMIT has the deliver_at that a delay gives (rule 10): if it has passed, none, or that."""
    at = f"(CASE WHEN {delay} < 0 THEN committed_at - {delay} ELSE {delay} END)"
    later = f"{at} > committed_at OR deliver_at IS NOT NULL"  # it is held for a CANCEL that waits
    return f"(CASE WHEN {later} THEN {at} END) IS NOT DISTINCT FROM deliver_at"


_AS_DELAYED = f"({_is_due('delay_min')} OR {_is_due('delay_max')})"
#: when it was first published or delivered; if another batch published it late: when it began to wait for that
_OUT_AT = f"least(delivered_at, unpublished_at, CASE WHEN NOT {_LATE} THEN published_at END)"
#: it is a message without a transaction
_ALONE = "(messages > 0 AND messages = halves)"
_COMMIT_SAID = f"({_has('op_states', COMMITS)} AND NOT {_decided(COMMITS)})"
_ROLLBACK_SAID = f"({_has('op_states', ROLLBACKS)} AND NOT {_decided(ROLLBACKS)})"
_DECIDING = {
    "decision_without_half": "decisions > 0 AND NOT halves > 0",
    "decided_twice": "decisions > 1 OR cancels > 1",
    "decision_of_another": _unlike("decision_owner", "who", "half_owner"),
    "message_not_committed": f"{_ALONE} AND decisions > 0 AND NOT {_decided(COMMITS)}",
    "commit_without_op": _lacks_op(COMMITS),
    "rollback_without_op": _lacks_op(ROLLBACKS),
    "op_conflict": f"decisions > 0 AND ({_COMMIT_SAID} OR {_ROLLBACK_SAID})",
}


def _order(known: RulesInForce) -> dict[str, str]:
    """By the clocks, beyond all doubt: a batch decides only what it has read."""
    certain = f"decided_turn IS NOT NULL AND decided_at + {_MARGIN_MS + known.set_back}"
    said = f"halves > 0 AND (decision_states & op_states & {COMMITS | ROLLBACKS}) <> 0"
    return {
        "decided_before_landing": f"{certain} < {_LANDED_MS}",
        "decided_before_op": f"{said} AND {certain} < CAST(floor(op_landed / 1e3) AS BIGINT)",
    }


def _checking(known: RulesInForce) -> dict[str, str]:
    # By number, not by time, as the clock may be set back: a decision records how many checks counted before it. The
    # last one may have been requested, and not have counted yet.
    too_many = "FALSE" if known.uncounted else "coalesce(last_check > decided_checks + 1, FALSE)"
    return {
        "message_checked": f"checks > 0 AND {_ALONE}",
        "check_without_half": "checks > 0 AND NOT halves > 0",
        "check_over_limit": "over_limit > 0",
        "check_after_decision": f"{too_many} OR last_turn >= decided_turn",
        "check_too_early": f"first_check_at <= born + {_immunity(known)}",
        "check_too_close": "least_slack < 0",
        "check_twice": "repeated_checks > 0",
    }


_DISCARDING = {
    "discard_too_soon": "coalesce(least_end_slack < 0 OR landed >= too_young * 1000, FALSE) OR lacking > 0",
    "discard_not_received": "unreceived > coalesce(counted, 0)",
}


def _immunity(known: RulesInForce) -> str:
    """The shortest possible immunity, in ms; null = unknown (rule 4).

    No table records which batch read a half message: it was one between its landing and its first check.
    """
    begin, end = f"({_LANDED_MS} - {_MARGIN_MS})", "first_check_at"
    nothing = "CAST(NULL AS BIGINT)"
    timeouts, most, unknown = [nothing, nothing], [nothing, nothing], ["FALSE" if known.epochs else "TRUE"]
    for epoch in known.epochs:
        then = f"({epoch.end} >= {begin} AND {epoch.begin} <= {end})"
        if epoch.timeout == UNKNOWN:
            unknown.append(then)
        else:
            timeouts.append(f"CASE WHEN {then} THEN {epoch.timeout} END")
            most.append(f"CASE WHEN {then} THEN {epoch.max_age} END")
    if known.epochs and known.past:
        unknown.append(f"{known.epochs[0].begin} > {begin}")
    # A half's own immunity is at most transaction.max_age.
    return f"""CASE WHEN own_immunity IS NOT NULL THEN least(own_immunity, {", ".join(most)})
        WHEN NOT ({" OR ".join(unknown)}) THEN least({", ".join(timeouts)}) END"""


def _sources(known: RulesInForce) -> dict[str, str]:
    recorded = f"{_has('rejected', REJECTED_OP | REJECTED_EARLY)}"
    early = "(ops > 0 AND NOT halves > 0)"
    alien = "(alien_ops > 0 AND halves > 0)"
    below = (f"(queue_id = {queue} AND queue_offset < {floor})" for queue, floor in sorted(known.floors.items()))
    removed = " OR ".join(below) or "FALSE"
    passed_over = not_rejected = "FALSE"
    if known.batch_time is not None:
        before = known.batch_time - _MARGIN_MS
        not_rejected = f"alien_landed < {before * 1000}"
        if known.half_until is not None:
            read = f"landed < {(known.half_until - _MARGIN_MS) * 1000}"
            op = f"coalesce(op_landed < {before * 1000}, FALSE) AND NOT {_has('rejected', REJECTED_EARLY)}"
            passed_over = f"({read} AND ({op} OR {_outlived(known, before)}))"
    return {
        "op_rejected": f"({early} OR {alien}) AND {recorded}",
        "op_without_half": f"{early} AND NOT {recorded} AND NOT ({removed})",
        "op_not_rejected": f"{alien} AND NOT {_has('rejected', REJECTED_OP)} AND {not_rejected}",
        "pending_overdue": f"{_PENDING} AND {passed_over}",
    }


def _outlived(known: RulesInForce, before: int) -> str:
    """Whether it was due ``before`` (ms), and then past transaction.max_age and checked often enough (rule 7)."""
    max_age = known.epochs[-1].max_age if known.epochs else UNKNOWN
    if max_age == UNKNOWN:
        return "FALSE"
    waited = f"next_check_at - {known.longest} - {_LANDED_MS}"
    often = f"checks >= {known.enough}"
    return f"coalesce(next_check_at < {before} AND {often} AND {waited} > {max_age}, FALSE)"
