"""What operators have resumed: which half message, and as which."""

from __future__ import annotations

from checkback.inspect.engines.question import Question

_RESUMES = """
SELECT queue_id, queue_offset, transaction_id, producer_group, new_queue_id, new_queue_offset, o.at AS resumed_at
FROM {operations} AS o
WHERE action = 'RESUME' AND new_queue_id IS NOT NULL AND new_queue_offset IS NOT NULL"""


def resumes_question(transaction_id: str, group: str | None = None) -> Question:
    """The resumes of a transaction id, the first first.

    Columns: queue_id, queue_offset, transaction_id and producer_group of what was resumed; new_queue_id and
    new_queue_offset of the half message made of it; resumed_at.
    """
    question = Question(_RESUMES, "resumed_at, new_queue_id, new_queue_offset, queue_id, queue_offset")
    return question.where("transaction_id", transaction_id).where("producer_group", group)
