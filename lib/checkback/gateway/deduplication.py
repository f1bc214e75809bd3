"""What the gateway remembers of recent half messages, and what follows for a half or an op. No I/O, no clock.

The rules are those of RocketMQ's EndTransactionProcessor, and two that it lacks: a half message sent again is the
same one, and the first op stands.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from enum import Enum
from heapq import heapify, heapreplace
from itertools import takewhile
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from checkback.storage.first_op import misfit

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from checkback.messages import Half, Op


class CachedHalf(msgspec.Struct, frozen=True, gc=False):
    """What is remembered of a half message. ``state`` is the first op's, None = none yet. Times in ms.

    ``fingerprint``: 0 = not known, of one that was looked up by its place.
    There are millions of them: the garbage collector, which took a third of the gateway's time, does not see them.
    """

    queue_id: int
    queue_offset: int
    name: str
    fingerprint: int
    real_topic: str
    born_timestamp: int
    stored: int
    state: str | None = None


#: characters of a transaction id that is remembered as it is
_WHOLE = 64
#: Of the half messages that were looked up. Those that landed lately are not forgotten for their sake.
RECALLED_MAX = 20_000


class Verdict(Enum):
    """What becomes of a message at the door."""

    NEW = "new"
    REPEATED = "repeated"
    CONTRADICTION = "contradiction"
    UNKNOWN_OFFSET = "unknown_offset"
    WRONG_GROUP = "wrong_group"
    WRONG_TRANSACTION_ID = "wrong_transaction_id"


def name_of(producer_group: str, transaction_id: str) -> str:
    """The transaction's name across groups: no group's name has a slash."""
    return f"{producer_group}/{transaction_id if len(transaction_id) <= _WHOLE else short(transaction_id)}"


def short(transaction_id: str | None) -> str | None:
    """What is remembered of a transaction id: of a long one a hash, because there are millions of them in memory.

    No two ids have the same: one that reads like a hash is as long, and hashed, too. None = not stated.
    """
    if transaction_id is None or len(transaction_id) <= _WHOLE:
        return transaction_id
    return "#" + hashlib.sha256(transaction_id.encode("utf-8", "surrogatepass")).hexdigest()


def whose(known: CachedHalf) -> tuple[str, str]:
    """The group and the transaction id, as `short` has it, of a half message."""
    group, _, transaction_id = known.name.partition("/")
    return group, transaction_id


def fingerprint(half: Half) -> int:
    """64 bits of what the producer sent, but for the time: it may be the gateway's, and differ when sent again.

    Python's own hash, of which this process alone knows the key: it is the cheapest, and never leaves the process.
    """
    properties = half.properties
    return hash(
        (
            half.body,
            half.real_topic,
            half.real_queue_id,
            half.tags,
            half.keys,
            half.check_immunity_s,
            *(sorted(properties.items()) if properties else ()),
        )
    )


def judge_half(known: CachedHalf | None, content: int) -> Verdict:
    """NEW, REPEATED (the same content), or CONTRADICTION (another one under the same name)."""
    if known is None:
        return Verdict.NEW
    return Verdict.REPEATED if known.fingerprint == content else Verdict.CONTRADICTION


def judge_op(known: CachedHalf | None, op: Op) -> Verdict:
    """What an op is to the half message that it names; None = there is no such half message."""
    if known is None:
        return Verdict.UNKNOWN_OFFSET
    # Most fit, and one look says so.
    if op.transaction_id is None or known.name != name_of(op.producer_group, op.transaction_id):
        wrong = misfit(op.producer_group, short(op.transaction_id), *whose(known))
        if wrong is not None:
            return Verdict.WRONG_GROUP if wrong == "producer_group" else Verdict.WRONG_TRANSACTION_ID
    if known.state is None:
        return Verdict.NEW
    return Verdict.REPEATED if known.state == op.state else Verdict.CONTRADICTION


class DeduplicationCache:
    """The half messages that the gateway remembers, and the next offset of each queue.

    Those that landed lately are known by name and by place; older ones that an op made it look up by their place only:
    a name stands for the half message that was sent last under it. Those of other gateways' queues, or of this one's
    before, are known by name only: how they ended another gateway may know better.
    """

    def __init__(
        self,
        next_offsets: Mapping[int, int],
        groups: Collection[str] = (),
        others: Mapping[int, int] | None = None,
    ) -> None:
        """``next_offsets``: by queue, the first offset that no half message has; ``others``: of queues not owned.

        ``groups``: each has a share of the memory; all others together have one, because anybody may make up many.
        """
        self._next = dict(next_offsets)
        self._others = dict(others or {})
        self._groups = frozenset(groups)
        # In the order of landing: the oldest are forgotten first.
        self._by_offset: dict[tuple[int, int], CachedHalf] = {}
        self._by_name: dict[str, tuple[int, int]] = {}
        self._by_share: dict[str, list[tuple[int, int]]] = {}
        self._recalled: dict[tuple[int, int], CachedHalf] = {}

    def __len__(self) -> int:
        """How many half messages are remembered."""
        return len(self._by_offset) + len(self._recalled)

    @property
    def queues(self) -> tuple[int, ...]:
        """The queues that the gateway owns."""
        return tuple(self._next)

    def next_offset(self, queue_id: int) -> int:
        """The first offset of the queue that no half message has. Raises KeyError for a queue of somebody else."""
        return self._next[queue_id]

    def assigned(self, queue_id: int, queue_offset: int) -> bool:
        """Has a gateway given out the offset? In the queues of others: before this one's start."""
        return 0 <= queue_offset < self._next.get(queue_id, self._others.get(queue_id, 0))

    def named(self, name: str) -> CachedHalf | None:
        """The half message of a transaction, if it is remembered."""
        place = self._by_name.get(name)
        return None if place is None else self._by_offset[place]

    def at(self, queue_id: int, queue_offset: int) -> CachedHalf | None:
        """The half message at an offset of an own queue, if it is remembered."""
        if queue_id not in self._next:
            return None
        place = (queue_id, queue_offset)
        return self._by_offset.get(place) or self._recalled.get(place)

    def landed(self, halves: Iterable[CachedHalf]) -> None:
        """Remember half messages that are in the table; their offsets are given out. Known ones stay as they are.

        Of several with one name the last to be remembered is found by it, because it is forgotten last.
        """
        for half in halves:
            place = (half.queue_id, half.queue_offset)
            if half.queue_id in self._next:
                self._next[half.queue_id] = max(self._next[half.queue_id], half.queue_offset + 1)
            if place not in self._by_offset:
                self._by_offset[place] = half
                self._by_name[half.name] = place
                self._by_share.setdefault(self._share(half), []).append(place)

    def recalled(self, halves: Iterable[CachedHalf], now: int) -> None:
        """Remember half messages that were looked up, from ``now`` (ms) on. Known ones stay as they are."""
        for half in halves:
            place = (half.queue_id, half.queue_offset)
            if half.queue_id in self._next and self.at(*place) is None:
                self._recalled[place] = replace(half, stored=now)

    def ended(self, queue_id: int, queue_offset: int, state: str) -> None:
        """Remember the op of a half message. The first stands; of one that is forgotten nothing is kept."""
        place = (queue_id, queue_offset)
        for known in (self._by_offset, self._recalled):
            half = known.get(place)
            if half is not None and half.state is None:
                known[place] = replace(half, state=state)

    def forget(self, before: int, most: int) -> int:
        """Forget what was stored or looked up before a time (ms), and what is beyond ``most``. Returns how many.

        Beyond it the share that holds the most loses its oldest first: who sends many makes no other one's forgotten.
        """
        old = takewhile(lambda half: half.stored < before, self._by_offset.values())
        gone = Counter(map(self._share, old))
        beyond = len(self._by_offset) - gone.total() - most
        if beyond > 0:
            gone += _beyond({share: len(places) - gone[share] for share, places in self._by_share.items()}, beyond)
        for share, count in gone.items():
            places = self._by_share[share]
            for place in places[:count]:
                half = self._by_offset.pop(place)
                if self._by_name.get(half.name) == place:
                    del self._by_name[half.name]
            del places[:count]
        # Those that were looked up are found again by another look-up: the oldest go first, whosever they are.
        return gone.total() + len(_taken(self._recalled, before, min(most, RECALLED_MAX)))

    def _share(self, half: CachedHalf) -> str:
        group, _ = whose(half)
        return group if group in self._groups else ""


def _taken(known: dict[tuple[int, int], CachedHalf], before: int, most: int) -> list[CachedHalf]:
    """Those from before a time, and the oldest beyond ``most``, which are taken out."""
    # Found in one walk, then deleted: a dict that is emptied from its front is searched from there each time.
    old: list[CachedHalf] = []
    for half in known.values():
        if half.stored >= before and len(known) - len(old) <= most:
            break
        old.append(half)
    for half in old:
        del known[half.queue_id, half.queue_offset]
    return old


def _beyond(held: Mapping[str, int], beyond: int) -> Counter[str]:
    """How many each share loses, ``beyond`` in all: one after the other, of the share that holds the most by then."""
    gone: Counter[str] = Counter()
    most = [(-count, share) for share, count in held.items()]
    heapify(most)
    for _ in range(beyond):
        count, share = most[0]
        gone[share] += 1
        heapreplace(most, (count + 1, share))
    return gone
