"""Rendering for the operator: the transaction, the consequences of the action, the outcome. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from checkback.messages.durations import format_duration, span
from checkback.operate.operations import ACTIONS, CANCEL, RESUME
from checkback.operate.transaction import readable
from checkback.storage.timestamps import iso

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from checkback.operate.action import Outcome, View
    from checkback.operate.operations import Operation
    from checkback.operate.resume_all import Discarded
    from checkback.operate.transaction import Transaction

Json = dict[str, Any]


def transaction_card(transaction: Transaction, now: datetime) -> list[tuple[str, str]]:
    """(name, value) pairs that describe the transaction."""
    answer = " ".join(text for text in (transaction.last_outcome, transaction.last_error) if text)
    rows = [
        ("transaction", transaction.transaction_id),
        ("queue/offset", str(transaction.place)),
        ("group", transaction.producer_group),
        ("topic", transaction.real_topic),
        ("born", readable(transaction.born)),
        ("age", span(transaction.age_s(now))),
        ("checks", str(transaction.check_times)),
        ("last answer", answer or "-"),
        ("state", transaction.state()),
    ]
    if transaction.resumed_from is not None:
        rows.insert(2, ("resumed from", str(transaction.resumed_from)))
    return rows


def consequence(action: str, transaction: Transaction, queue: int, now: datetime) -> str:
    """What the action will do, and its consequences, if it is done now."""
    if action == RESUME:
        state = "DISCARD" if transaction.decision is None else transaction.decision.state
        if transaction.committed:
            return (
                f"The message becomes a new message without a transaction of queue {queue}. When `checkback reconcile` "
                f"next runs, it is published, or scheduled if it has a delay: nobody is asked. The decision "
                f"{transaction.place} {state} stays."
            )
        return (
            f"The message becomes a new half message of queue {queue}, born now, with its checks at 0. When "
            f"`checkback reconcile` runs and its immunity has passed, the group {transaction.producer_group} is asked "
            f"again. The decision {transaction.place} {state} stays."
        )
    if action == CANCEL:
        return (
            "Your CANCEL is appended to `op`. When `checkback reconcile` next runs, before it publishes "
            "what is due, the message is moved to `discarded`, and never published. It may be resumed."
        )
    state, due = action.rpartition("_")[2], _due(action, transaction, now)
    if due is not None:
        later = "" if transaction.delay is None else f" {format_duration(transaction.delay)} later"
        return (
            f"Your {state} is appended to `op`. When `checkback reconcile` next runs, it decides by it and schedules "
            f"the message, which is published in topics/{transaction.real_topic}{later}, not before {readable(due)}; "
            "no further check is sent. Until then `tx cancel` ends it; nothing else undoes it."
        )
    fate = f"publishes the message in topics/{transaction.real_topic}" if state == "COMMIT" else "never publishes it"
    return (
        f"Your {state} is appended to `op`. When `checkback reconcile` next runs, it decides by it and "
        f"{fate}; no further check is sent. Nothing undoes it."
    )


def _due(action: str, transaction: Transaction, now: datetime) -> datetime | None:
    """When the message is delivered at the earliest if the action, done now, schedules it; None: it does not."""
    return transaction.due(now) if action == ACTIONS["COMMIT"] else None


def outcome_text(outcome: Outcome) -> str:
    """What was done, and what reconcile does next."""
    one = outcome.operation
    if outcome.repeated:
        return (
            f"{one.action} {one.place} was done already, at {readable(one.at)} by {one.signed.actor}; its row in "
            f"`operations` was missing, and is there now."
        )
    if one.new_place is not None:
        return f"Resumed as {one.new_place}. `checkback reconcile` does the rest when it next runs."
    said = f"{one.action.rpartition('_')[2]} {one.place}"
    return f"{said}: the op is appended. `checkback reconcile` decides by it when it next runs."


def transaction_json(transaction: Transaction, now: datetime) -> Json:
    """The transaction, with the field names of `pending`."""
    decision = transaction.decision
    return {
        "queue_id": transaction.place.queue_id,
        "queue_offset": transaction.place.queue_offset,
        "transaction_id": transaction.transaction_id,
        "producer_group": transaction.producer_group,
        "real_topic": transaction.real_topic,
        "born_timestamp": iso(transaction.born),
        "age_s": transaction.age_s(now),
        "check_times": transaction.check_times,
        "last_outcome": transaction.last_outcome,
        "last_error": transaction.last_error,
        "state": "PENDING" if decision is None else decision.state,
        "decided_at": None if decision is None else iso(decision.decided_at),
        "source": None if decision is None else decision.source,
        "resumed_from": None if transaction.resumed_from is None else str(transaction.resumed_from),
    }


def view_json(view: View, action: str, queue: int, now: datetime) -> Json:
    """What would be done, to which transaction, and the consequences.

    ``deliver_at``: when the message is delivered at the earliest if it is scheduled by the action, else null.
    """
    due = _due(action, view.transaction, now) if view.done is None else None
    return {
        "done": False,
        "action": action,
        "transaction": transaction_json(view.transaction, now),
        "follows": follows(view, action, queue, now),
        "deliver_at": None if due is None else iso(due),
    }


def outcome_json(outcome: Outcome, now: datetime) -> Json:
    """What was done, to which transaction."""
    one = outcome.operation
    return {
        "done": True,
        "repeated": outcome.repeated,
        "action": one.action,
        "at": iso(one.at),
        "actor": one.signed.actor,
        "reason": one.signed.reason,
        "transaction": transaction_json(outcome.transaction, now),
        "new_queue_id": None if one.new_place is None else one.new_place.queue_id,
        "new_queue_offset": None if one.new_place is None else one.new_place.queue_offset,
    }


def follows(view: View, action: str, queue: int, now: datetime) -> str:
    """`consequence`, or `missing` if it is done already."""
    return consequence(action, view.transaction, queue, now) if view.done is None else missing(view.done)


def missing(done: Operation) -> str:
    """States that only the ledger's row is missing."""
    return (
        f"{done.action} {done.place} was done already, at {readable(done.at)} by {done.signed.actor}; "
        f"its row in `operations` is missing, and will be added."
    )


#: columns of `discards`
DISCARDS = ("producer_group", "real_topic", "reason", "messages", "first_discarded_at", "last_discarded_at")


def discards(chosen: Iterable[Discarded]) -> list[tuple[str, str, str, int, str, str]]:
    """How many of these were discarded, by group, topic and reason; a row has DISCARDS."""
    count: Counter[tuple[str, str, str]] = Counter()
    times: dict[tuple[str, str, str], tuple[datetime, datetime]] = {}
    for one in chosen:
        key = one.key.producer_group, one.real_topic, one.reason
        count[key] += 1
        first, last = times.get(key, (one.discarded_at, one.discarded_at))
        times[key] = min(first, one.discarded_at), max(last, one.discarded_at)
    return [(*key, count[key], iso(times[key][0]), iso(times[key][1])) for key in sorted(count)]


def consequence_for_all(chosen: Sequence[Discarded]) -> str:
    """As `consequence`, for all of these."""
    if not chosen:
        return "No discarded message is left to be resumed."
    return f"{RESUME}: {messages(len(chosen))}, each becomes a new half message, born now; its producer is asked again."


def messages(count: int) -> str:
    """``1 message``, ``2 messages``."""
    return "1 message" if count == 1 else f"{count} messages"
