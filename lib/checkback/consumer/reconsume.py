"""Which dead letters of a group can be consumed again, and the group's state with them. Pure: no clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from checkback.consumer.group.group_rows import queue_of
from checkback.consumer.group.group_state import Death, MessageQueue
from checkback.consumer.position import MessageKey
from checkback.consumer.retry_or_dead_letter import Retry
from checkback.storage.timestamps import ms_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from datetime import datetime

    from checkback.consumer.batch_listing import BatchListing
    from checkback.consumer.group.group_state import GroupState

#: columns of `dead_letters` that `dead_letters_of` reads
COLUMNS = (
    "topic",
    "half_queue_id",
    "half_queue_offset",
    "queue_id",
    "transaction_id",
    "producer_group",
    "published_at",
    "batch_id",
    "reconsume_times",
    "reason",
    "dead_at",
    "keys",
)
#: what becomes of a dead letter
AGAIN, PENDING, RESUMED, GONE = "to be consumed again", "pending as a retry", "resumed already", "of no known batch"


class Buried(NamedTuple):
    """A message in `dead_letters`, as it was given up last. Times are ms.

    ``given_up``: each ``dead_at`` that it has there.
    """

    queue: MessageQueue
    half_queue_id: int
    half_queue_offset: int
    transaction_id: str
    producer_group: str
    published_at: int
    batch_id: int | None
    times: int
    reason: str
    dead_at: int
    keys: str = ""
    given_up: tuple[int, ...] = ()

    @property
    def deaths(self) -> list[Death]:
        """Each time that it was given up."""
        place = self.queue.topic, self.half_queue_id, self.half_queue_offset
        return [Death(*place, dead_at) for dead_at in (self.given_up or (self.dead_at,))]

    @property
    def place(self) -> str:
        """Its half message, as ``0/12``."""
        return f"{self.half_queue_id}/{self.half_queue_offset}"


@dataclass(frozen=True)
class Judged:
    """A dead letter, and what becomes of it.

    ``key``: None = no batch is known that published it. ``deaths``: those that this operator may resume or, after a
    crash, has resumed and is to record. ``subscribed``: False if the group has members, none of its topic.
    """

    buried: Buried
    key: MessageKey | None
    fate: str
    deaths: frozenset[Death]
    subscribed: bool = True


def dead_letters_of(rows: Iterable[Mapping[str, Any]], resumed: AbstractSet[Death]) -> list[Buried]:
    """The messages in rows with COLUMNS, each as it was given up last; those given up first come first.

    ``resumed``: deaths that were resumed, which thus came before the others of their message. Else the clocks of the
    members tell what is shown as the last one.
    """
    found: dict[tuple[Any, ...], list[Buried]] = {}
    for row in rows:
        one = Buried(
            MessageQueue(row["topic"], queue_of(row["queue_id"])),
            row["half_queue_id"],
            row["half_queue_offset"],
            row["transaction_id"] or "",
            row["producer_group"] or "",
            _ms(row["published_at"]),
            row["batch_id"],
            row["reconsume_times"] or 0,
            row["reason"] or "",
            _ms(row["dead_at"]),
            row["keys"] or "",
        )
        found.setdefault((one.queue.topic, *one[1:3], one.published_at, one.batch_id), []).append(one)
    last = [
        max(each, key=lambda one: (resumed.isdisjoint(one.deaths), one.dead_at))._replace(
            given_up=tuple(sorted({one.dead_at for one in each}))
        )
        for each in found.values()
    ]
    return sorted(last, key=lambda one: (one.dead_at, one.queue, one[1:3]))


def deaths_in(rows: Iterable[Mapping[str, Any]]) -> set[Death]:
    """The deaths in rows with COLUMNS."""
    return {Death(row["topic"], row["half_queue_id"], row["half_queue_offset"], _ms(row["dead_at"])) for row in rows}


def _ms(time: datetime | None) -> int:
    """Null is no time that Checkback has written."""
    return 0 if time is None else ms_of(time)


def keys_of(buried: Sequence[Buried], batches: BatchListing) -> list[MessageKey | None]:
    """The key of each: its batch is the one of ``batches`` with its id and time."""
    found: list[MessageKey | None] = []
    for one in buried:
        batch = None if one.batch_id is None else batches.key_of(one.batch_id, one.published_at)
        found.append(None if batch is None else MessageKey(batch, one.half_queue_id, one.half_queue_offset))
    return found


def judge(
    buried: Buried, key: MessageKey | None, state: GroupState, recorded: Collection[Death], resumed_by: str
) -> Judged:
    """What becomes of a dead letter.

    ``recorded``: deaths that the ledger has, read after ``state``: it gets what the state then forgets. ``resumed_by``:
    the retry's reason; what this operator has resumed and the ledger lacks is added there.
    """
    known = state.queues.get(buried.queue)
    pending = [] if known is None or key is None else [each for each in known.retries if each.message == key]
    unrecorded = [death for death in buried.deaths if death not in recorded]
    mine = frozenset(death for death in unrecorded if state.resumed.get(death, resumed_by) == resumed_by)
    new = mine.difference(state.resumed)
    if not mine:
        fate = PENDING if pending else RESUMED
    elif new and (key is None or known is None):
        fate = GONE
    elif new and pending and pending[0].reason != resumed_by:
        fate = PENDING
    else:
        fate = AGAIN
    topics = [each.topics for each in state.members.values()]
    return Judged(buried, key, fate, mine, not topics or any(buried.queue.topic in each for each in topics))


def with_retries(state: GroupState, chosen: Iterable[Judged], due: int, resumed_by: str) -> GroupState:
    """The state with their deaths as resumed, and of each message a retry of the time ``due`` unless it has one.

    The same state if they all are resumed already.
    """
    by_queue: dict[MessageQueue, list[Retry]] = {}
    resumed: dict[Death, str] = {}
    for one in chosen:
        new = one.deaths.difference(state.resumed)
        if new and one.key is not None and one.buried.queue in state.queues:
            by_queue.setdefault(one.buried.queue, []).append(Retry(one.key, 1, due, resumed_by))
            resumed |= dict.fromkeys(new, resumed_by)
    changed = {}
    for queue, retries in by_queue.items():
        known = {each.message for each in state.queues[queue].retries}
        added = [each for each in retries if each.message not in known]
        changed[queue] = replace(state.queues[queue], retries=(*state.queues[queue].retries, *added))
    return replace(state.with_queues(changed), resumed={**state.resumed, **resumed}) if changed else state


def without_recorded(state: GroupState, recorded: Collection[Death]) -> GroupState:
    """The state without the resumed deaths that the ledger has; the same state if there are none."""
    kept = {death: by for death, by in state.resumed.items() if death not in recorded}
    return state if len(kept) == len(state.resumed) else replace(state, resumed=kept)
