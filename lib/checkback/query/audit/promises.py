"""What an audit can find: the promises, and each way in which the tables may contradict one. No Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["broken", "warning", "figure"]

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
    about: Literal["transaction", "batch", "commit", "topic"] = "transaction"


_ALL = (
    Finding("halves", "figure", "", "half messages: offsets of `half`"),
    Finding("published", "figure", "", "in the table of a topic"),
    Finding("rolled_back", "figure", "", "decided ROLLBACK"),
    Finding("discarded", "figure", "", "in `discarded`"),
    Finding("pending", "figure", "", "not decided yet; the oldest first"),
    Finding("scheduled", "figure", "", "decided COMMIT, and published later"),
    Finding("cancelled", "figure", "", "decided COMMIT, and cancelled before its time"),
    Finding("half_repeated", "figure", "", "a later half message took an offset once more, and is in `rejected`"),
    Finding("op_rejected", "figure", "", "an op that is not the half message's own, and is in `rejected`"),
    Finding("offset_gap", "figure", "", "offsets that no half message has, between a queue's first and last"),
    Finding("batches", "figure", "", "batches that have a row in `batches`", "batch"),
    Finding("batch_not_judged", "figure", "", "it is not known by which rules it decided, or what", "batch"),
    Finding("half_rows_removed", "broken", "P1", "has taken rows out of `half` (RESTORE does): lost", "commit"),
    Finding("op_rows_removed", "broken", "P1", "has taken rows out of `op` (RESTORE does): lost", "commit"),
    Finding("decision_without_half", "broken", "P1", "decided, but there is no half message"),
    Finding("decided_before_landing", "broken", "P1", "decided by a batch long before its half message landed"),
    Finding("published_without_half", "broken", "P1", "published, but there is no half message"),
    Finding("discarded_without_half", "broken", "P1", "in `discarded`, but there is no half message"),
    Finding(
        "commit_not_published",
        "broken",
        "P1",
        "decided COMMIT, but in no topic, nor outstanding in `unpublished`: lost",
    ),
    Finding("rollback_without_op", "broken", "P1", "decided ROLLBACK, but no op of its group said so: lost"),
    Finding("discard_not_kept", "broken", "P1", "decided DISCARD, but not in `discarded`: lost"),
    Finding("discarded_without_decision", "broken", "P1", "in `discarded`, but not decided DISCARD"),
    Finding("published_and_discarded", "broken", "P1", "in a topic and in `discarded`"),
    Finding("discarded_twice", "broken", "P1", "more than once in `discarded`"),
    Finding("published_differs", "broken", "P1", "published in other words, or another topic, than it landed"),
    Finding(
        "unpublished_differs", "broken", "P1", "in `unpublished` in other words, or for another topic, than it landed"
    ),
    Finding(
        "published_in_other_batch",
        "broken",
        "P1",
        "in a topic or in `unpublished` by another batch than decided or delivered it, and not published late",
    ),
    Finding("discarded_in_other_batch", "broken", "P1", "in `discarded` by another batch than decided that"),
    Finding("discarded_differs", "broken", "P1", "in `discarded` in other words than it landed"),
    Finding(
        "discard_reason_differs",
        "broken",
        "P1",
        "in `discarded` for another reason, or after more or fewer checks, than decided",
    ),
    Finding("pending_overdue", "broken", "P1", "has its own op, or outlived transaction.max_age, and was skipped"),
    Finding("published_while_scheduled", "broken", "P1", "published, but not in `deliveries`: perhaps early"),
    Finding("delay_not_kept", "broken", "P1", "decided COMMIT with another deliver_at than its delay gives, or none"),
    Finding("delivered_early", "broken", "P1", "published before its deliver_at"),
    Finding("delivery_without_commit", "broken", "P1", "in `deliveries`, but no COMMIT has scheduled it"),
    Finding("delivered_and_cancelled", "broken", "P1", "delivered, and cancelled"),
    Finding("cancel_without_commit", "broken", "P1", "decided CANCEL, but no COMMIT has scheduled it"),
    Finding("cancel_without_op", "broken", "P1", "decided CANCEL, but no operator's op said so: lost"),
    Finding("cancel_passed_over", "broken", "P1", "has an op CANCEL that neither cancelled it nor is in `rejected`"),
    Finding("message_not_committed", "broken", "P1", "without a transaction, but not decided COMMIT: lost"),
    Finding("delivery_overdue", "broken", "P1", "scheduled, and due long before a batch that had nothing to deliver"),
    Finding("delivered_twice", "broken", "P2", "more than one row of `deliveries`"),
    Finding("unpublished_twice", "broken", "P2", "waits in several rows of `unpublished`: published twice by and by"),
    Finding("published_twice", "broken", "P2", "more than one row of the topics"),
    Finding("resumed_twice", "broken", "P2", "one discarded message was resumed twice, and both are published"),
    Finding("published_without_commit", "broken", "P3", "published, but not decided COMMIT"),
    Finding("commit_without_op", "broken", "P3", "decided COMMIT, but no op of its group said so"),
    Finding("decided_before_op", "broken", "P3", "decided by a batch long before an op of its own landed"),
    Finding("decided_twice", "broken", "P4", "more than one decision"),
    Finding(
        "decision_of_another",
        "broken",
        "P4",
        "the decision, or delivery, names another transaction or topic than the half message",
    ),
    Finding("check_over_limit", "broken", "P5", "more checks than check_max, as it was then"),
    Finding("check_after_decision", "broken", "P5", "checked once more after the decision"),
    Finding("check_too_early", "broken", "P5", "checked before its immunity ended"),
    Finding("check_too_close", "broken", "P5", "checked again before check_interval was over, as it was then"),
    Finding("check_twice", "broken", "P5", "one check was requested twice"),
    Finding("check_without_half", "broken", "P5", "checked, but there is no half message"),
    Finding("message_checked", "broken", "P5", "checked, though it is a message without a transaction"),
    Finding("discard_too_soon", "broken", "P5", "given up before it was checked often and long enough"),
    Finding(
        "discard_not_received", "broken", "P5", "given up after checks that nobody received and that were not to count"
    ),
    Finding("batch_without_row", "broken", "P8", "it is not the one in progress, but has no row in `batches`", "batch"),
    Finding("batch_differs", "broken", "P8", "its row counts other decisions or checks than there are", "batch"),
    Finding("batch_twice", "broken", "P8", "several rows in `batches`", "batch"),
    Finding(
        "topic_not_read",
        "warning",
        "",
        "its table cannot be read: what is in it is not judged, and taken for what `decisions` and the others tell",
        "topic",
    ),
    Finding("batch_gap", "warning", "", "batches between two of one checkpoint have no row; the next one", "batch"),
    Finding("batch_clock_back", "warning", "", "finished before the one before it: the clock was put back", "batch"),
    Finding("unpublished", "warning", "", "decided COMMIT, and waits in `unpublished` for its topic's table"),
    Finding("op_conflict", "warning", "", "an op of its own contradicts the decision, and is not obeyed"),
    Finding("op_without_half", "warning", "", "an op whose half message has not come"),
    Finding("op_not_rejected", "warning", "", "an op of another group or transaction, not (yet) in `rejected`"),
    Finding("half_not_rejected", "warning", "", "a later half message took the offset, not (yet) in `rejected`"),
    Finding("id_published_twice", "warning", "", "its transaction_id was sent and published under another offset, too"),
)
#: The warning's figure: without it the others do not add up to `halves`.
UNPUBLISHED = Finding("unpublished", "figure", "", "decided COMMIT, not published yet; see the warning")
#: By name, in display order.
FINDINGS = {finding.name: finding for finding in _ALL}
