"""What becomes of a transaction, as promised and not, with what the audit finds of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from checkback.reconcile.records.segment_records import Reason
from support.stories import BORN, CHECK_MAX, DECIDED, DONE, LONG_AGO, SET_BACK, UNDER_WAY, Row, Transaction

Story: TypeAlias = Callable[[Transaction], list[Row]]

_LATER = timedelta(hours=10)
_OTHER_GROUP = {"producer_group": "pay"}
RESUMED = "one discarded message, resumed twice, once by way of another discard, and published twice"


def _resumed(t: Transaction, offset: int, **places: str) -> list[Row]:
    """All rows of a message that was resumed, and committed. ``places``: where it comes from."""
    properties: dict[str, Any] = {"properties": [(f"CHECKBACK_{name}", place) for name, place in places.items()]}
    again, same = replace(t, offset=offset), {"transaction_id": "resumed"}
    return [
        *(again.half(**properties, **same), again.op(**same), again.decision(**same)),
        again.published(**properties, **same),
    ]


_EXPIRED: dict[str, Any] = {"reason": "EXPIRED"}
_LANDED_LATE: dict[str, Any] = {"born_timestamp": LONG_AGO}


def _long_pending(t: Transaction, last: timedelta) -> list[Row]:
    """Pending since long ago: checked as often as can be, the last time ``last`` after its birth."""
    old = replace(t, born=LONG_AGO)
    return [old.half(), *old.checks(CHECK_MAX - 1), old.check(CHECK_MAX, last)]


_EARLIER = DECIDED - timedelta(minutes=10)
_DUE, _SOON = DECIDED + timedelta(seconds=1), UNDER_WAY + timedelta(hours=1)


def _delivery(t: Transaction, at: datetime = DECIDED, due: datetime = DECIDED, **more: Any) -> Row:
    """A row of `deliveries`: of a message that was due, and published by the batch of the decisions here."""
    _, row = t.decision()
    names = ("queue_id", "queue_offset", "transaction_id", "producer_group", "real_topic", "batch_id")
    return "deliveries", {name: row[name] for name in names} | {"deliver_at": due, "delivered_at": at} | more


def _scheduled(t: Transaction, due: datetime = _SOON) -> list[Row]:
    before = min(DECIDED, due - timedelta(seconds=1))
    return [t.half(deliver_at=due), t.op(), t.decision(deliver_at=due, decided_at=before)]


def _out(t: Transaction, at: datetime) -> Row:
    return t.published(published_at=at)


def _cancelled(t: Transaction) -> list[Row]:
    return [*_scheduled(t), t.op("CANCEL", source="operator"), t.decision("CANCEL", source="operator")]


_CANCELLED: dict[str, Any] = {"reason": "CANCELLED", "check_times": 0}


#: What breaks nothing.
CLEAN: dict[str, Story] = {
    "committed": Transaction.committed,
    "published late": lambda t: [*t.committed(), t.unpublished()],
    "rolled back": Transaction.rolled_back,
    "given up": Transaction.given_up,
    "scheduled": _scheduled,
    "delivered": lambda t: [*_scheduled(t, DECIDED), _delivery(t), t.published()],
    "delivered, and its topic's table cannot be written": lambda t: [
        *(*_scheduled(t, DECIDED), _delivery(t), t.unpublished(), t.published()),
    ],
    "delivered, and published late, when the clock had been set back": lambda t: [
        *(*_scheduled(t, DECIDED), _delivery(t), t.unpublished(), _out(t, SET_BACK)),
    ],
    "delivered after a delay that counts from its COMMIT": lambda t: [
        *(t.half(delay_ms=1_000), t.op(), t.decision(deliver_at=_DUE)),
        *(_delivery(t, _DUE, _DUE), _out(t, _DUE)),
    ],
    "landed after its decision, by a clock that is some minutes ahead": lambda t: [
        *(t.half(store_timestamp=_DUE), t.op("ROLLBACK"), t.decision("ROLLBACK")),
    ],
    "due before its COMMIT": lambda t: [t.half(deliver_at=BORN), t.op(), t.decision(), t.published()],
    "cancelled": lambda t: [*_cancelled(t), t.discarded(**_CANCELLED)],
    "CANCEL that came too late, and was rejected": lambda t: [
        *(*_scheduled(t, _DUE), _delivery(t, _DUE, _DUE), _out(t, _DUE), t.op("CANCEL", source="operator")),
        t.rejected_op(Reason.NOT_SCHEDULED),
    ],
    "CANCEL that has just landed": lambda t: [
        *_scheduled(t),
        t.op("CANCEL", source="operator", store_timestamp=UNDER_WAY),
    ],
    "without a transaction": lambda t: [t.half(committed=True), t.decision(), t.published()],
    "pending": lambda t: [t.half(), *t.checks(2)],
    # No batch tells what it had read; see test_audit_order.
    "pending for long, and never checked": lambda t: [replace(t, born=LONG_AGO).half()],
    "pending for long, and last checked before it was too old": lambda t: _long_pending(t, timedelta(hours=71)),
    "expired": lambda t: [
        *(*_long_pending(t, timedelta(hours=72, minutes=5)), replace(t, born=LONG_AGO).discarded(**_EXPIRED)),
        t.decision("DISCARD", **_EXPIRED),
    ],
    "pending, and its op has just landed": lambda t: [t.half(), t.op(store_timestamp=UNDER_WAY)],
    "pending, and all of it has just landed": lambda t: [t.half(store_timestamp=UNDER_WAY), t.op()],
    "committed by a check, in the batched form, and said again": lambda t: [
        *(t.half(), t.check(), t.op(source="check", transaction_id=None), t.op(), t.published()),
        t.decision(source="check", check_times=1),
    ],
    "half message that came again, and was rejected": lambda t: [
        *t.committed(),
        t.half(store_timestamp=BORN + _LATER, body=b"other", **_OTHER_GROUP),
        t.rejected_half(),
    ],
    "op of another group, and was rejected": lambda t: [
        *t.committed(),
        t.op("ROLLBACK", **_OTHER_GROUP),
        t.rejected_op(Reason.WRONG_GROUP),
    ],
    "op without half message, and was rejected": lambda t: [t.op(), t.rejected_op(Reason.NO_HALF)],
    "op that came too early, and was rejected, before its half message": lambda t: [
        *(t.half(), t.op(), t.rejected_op(Reason.TOO_MANY)),
    ],
    "own immunity of 0": lambda t: [t.half(check_immunity_s=0), t.check(1, timedelta(milliseconds=1))],
    "resumed: given up here, committed under its id elsewhere": lambda t: [
        *t.given_up(),
        *(
            (name, row | {"transaction_id": f"tx-{t.queue}-0"})
            for name, row in replace(t, queue=t.queue + 5000).committed()
        ),
    ],
    "batch under way: published, not yet decided": lambda t: [
        t.half(),
        t.op(store_timestamp=DONE),
        t.published(published_at=UNDER_WAY, batch_id=1),
    ],
    "batch under way: decided and asked, not yet published or discarded": lambda t: [
        *(t.half(), t.op(store_timestamp=DONE), t.decision(decided_at=UNDER_WAY, batch_id=1)),
        t.discarded(discarded_at=UNDER_WAY, batch_id=1),
    ],
}

#: The findings of each, and what has them.
BROKEN: dict[str, tuple[set[str], Story]] = {
    "half message is gone, committed": (
        {"decision_without_half", "op_without_half"},
        lambda t: t.committed()[1:],
    ),
    "half message is gone, given up": (
        {"decision_without_half", "check_without_half"},
        lambda t: t.given_up()[1:],
    ),
    "landed after its decision": (
        {"decided_before_landing"},
        lambda t: [t.half(store_timestamp=DONE), t.op("ROLLBACK"), t.decision("ROLLBACK")],
    ),
    "decided before its op": (
        {"decided_before_op"},
        lambda t: [t.half(), t.op(store_timestamp=DONE), t.decision(), t.published()],
    ),
    "not published": ({"commit_not_published"}, lambda t: [t.half(), t.op(), t.decision()]),
    "waits for its topic's table": ({"unpublished"}, lambda t: [t.half(), t.op(), t.decision(), t.unpublished()]),
    "published late, in a batch under way": (
        {"unpublished"},
        lambda t: [t.half(), t.op(), t.decision(), t.unpublished(), t.published(published_at=UNDER_WAY, batch_id=1)],
    ),
    "decided by nobody's ROLLBACK": ({"rollback_without_op"}, lambda t: [t.half(), t.decision("ROLLBACK")]),
    "delivered early": (
        {"delivered_early"},
        lambda t: [*_scheduled(t, _DUE), _delivery(t, due=_DUE), t.published()],
    ),
    "published, not delivered": (
        {"published_while_scheduled", "delivered_early"},
        lambda t: [*_scheduled(t), t.published()],
    ),
    "delayed, and published at once": (
        {"delay_not_kept"},
        lambda t: [t.half(deliver_at=_SOON), t.op(), t.decision(), t.published()],
    ),
    "delayed from its COMMIT, and published at once": (
        {"delay_not_kept"},
        lambda t: [t.half(delay_ms=1), t.op(), t.decision(), t.published()],
    ),
    "scheduled for earlier than it says": (
        {"delay_not_kept"},
        lambda t: [
            t.half(delay_ms=2_000),
            t.op(),
            t.decision(deliver_at=_DUE),
            _delivery(t, _DUE, _DUE),
            _out(t, _DUE),
        ],
    ),
    "scheduled without a delay": (
        {"delay_not_kept"},
        lambda t: [t.half(), t.op(), t.decision(deliver_at=_SOON)],
    ),
    "delivered for another time than it was scheduled for": (
        {"delivered_early"},
        lambda t: [*_scheduled(t), _delivery(t), t.published()],
    ),
    "in its topic before it was delivered": (
        {"delivered_early", "published_in_other_batch"},
        lambda t: [*_scheduled(t, _DUE), _delivery(t, _DUE, _DUE), t.published()],
    ),
    "in its topic before it was delivered, and waits for the topic's table": (
        {"delivered_early", "published_in_other_batch"},
        lambda t: [*_scheduled(t, _DUE), _delivery(t, _DUE, _DUE), t.unpublished(unpublished_at=_DUE), t.published()],
    ),
    "published and waiting before it was decided": (
        {"published_in_other_batch"},
        lambda t: [t.half(), t.op(), t.decision(), t.unpublished(unpublished_at=_EARLIER), t.published()],
    ),
    "published before it waited": (
        {"published_in_other_batch"},
        lambda t: [t.half(), t.op(), t.decision(), t.unpublished(), _out(t, _EARLIER)],
    ),
    "waits with another body": (
        {"unpublished", "unpublished_differs"},
        lambda t: [t.half(), t.op(), t.decision(), t.unpublished(body=b"bodY")],
    ),
    "waits for another queue": (
        {"unpublished", "unpublished_differs"},
        lambda t: [t.half(), t.op(), t.decision(), t.unpublished(queue_id=4)],
    ),
    "waits for another topic, and published late": (
        {"unpublished_differs"},
        lambda t: [*t.committed(), t.unpublished("b")],
    ),
    "published to another queue": (
        {"published_differs"},
        lambda t: [t.half(), t.op(), t.published(queue_id=4), t.decision()],
    ),
    "decided for another topic": (
        {"decision_of_another"},
        lambda t: [t.half(), t.op(), t.published(), t.decision(real_topic="b")],
    ),
    "rolled back for another topic": (
        {"decision_of_another"},
        lambda t: [t.half(), t.op("ROLLBACK"), t.decision("ROLLBACK", real_topic="b")],
    ),
    "delivered for another topic": (
        {"decision_of_another"},
        lambda t: [*_scheduled(t, _DUE), _delivery(t, _DUE, _DUE, real_topic="b"), _out(t, _DUE)],
    ),
    "kept for another reason": (
        {"discard_reason_differs"},
        lambda t: [*t.given_up()[:-1], t.discarded(**_EXPIRED)],
    ),
    "kept after other checks": (
        {"discard_reason_differs"},
        lambda t: [*t.given_up()[:-1], t.discarded(check_times=CHECK_MAX - 1)],
    ),
    "kept as cancelled after checks": (
        {"discard_reason_differs"},
        lambda t: [*_cancelled(t), t.discarded(reason="CANCELLED")],
    ),
    "in another's name delivered": (
        {"decision_of_another"},
        lambda t: [*_scheduled(t, _DUE), _delivery(t, _DUE, _DUE, **_OTHER_GROUP), _out(t, _DUE)],
    ),
    "cancelled by nobody": (
        {"cancel_without_op"},
        lambda t: [*_scheduled(t), t.decision("CANCEL", source="operator"), t.discarded(**_CANCELLED)],
    ),
    "CANCEL passed over, and scheduled": (
        {"cancel_passed_over"},
        lambda t: [*_scheduled(t), t.op("CANCEL", source="operator")],
    ),
    "CANCEL passed over, and delivered": (
        {"cancel_passed_over"},
        lambda t: [*_scheduled(t, _DUE), t.op("CANCEL", source="operator"), _delivery(t, _DUE, _DUE), _out(t, _DUE)],
    ),
    "without a transaction, and rolled back": (
        {"message_not_committed", "op_conflict"},
        lambda t: [t.half(committed=True), t.op("ROLLBACK"), t.decision("ROLLBACK")],
    ),
    "without a transaction, and given up": (
        {"message_not_committed", "message_checked", "op_conflict"},
        lambda t: [t.half(committed=True), *t.given_up()[1:]],
    ),
    "without a transaction, and checked": (
        {"message_checked"},
        lambda t: [t.half(committed=True), t.check(), t.decision(check_times=1), t.published()],
    ),
    "delivered, not published": ({"commit_not_published"}, lambda t: [*_scheduled(t, DECIDED), _delivery(t)]),
    "delivered, not scheduled": ({"delivery_without_commit"}, lambda t: [*t.committed(), _delivery(t)]),
    "delivered twice": (
        {"delivered_twice"},
        lambda t: [*_scheduled(t, DECIDED), _delivery(t), _delivery(t), t.published()],
    ),
    "delivered and cancelled": (
        {"delivered_and_cancelled", "delivered_early"},
        lambda t: [*_cancelled(t), t.discarded(**_CANCELLED), _delivery(t, due=DECIDED), t.published()],
    ),
    "cancelled, never scheduled": (
        {"cancel_without_commit", "cancel_without_op"},
        lambda t: [*t.committed(), t.decision("CANCEL", source="operator"), t.discarded(**_CANCELLED)],
    ),
    "cancelled twice": (
        {"decided_twice"},
        lambda t: [*_cancelled(t), t.decision("CANCEL", source="operator"), t.discarded(**_CANCELLED)],
    ),
    "cancelled, not kept": ({"discard_not_kept"}, _cancelled),
    "kept as cancelled, not decided": (
        {"discarded_without_decision"},
        lambda t: [*_scheduled(t), t.discarded(**_CANCELLED)],
    ),
    "scheduled, and left behind": ({"delivery_overdue"}, lambda t: _scheduled(t, DECIDED)),
    "not kept": ({"discard_not_kept"}, lambda t: t.given_up()[:-1]),
    "discarded, not decided": ({"discarded_without_decision"}, lambda t: [t.half(), t.discarded()]),
    "published and discarded": (
        {"discarded_without_decision"},
        lambda t: [*t.committed(), t.discarded()],
    ),
    "discarded twice": ({"discarded_twice"}, lambda t: [*t.given_up(), t.discarded()]),
    "published with another body": (
        {"published_differs"},
        lambda t: [t.half(), t.op(), t.published(body=b"bodY"), t.decision()],
    ),
    "published with other properties": (
        {"published_differs"},
        lambda t: [t.half(), t.op(), t.published(properties=[("a", "2"), ("b", "1")]), t.decision()],
    ),
    "published with tags for keys": (
        {"published_differs"},
        lambda t: [t.half(), t.op(), t.published(tags="key", keys=None), t.decision()],
    ),
    "published in another topic": (
        {"published_differs"},
        lambda t: [t.half(), t.op(), t.published("b"), t.decision()],
    ),
    "published under another transaction_id": (
        {"published_differs"},
        lambda t: [t.half(), t.op(), t.published(transaction_id="other"), t.decision()],
    ),
    "discarded with another body": ({"discarded_differs"}, lambda t: [*t.given_up()[:-1], t.discarded(body=None)]),
    "op passed over": ({"pending_overdue"}, lambda t: [t.half(), t.op()]),
    "too old": ({"pending_overdue"}, lambda t: _long_pending(t, timedelta(hours=72, minutes=30))),
    "published twice": ({"published_twice"}, lambda t: [*t.committed(), t.published()]),
    "published in two topics": (
        {"published_twice", "published_differs"},
        lambda t: [*t.committed(), t.published("b")],
    ),
    "published, not decided": ({"published_without_commit"}, lambda t: t.committed()[:-1]),
    "published, rolled back": (
        {"published_without_commit"},
        lambda t: [*t.rolled_back(), t.published()],
    ),
    "committed by nobody's op": ({"commit_without_op"}, lambda t: [t.half(), t.published(), t.decision()]),
    "committed by an op of another group": (
        {"commit_without_op"},
        lambda t: [t.half(), t.op(**_OTHER_GROUP), t.published(), t.decision(), t.rejected_op(Reason.WRONG_GROUP)],
    ),
    "committed by an op of another transaction": (
        {"commit_without_op", "op_not_rejected"},
        lambda t: [t.half(), t.op(transaction_id="other"), t.published(), t.decision()],
    ),
    "committed by a check that nobody answered": (
        {"commit_without_op"},
        lambda t: [t.half(), t.op(), t.published(), t.decision(source="check")],
    ),
    "decided twice": ({"decided_twice"}, lambda t: [*t.committed(), t.decision()]),
    "decided both ways": (
        {"decided_twice"},
        lambda t: [*t.committed(), t.op("ROLLBACK"), t.decision("ROLLBACK")],
    ),
    "published before it was decided": (
        {"published_in_other_batch"},
        lambda t: [t.half(), t.op(), t.decision(), _out(t, _EARLIER)],
    ),
    "published after it was decided": (
        {"published_in_other_batch"},
        lambda t: [t.half(), t.op(), t.decision(), _out(t, _DUE)],
    ),
    "kept before it was given up": (
        {"discarded_in_other_batch"},
        lambda t: [*t.given_up()[:-1], t.discarded(discarded_at=_EARLIER)],
    ),
    "kept before it was cancelled": (
        {"discarded_in_other_batch"},
        lambda t: [*_cancelled(t), t.discarded(**_CANCELLED, discarded_at=_EARLIER)],
    ),
    "waits twice for its topic's table": (
        {"unpublished", "unpublished_twice"},
        lambda t: [t.half(), t.op(), t.decision(), t.unpublished(), t.unpublished()],
    ),
    "decided for another group": (
        {"decision_of_another"},
        lambda t: [*t.committed()[:-1], t.decision(**_OTHER_GROUP)],
    ),
    "a check too many": ({"check_over_limit"}, lambda t: [t.half(), *t.checks(CHECK_MAX + 1)]),
    "checked after the decision, by the count": (
        {"check_after_decision"},
        lambda t: [*t.committed(), t.check(), t.check(2, timedelta(seconds=67))],
    ),
    "checked after the decision, by the batch": (
        {"check_after_decision"},
        lambda t: [*t.committed()[:-1], t.decision(check_times=1), t.check(1, DECIDED - BORN + timedelta(minutes=1))],
    ),
    "checked in the immunity": ({"check_too_early"}, lambda t: [t.half(), t.check(1, timedelta(seconds=6))]),
    "checked in its own immunity": ({"check_too_early"}, lambda t: [t.half(check_immunity_s=7), t.check()]),
    "checked too soon again": (
        {"check_too_close"},
        lambda t: [t.half(), t.check(), t.check(2, timedelta(seconds=66.999))],
    ),
    "one check twice": ({"check_twice"}, lambda t: [t.half(), t.check(), t.check(1, timedelta(seconds=67))]),
    "given up one check early": (
        {"discard_too_soon"},
        lambda t: [
            *(t.half(), *t.checks(CHECK_MAX - 1), t.decision("DISCARD", check_times=CHECK_MAX - 1)),
            t.discarded(check_times=CHECK_MAX - 1),
        ],
    ),
    "given up before the last check could be answered": (
        {"discard_too_soon"},
        lambda t: [
            *(t.half(), *t.checks(CHECK_MAX - 1), t.check(CHECK_MAX, DECIDED - BORN - timedelta(seconds=59))),
            *(t.decision("DISCARD"), t.discarded()),
        ],
    ),
    "expired, and never checked": (
        {"discard_too_soon"},
        lambda t: [
            *(replace(t, born=LONG_AGO).half(), replace(t, born=LONG_AGO).discarded(**_EXPIRED, check_times=0)),
            t.decision("DISCARD", **_EXPIRED, check_times=0),
        ],
    ),
    "expired by its birth, not by its landing": (
        {"discard_too_soon"},
        lambda t: [
            *(t.half(**_LANDED_LATE), *replace(t, born=BORN).checks()),
            *(t.discarded(**_LANDED_LATE, **_EXPIRED), t.decision("DISCARD", **_EXPIRED)),
        ],
    ),
    "ops contradict": ({"op_conflict"}, lambda t: [*t.committed(), t.op("ROLLBACK")]),
    "COMMIT after the discard": ({"op_conflict"}, lambda t: [*t.given_up(), t.op()]),
    "op of another group": ({"op_not_rejected"}, lambda t: [*t.committed(), t.op(**_OTHER_GROUP)]),
    "half message that came again": (
        {"half_not_rejected"},
        lambda t: [*t.committed(), t.half(store_timestamp=BORN + _LATER)],
    ),
    "one id, published under two offsets": (
        {"id_published_twice"},
        lambda t: [
            *t.committed(),
            *(
                (name, row | {"transaction_id": f"tx-{t.queue}-0"})
                for name, row in replace(t, queue=t.queue + 5000).committed()
            ),
        ],
    ),
    RESUMED: (
        {"id_published_twice", "resumed_twice"},
        lambda t: [
            *_resumed(t, 0, RESUMED_FROM="7/9"),
            *_resumed(t, 1, RESUMED_FROM=f"{t.queue}/7", FIRST_PLACE="7/9"),
        ],
    ),
}
#: the half queue of each
NUMBER = {name: 100 + number for number, name in enumerate([*CLEAN, *BROKEN])}
