"""The protocol: the state transitions of the half messages in one segment of a half queue.

Pure and vectorised: no Spark, no clock, no I/O. A *segment* is a run of ``segment_size`` queue offsets of one
half queue. It holds the pending half messages, the ops that arrived before their half, and a bitmap of the
offsets seen. `decide` takes one batch's events for the segment and the batch's time, and returns the new
segment and the actions to publish. The rules are those of RocketMQ's TransactionalMessageServiceImpl.check and
EndTransactionProcessor, without their defects; they are numbered as in docs/protocol.md.

Times are milliseconds since the epoch, except ``store``: microseconds, because it identifies a row of ``half``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile import scheduled_messages as scheduling
from checkback.reconcile.records.actions import actions_on, actions_on_pending
from checkback.reconcile.records.segment_records import (
    ACTION,
    EARLY,
    NOT_STATED,
    PENDING,
    SCHEDULED,
    Action,
    Kind,
    Reason,
    Source,
    find,
    first_of_each,
    occurrence,
    only,
    sort,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from checkback.reconcile.records.segment_records import Bits, Records

#: Incremented with each change that makes `decide` or `partition_batch` decide a batch differently: `batch_rules`.
DECISION_VERSION = 3

#: minimum number of checks before a half message older than max_age expires, if check_max allows it (rule 7)
CHECKS_AT_LEAST = 15
#: maximum number of ops waiting for the half message at one offset: per group, and in total (rule 3)
WAITING_OF_GROUP, WAITING_AT_OFFSET = 8, 64


@dataclass(frozen=True)
class Rules:
    """The settings that decisions depend on; times in milliseconds.

    RocketMQ's transactionTimeOut, transactionCheckInterval, transactionCheckMax and fileReservedTime. ``check_jitter``:
    maximum jitter added to an interval, to spread half messages that came due together.
    ``count_undelivered``: a check counts when it is requested, the last one when the query `check` reports it sent;
    otherwise each counts when a producer has received it.
    """

    timeout: int = 6_000
    check_interval: int = 60_000
    check_max: int = 15
    max_age: int = 72 * 3_600_000
    check_jitter: int = 0
    count_undelivered: bool = True

    @property
    def enough(self) -> int:
        """Minimum number of checks before a half message expires, however old it is (rule 7)."""
        return min(self.check_max, CHECKS_AT_LEAST, self.max_age // max(1, self.check_interval) + 1)


@dataclass(frozen=True)
class Segment:
    """The state of the offsets ``base`` .. ``base + len(seen) - 1`` of a half queue.

    ``pending`` and ``scheduled`` are sorted by offset, ``early`` by offset and then arrival. ``seen_until``: retention
    of the bits in ``seen``. The arrays are read-only.
    """

    base: int
    seen: Bits
    pending: Records
    early: Records
    seen_until: int = 0
    scheduled: Records = field(default_factory=lambda: np.empty(0, SCHEDULED))

    @classmethod
    def empty(cls, base: int, size: int) -> Segment:
        """A segment without state."""
        return cls(base, np.zeros(size, bool), np.empty(0, PENDING), np.empty(0, EARLY))

    def has_seen(self, offsets: NDArray[Any]) -> Bits:
        """Mask of these offsets of the segment: True where a half message was seen."""
        found: Bits = self.seen[places(offsets, len(self.seen))]
        return found

    def forgettable(self, now: int) -> bool:
        """True if the segment's state can be evicted."""
        return not (len(self.pending) or len(self.early) or len(self.scheduled)) and now >= self.seen_until

    @property
    def cancels(self) -> Records:
        """The ops CANCEL that wait, until the batch after that of their half messages."""
        found: Records = self.early[self.early["kind"] == Kind.CANCEL]
        return found

    @property
    def oldest(self) -> int:
        """The born time of its oldest pending half message; 0 = none is pending."""
        return int(self.pending["born"].min()) if len(self.pending) else 0

    @property
    def next_delivery(self) -> int | None:
        """The time of its next delivery; None = nothing is scheduled."""
        return int(self.scheduled["due"].min()) if len(self.scheduled) else None

    def wake_at(self, rules: Rules) -> int | None:
        """The time of its next timeout if no event comes first, deliveries apart; 0 = at once, None = none."""
        times = [self.seen_until]
        if len(self.pending):
            times.append(self.pending["due"].min())
        if len(self.early):
            times.append(self.early["since"].min() + rules.max_age + 1)
            if self.has_seen(self.early["offset"]).any() or _too_many(self.early).any():
                return 0  # restored from the tables, or read with their half messages, and not applied yet
        # seen_until counts only if nothing is pending, waiting or scheduled.
        if len(times) == 1 and len(self.scheduled):
            return None
        return int(min(times[1:] or times))


def decide(
    segment: Segment,
    events: Records,
    now: int,
    rules: Rules,
    check: bool = True,
    crowded: Collection[int] = (),
    deliver: bool = True,
    all_read: bool = True,
) -> tuple[Segment, Records]:
    """The segment after a batch, and the batch's ACTION records.

    ``events``: EVENT records of this segment, in any order; may be empty. ``now``: the batch's time. Ops are applied
    before checks (rule 5) and deliveries (rule 11). ``check`` False: due checks and discards are deferred to the next
    batch; ``deliver`` False: likewise due deliveries. ``crowded``: groups (hashes) whose ops may not wait here.
    ``all_read`` False: half messages have landed that no batch has read, and ops wait for them however old they are.
    """
    actions: list[Records] = []
    kind = events["kind"]
    is_half = (kind == Kind.HALF) | (kind == Kind.MESSAGE)
    is_op = ~is_half & (kind < Kind.COUNTED)
    # First: what this batch schedules is cancelled in the next, as a batch acts on a half message once.
    segment = _cancel(segment, events[kind == Kind.CANCEL], now, actions)
    cancels = segment.cancels
    segment = _take_halves(segment, events[is_half], now, rules, actions)
    segment = _count(segment, events[(kind == Kind.COUNTED) | (is_op & (events["source"] == Source.CHECK))])
    oldest = now - rules.max_age if all_read else 0
    segment = _apply_ops(segment, events[is_op], now, oldest, actions, crowded)
    segment = _check_back(segment, now, rules, actions) if check else segment
    if deliver:
        segment = replace(segment, scheduled=scheduling.deliver(segment.scheduled, now, actions, cancels))
    return segment, np.concatenate(actions) if actions else np.empty(0, ACTION)


def _take_halves(segment: Segment, halves: Records, now: int, rules: Rules, actions: list[Records]) -> Segment:
    """Add the half messages at offsets not seen before to pending (rules 3, 4); commit those without a transaction."""
    if not len(halves):
        return segment
    halves = sort(halves, "offset", "store", "group", "transaction")
    fresh = first_of_each(halves["offset"]) & ~segment.has_seen(halves["offset"])
    taken, repeats = only(halves, fresh), halves[~fresh]

    seen = segment.seen.copy()
    seen[places(taken["offset"], len(seen))] = True
    rows = np.zeros(len(taken), PENDING)
    for name in ("offset", "store", "group", "transaction", "delay"):
        rows[name] = taken[name]
    rows["born"], rows["due"] = births(taken, rules)
    pending, scheduled = sort(np.concatenate([segment.pending, rows]), "offset"), segment.scheduled
    if len(repeats):
        pending, scheduled = _with_repeats(pending, repeats), _with_repeats(scheduled, repeats)
        actions.append(actions_on(Action.REJECT_HALF, repeats))
    own = taken["kind"] == Kind.MESSAGE
    if own.any():
        at, _ = find(pending["offset"], taken["offset"][own])
        scheduled = scheduling.commit(scheduled, pending[at], Source.PRODUCER, now, actions, segment.cancels)
        pending = np.delete(pending, at)
    seen_until = max(segment.seen_until, now + rules.max_age)
    return replace(segment, seen=seen, pending=pending, scheduled=scheduled, seen_until=seen_until)


def _with_repeats(records: Records, repeats: Records) -> Records:
    """The records, marked as ``repeated`` if one of the ``repeats`` has the same offset and store."""
    at, known = find(records["offset"], repeats["offset"])
    same_row = known & (records["store"][at] == repeats["store"]) if len(records) else known
    records = records.copy()
    records["repeated"][at[same_row]] = 1
    return records


def births(halves: Records, rules: Rules) -> tuple[NDArray[Any], NDArray[Any]]:
    """The born times of half messages, and the times of their first checks (rule 4)."""
    born = np.minimum(halves["born"], halves["store"] // 1000)  # a born time in the future is capped at the landing
    own = np.minimum(halves["immunity"], rules.max_age)
    # Due when now > born + immunity, hence + 1.
    return born, born + np.where(own >= 0, own, rules.timeout) + 1


def _cancel(segment: Segment, ops: Records, now: int, actions: list[Records]) -> Segment:
    """Cancel scheduled messages by these ops CANCEL and by those that wait; others wait on (rules 3 and 11)."""
    # Not those of this batch: it may come to a segment twice, with events and then with a timer.
    waited = (segment.early["kind"] == Kind.CANCEL) & (segment.early["since"] != now)
    if not len(ops) and not waited.any():
        return segment
    ops = _after_early(segment.early[waited], ops, now)
    restored = segment.early["offset"][segment.early["kind"] != Kind.CANCEL]  # or their half messages are unseen
    known = segment.has_seen(ops["offset"]) & ~np.isin(ops["offset"], restored)
    scheduled = scheduling.cancel(segment.scheduled, ops[known], actions)
    early = sort(np.concatenate([segment.early[~waited], ops[~known]]), "offset")
    return replace(segment, scheduled=scheduled, early=early)


def _after_early(early: Records, ops: Records, now: int) -> Records:
    """EARLY records by offset: at each the ``early`` ones, then these ops in order (rule 1)."""
    waiting = np.zeros(len(ops), EARLY)
    ops = sort(ops, "offset", "store", "born", "kind")
    for name in ("offset", "kind", "source", "store", "group", "transaction"):
        waiting[name] = ops[name]
    waiting["since"] = now
    return sort(np.concatenate([early, waiting]), "offset")


def _apply_ops(
    segment: Segment, ops: Records, now: int, oldest: int, actions: list[Records], crowded: Collection[int]
) -> Segment:
    """Decide each pending half message by its first op (rules 1, 2 and 3)."""
    if not len(ops) and not len(segment.early):
        return segment
    ops = _after_early(segment.early, ops, now)

    bad = ops["kind"] == Kind.UNKNOWN
    if bad.any():
        actions.append(actions_on(Action.REJECT_OP, ops[bad], Reason.UNKNOWN_STATE))
        ops = ops[~bad]

    pending, scheduled = segment.pending, segment.scheduled
    at, has_half = find(pending["offset"], ops["offset"])
    has_half &= ops["kind"] != Kind.CANCEL
    matched, at = only(ops, has_half), only(at, has_half)
    right_group = matched["group"] == pending["group"][at]
    right_id = (matched["transaction"] == pending["transaction"][at]) | (matched["transaction"] == NOT_STATED)
    for wrong, reason in (
        (~right_group, Reason.WRONG_GROUP),
        (right_group & ~right_id, Reason.WRONG_TRANSACTION_ID),
    ):
        if wrong.any():
            actions.append(actions_on(Action.REJECT_OP, matched[wrong], reason))

    obeyed, at = only(matched, right_group & right_id), only(at, right_group & right_id)
    first = first_of_each(obeyed["offset"])
    deciding, at = only(obeyed, first), only(at, first)
    commits = deciding["kind"] == Kind.COMMIT
    if commits.any():
        rows, source = pending[only(at, commits)], only(deciding["source"], commits)
        scheduled = scheduling.commit(scheduled, rows, source, now, actions, segment.cancels)
    if not commits.all():
        rows, source = pending[at[~commits]], deciding["source"][~commits]
        actions.append(actions_on_pending(Action.ROLLBACK, rows, source))
    left = np.ones(len(pending), bool)
    left[at] = False
    early = _wait(segment, ops[~has_half], now, oldest, actions, crowded)
    return replace(segment, pending=pending[left], early=early, scheduled=scheduled)


def _wait(
    segment: Segment, ops: Records, now: int, oldest: int, actions: list[Records], crowded: Collection[int]
) -> Records:
    """The ops that keep waiting: the first of each (offset, group, transaction), and its first CANCEL (rule 3).

    Not those that wait since before ``oldest``.
    """
    if not len(ops):
        return np.empty(0, EARLY)
    late = segment.has_seen(ops["offset"]) & (ops["kind"] != Kind.CANCEL)
    if late.any():
        actions.append(actions_on(Action.LATE_OP, ops[late]))
        ops = ops[~late]
    outdated = (ops["since"] < oldest) & ~segment.has_seen(ops["offset"])
    if outdated.any():
        actions.append(actions_on(Action.REJECT_OP, ops[outdated], Reason.NO_HALF))
        ops = ops[~outdated]
    cancels = ops["kind"] == Kind.CANCEL
    again = np.zeros(len(ops), bool)
    for those in (cancels, ~cancels):
        again[those] = occurrence(ops[those], "offset", "group", "transaction") > 0
    ops = ops[~again]
    too_many = _too_many(ops)
    if crowded:
        too_many |= np.isin(ops["group"], list(crowded))
    if too_many.any():
        actions.append(actions_on(Action.REJECT_OP, ops[too_many], Reason.TOO_MANY))
        ops = ops[~too_many]
    ops["since"][segment.has_seen(ops["offset"])] = now  # a CANCEL that waits for the next batch
    return ops


def _too_many(ops: Records) -> Bits:
    """Mask of the ops beyond the limits per group and in total."""
    found: Bits = occurrence(ops, "offset", "group") >= WAITING_OF_GROUP
    found[~found] = occurrence(ops[~found], "offset") >= WAITING_AT_OFFSET
    return found


def _count(segment: Segment, counted: Records) -> Segment:
    """Count the checks that `check` reports or that were answered, by number: idempotent, in any order (rule 9)."""
    at, has_half = find(segment.pending["offset"], counted["offset"])
    at, counted = at[has_half], counted[has_half]
    half = segment.pending[at]
    same = np.logical_and.reduce([half[name] == counted[name] for name in ("group", "transaction")])
    known = same & (counted["check"] > half["check_times"]) & (counted["check"] <= half["requested"])
    if not known.any():
        return segment
    pending = segment.pending.copy()
    np.maximum.at(pending["check_times"], at[known], counted["check"][known])
    return replace(segment, pending=pending)


def _check_back(segment: Segment, now: int, rules: Rules, actions: list[Records]) -> Segment:
    """Check the half messages that are due; discard those checked often or long enough (rules 5, 6 and 7)."""
    pending = segment.pending
    due = pending["due"] <= now
    if not due.any():
        return segment
    exhausted = due & (pending["check_times"] >= rules.check_max)
    # Rule 7 requires checks, not age alone: no producer could answer while reconcile was down or the clock jumped.
    expired = due & ~exhausted & (pending["requested"] >= rules.enough)
    if expired.any():
        old = pending[expired]
        checked = old["due"] - next_check(old, 0, rules)
        expired[expired] = checked - old["store"] // 1000 > rules.max_age
    for gone, reason in ((exhausted, Reason.CHECK_MAX), (expired, Reason.EXPIRED)):
        if gone.any():
            actions.append(actions_on_pending(Action.DISCARD, pending[gone], reason))
    check = due & ~exhausted & ~expired
    pending = pending.copy()
    pending["requested"][check] += 1
    counts = _counts_at_once(pending["check_times"][check] + 1, rules)
    pending["check_times"][check] += counts
    pending["due"][check] = next_check(pending[check], now, rules)
    if check.any():
        asked = actions_on_pending(Action.CHECK, pending[check], 0)
        # The check's number, which it keeps if it counts later.
        asked["check_times"] = pending["check_times"][check] + ~counts
        actions.append(asked)
    return replace(segment, pending=pending[~(exhausted | expired)])


def _counts_at_once(number: NDArray[Any], rules: Rules) -> Bits:
    """Mask of the checks with these numbers that count when requested.

    Not the last one: a lagging `check` skips requests, and no half message is discarded without a check sent.
    """
    found: Bits = rules.count_undelivered & (number < rules.check_max)
    return found


def next_check(pending: Records, checked: int | NDArray[Any], rules: Rules) -> NDArray[Any]:
    """The times of the next checks of half messages ``checked`` at that time (rule 5)."""
    return checked + rules.check_interval + jitter(pending, rules.check_jitter)


def jitter(pending: Records, most: int | NDArray[Any]) -> NDArray[Any]:
    """Pseudorandom jitter of 0 to ``most`` ms, deterministic for each check of a transaction."""
    mixed = (pending["transaction"] ^ pending["offset"]).view(np.uint64) + pending["requested"].astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # SplitMix64's finalizer
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    found: NDArray[Any] = (mixed ^ (mixed >> np.uint64(31))) % np.uint64(most + 1)
    return found.astype(np.int64)


def places(offsets: NDArray[Any], size: int) -> NDArray[Any]:
    """Indexes of offsets within their segments. Not relative to the base, which may not fit into 64 bits."""
    found: NDArray[Any] = offsets % size
    return found
