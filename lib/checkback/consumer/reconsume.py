"""Which dead letters of a group can be consumed again, and the group's state with them. Pure: no clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from checkback.consumer.group.group_rows import queue_of
from checkback.consumer.group.group_state import MessageQueue
from checkback.consumer.position import BEFORE_BATCHES, MessageKey
from checkback.consumer.retry import Retry
from checkback.storage.timestamps import ms_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from checkback.consumer.batch_listing import ListedBatch
    from checkback.consumer.group.group_state import GroupState

#: columns of `dead_letters` that `dead_letters_of` reads
COLUMNS = (
    "topic",
    "half_queue_id",
    "half_queue_offset",
    "queue_id",
    "transaction_id",
    "producer_group",
    "committed_at",
    "batch_id",
    "reconsume_times",
    "reason",
    "dead_at",
    "keys",
)
#: what becomes of a dead letter
AGAIN, PENDING, RESUMED, GONE = "to be consumed again", "pending as a retry", "resumed already", "of no known batch"


class Buried(NamedTuple):
    """A message in `dead_letters`, as it was given up last. Times are ms."""

    queue: MessageQueue
    half_queue_id: int
    half_queue_offset: int
    transaction_id: str
    producer_group: str
    committed_at: int
    batch_id: int
    times: int
    reason: str
    dead_at: int
    keys: str = ""

    @property
    def place(self) -> str:
        """Its half message, as ``0/12``."""
        return f"{self.half_queue_id}/{self.half_queue_offset}"


@dataclass(frozen=True)
class Judged:
    """A dead letter, and what becomes of it. ``key``: None = no batch is known that published it."""

    buried: Buried
    key: MessageKey | None
    fate: str


def dead_letters_of(rows: Iterable[Mapping[str, Any]]) -> list[Buried]:
    """The messages in rows with COLUMNS, each as it was given up last; those given up first come first."""
    found: dict[tuple[Any, ...], Buried] = {}
    for row in rows:
        one = Buried(
            MessageQueue(row["topic"], queue_of(row["queue_id"])),
            row["half_queue_id"],
            row["half_queue_offset"],
            row["transaction_id"] or "",
            row["producer_group"] or "",
            _ms(row["committed_at"]),
            row["batch_id"],
            row["reconsume_times"] or 0,
            row["reason"] or "",
            _ms(row["dead_at"]),
            row["keys"] or "",
        )
        message = (one.queue.topic, *one[1:3], one.committed_at, one.batch_id)
        known = found.get(message)
        if known is None or known.dead_at < one.dead_at:
            found[message] = one
    return sorted(found.values(), key=lambda one: (one.dead_at, one.queue, one[1:3]))


def _ms(time: datetime | None) -> int:
    """Null is no time that Checkback has written."""
    return 0 if time is None else ms_of(time)


def keys_of(buried: Sequence[Buried], batches: Sequence[ListedBatch]) -> list[MessageKey | None]:
    """The key of each: its batch is the one with its id and time; before the first batch, the one that stands for it.

    ``batches``: all, as in BatchLog.
    """
    by_id_and_time = {batch.key[1:]: batch.key for batch in batches}
    first = batches[0].key if batches and batches[0].key.application == BEFORE_BATCHES else None
    found: list[MessageKey | None] = []
    for one in buried:
        batch = by_id_and_time.get((one.batch_id, one.committed_at))
        if batch is None and first is not None and one.committed_at < first.batch_time:
            batch = first
        found.append(None if batch is None else MessageKey(batch, one.half_queue_id, one.half_queue_offset))
    return found


def judge(
    buried: Buried, key: MessageKey | None, state: GroupState, resumed_until: int | None, resumed_by: str
) -> Judged:
    """What becomes of a dead letter.

    ``resumed_until``: by the ledger, the ``dead_at`` up to which it was resumed; None = never. ``resumed_by``: the
    retry's reason; one that is pending without a row in the ledger is added there.
    """
    known = state.queues.get(buried.queue)
    pending = [] if known is None or key is None else [each for each in known.retries if each.message == key]
    if resumed_until is not None and resumed_until >= buried.dead_at:
        return Judged(buried, key, PENDING if pending else RESUMED)
    if key is None or known is None:
        return Judged(buried, key, GONE)
    if pending and pending[0].reason != resumed_by:
        return Judged(buried, key, PENDING)
    return Judged(buried, key, AGAIN)


def with_retries(state: GroupState, chosen: Iterable[Judged], due: int, resumed_by: str) -> GroupState:
    """The state with a retry, of the time ``due``, for each that has none; the same state if all have one."""
    by_queue: dict[MessageQueue, list[Retry]] = {}
    for one in chosen:
        if one.key is not None and one.buried.queue in state.queues:
            by_queue.setdefault(one.buried.queue, []).append(Retry(one.key, 1, due, resumed_by))
    changed = {}
    for queue, retries in by_queue.items():
        known = {each.message for each in state.queues[queue].retries}
        added = [each for each in retries if each.message not in known]
        if added:
            changed[queue] = replace(state.queues[queue], retries=(*state.queues[queue].retries, *added))
    return state.with_queues(changed) if changed else state
