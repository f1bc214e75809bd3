"""What an audit can find: the promises, and each way in which the tables may contradict one. No Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["broken", "warning", "figure"]
About = Literal["transaction", "batch", "commit", "topic"]

PROMISES = {
    "P1": "every half message that landed ends as exactly one of published, scheduled, rolled back, discarded, "
    "cancelled, pending; what is scheduled is published at its time, never before",
    "P2": "no transaction is published twice, nor by a rebuild (P7)",
    "P3": "nothing is published without a COMMIT of its own group",
    "P4": "one decision per transaction, for ever",
    "P5": "at most check_max checks, none after the decision or in the immunity, check_interval apart; none is given "
    "up before it was checked often and long enough",
    "P8": "every batch has one row in `batches`, which says what it did",
}


@dataclass(frozen=True)
class Finding:
    """A kind of finding. ``promise`` is a key of PROMISES, or empty; ``meaning`` describes what has it.

    ``about``: whether transactions, batches, commits of a table or topics have it.
    """

    name: str
    level: Level
    promise: str
    meaning: str
    about: About = "transaction"


_LEVELS: dict[str, Level] = {"figure": "figure", "warning": "warning", **dict.fromkeys(PROMISES, "broken")}
#: by promise, or else by level: each finding, and what has it; in display order
_MEANINGS: dict[str, dict[str, str]] = {
    "figure": {
        "halves": "half messages: offsets of `half`",
        "published": "in the table of a topic",
        "rolled_back": "decided ROLLBACK",
        "discarded": "in `discarded`",
        "pending": "not decided yet; the oldest first",
        "scheduled": "decided COMMIT, and published later",
        "cancelled": "decided COMMIT, and cancelled before its time",
        "half_repeated": "a later half message took an offset once more, and is in `rejected`",
        "op_rejected": "an op that is not the half message's own, and is in `rejected`",
        "offset_gap": "offsets that no half message has, between a queue's first and last",
        "batches": "batches that have a row in `batches`",
        "batch_not_judged": "it is not known by which rules it decided, or what",
    },
    "P1": {
        "half_rows_removed": "has taken rows out of `half` (RESTORE does): lost",
        "op_rows_removed": "has taken rows out of `op` (RESTORE does): lost",
        "decision_without_half": "decided, but there is no half message",
        "decided_before_landing": "decided by a batch long before its half message landed",
        "commit_not_published": "decided COMMIT, but in no topic, nor outstanding in `unpublished`: lost",
        "rollback_without_op": "decided ROLLBACK, but no op of its group said so: lost",
        "discard_not_kept": "decided DISCARD, but not in `discarded`: lost",
        "discarded_without_decision": "in `discarded`, but not decided DISCARD",
        "discarded_twice": "more than once in `discarded`",
        "published_differs": "published in other words, or another topic, than it landed",
        "unpublished_differs": "in `unpublished` in other words, or for another topic, than it landed",
        "published_in_other_batch": "in a topic or in `unpublished` by another batch than decided or delivered it, and "
        "not published late",
        "discarded_in_other_batch": "in `discarded` by another batch than decided that",
        "discarded_differs": "in `discarded` in other words than it landed",
        "discard_reason_differs": "in `discarded` for another reason, or after more or fewer checks, than decided",
        "pending_overdue": "has its own op, or outlived transaction.max_age, and was skipped",
        "published_while_scheduled": "published, but not in `deliveries`: perhaps early",
        "delay_not_kept": "decided COMMIT with another deliver_at than its delay gives, or none",
        "delivered_early": "published before its deliver_at",
        "delivery_without_commit": "in `deliveries`, but no COMMIT has scheduled it",
        "delivered_and_cancelled": "delivered, and cancelled",
        "cancel_without_commit": "decided CANCEL, but no COMMIT has scheduled it",
        "cancel_without_op": "decided CANCEL, but no op CANCEL of an operator or its producer said so: lost",
        "cancel_passed_over": "has an op CANCEL that neither cancelled it nor is in `rejected`",
        "message_not_committed": "without a transaction, but not decided COMMIT: lost",
        "delivery_overdue": "scheduled, and due long before a batch that had nothing to deliver",
    },
    "P2": {
        "delivered_twice": "more than one row of `deliveries`",
        "unpublished_twice": "waits in several rows of `unpublished`: published twice by and by",
        "published_twice": "more than one row of the topics",
        "resumed_twice": "one discarded message was resumed twice, and both are published",
    },
    "P3": {
        "published_without_commit": "published, but not decided COMMIT",
        "commit_without_op": "decided COMMIT, but no op of its group said so",
        "decided_before_op": "decided by a batch long before an op of its own landed",
    },
    "P4": {
        "decided_twice": "more than one decision",
        "decision_of_another": "the decision, or delivery, names another transaction or topic than the half message",
    },
    "P5": {
        "check_over_limit": "more checks than check_max, as it was then",
        "check_after_decision": "checked once more after the decision",
        "check_too_early": "checked before its immunity ended",
        "check_too_close": "checked again before check_interval was over, as it was then",
        "check_twice": "one check was requested twice",
        "check_without_half": "checked, but there is no half message",
        "message_checked": "checked, though it is a message without a transaction",
        "discard_too_soon": "given up before it was checked often and long enough",
        "discard_not_received": "given up after checks that nobody received and that were not to count",
    },
    "P8": {
        "batch_without_row": "it is not the one in progress, but has no row in `batches`",
        "batch_differs": "its row counts other decisions or checks than there are",
        "batch_twice": "several rows in `batches`",
    },
    "warning": {
        "half_back": "pending below its queue's floor since before the horizon, and never checked: perhaps RESTORE has "
        "taken `half` back, and it had ended",
        "topic_not_read": "its table cannot be read: what is in it is not judged, and taken for what `decisions` and "
        "the others tell",
        "batch_gap": "batches between two of one checkpoint have no row; the next one",
        "batch_clock_back": "finished before the one before it: the clock was set back",
        "unpublished": "decided COMMIT, and waits in `unpublished` for its topic's table",
        "op_conflict": "an op of its own contradicts the decision, and is not obeyed",
        "op_without_half": "an op whose half message has not come",
        "op_not_rejected": "an op of another group or transaction, not (yet) in `rejected`",
        "half_not_rejected": "a later half message took the offset, not (yet) in `rejected`",
        "id_published_twice": "its transaction_id was sent and published under another offset, too",
    },
}
_ABOUT: dict[str, About] = {
    **dict.fromkeys(
        (
            "batches",
            "batch_not_judged",
            "batch_without_row",
            "batch_differs",
            "batch_twice",
            "batch_gap",
            "batch_clock_back",
        ),
        "batch",
    ),
    **dict.fromkeys(
        (
            "half_rows_removed",
            "op_rows_removed",
        ),
        "commit",
    ),
    **dict.fromkeys(("topic_not_read",), "topic"),
}
#: By name, in display order.
FINDINGS = {
    name: Finding(name, _LEVELS[kind], kind if kind in PROMISES else "", meaning, _ABOUT.get(name, "transaction"))
    for kind, meanings in _MEANINGS.items()
    for name, meaning in meanings.items()
}
#: The warning's figure: without it the others do not add up to `halves`.
UNPUBLISHED = Finding("unpublished", "figure", "", "decided COMMIT, not published yet; see the warning")
