"""The in-flight messages of one queue of a consumer (RocketMQ's ProcessQueue). No threads, no clock, no I/O.

Messages come in order; slices of them are consumed concurrently. The position is behind the last message before which
none is unfinished, so a crash repeats messages and loses none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from checkback.consumer.batch_listing import begins_of
from checkback.consumer.group.group_state import QueueState
from checkback.consumer.message import messages_of
from checkback.consumer.message_rows import MessageKeys, MessageRows
from checkback.consumer.position import BatchKey, MessageKey, Position, last_of
from checkback.consumer.retry_or_dead_letter import holding
from checkback.storage.timestamps import ms_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from checkback.consumer.batch_listing import ListedBatch
    from checkback.consumer.group.group_state import MessageQueue
    from checkback.consumer.message import MessageExt
    from checkback.consumer.retry_or_dead_letter import DeadLetter, Retry


class Run:
    """Consecutive batches, and runs of several, that are read together. Batches are numbered as by `begins_of`."""

    def __init__(self, batches: Sequence[ListedBatch]) -> None:
        self._batches = batches
        self._begins: list[int] = begins_of(batches).tolist()
        self._before: tuple[int, dict[str, BatchKey]] = (0, {})

    def __len__(self) -> int:
        """Number of batches."""
        return self._begins[-1]

    def key(self, index: int, rows: pa.Table, place: int) -> BatchKey:
        """The batch with this index. ``rows``: one of its messages is at a place."""
        batch = self._batches[self._place(index)]
        if batch.first is None:
            return batch.key
        time = ms_of(rows.column("published_at")[place].as_py())
        return BatchKey(batch.key.application, self._id(index), time)

    def after(self, base: Position, index: int, time: int = 0) -> Position:
        """The position after the batches before ``index``, of a queue that was at ``base`` before the run.

        ``time``: of the batch with this index (ms).
        """
        place = self._place(index)
        known, last = self._before
        if known > place:
            known, last = 0, {}
        last = last_of((batch.key for batch in self._batches[known:place]), last)
        self._before = place, last
        found = base.after_batches(last.values(), self._batches[place - 1].key.batch_time if place else None)
        if index == self._begins[place]:
            return found
        # Times of a run do not decrease.
        within = BatchKey(self._batches[place].key.application, self._id(index) - 1, time)
        return found.after_batches([within], None)

    def _place(self, index: int) -> int:
        return bisect_right(self._begins, index) - 1

    def _id(self, index: int) -> int:
        place = self._place(index)
        return self._batches[place].first_id + index - self._begins[place]


@dataclass(eq=False)
class Slice:
    """Consecutive messages that one thread consumes; ``done``: how many of them, from the first on.

    ``base``: the queue's position before the run; ``before``: that before the first message. ``retries``: the retries
    that the messages are, one each; None = they are consumed for the first time. ``failed``: of those done;
    ``counted``: those done and not failed, as of when a thread had it last; ``busy``: a thread has it. ``outcomes``: of
    messages behind those done, by place: why it failed, None = success.
    """

    queue: ProcessQueue
    run: Run
    base: Position
    before: Position
    rows: MessageRows
    done: int = 0
    retries: list[Retry] | None = None
    failed: int = 0
    counted: int = 0
    busy: bool = False
    outcomes: dict[int, str | None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def key(self, place: int) -> MessageKey:
        """The message at a place."""
        if self.retries is not None:
            return self.retries[place].message
        index, half_queue_id, half_queue_offset = self.rows.keys.at(place)
        return MessageKey(self.run.key(index, self.rows.rows, place), half_queue_id, half_queue_offset)

    def after(self, done: int) -> Position:
        """The position when the first ``done`` messages of it and all before it are consumed."""
        if not done:
            return self.before
        message = self.key(done - 1)
        index = self.rows.keys.at(done - 1)[0]
        return replace(self.run.after(self.base, index, message.batch.batch_time), part=message)

    @property
    def _failed(self) -> Mapping[MessageKey, Retry]:
        """Retries in which messages of it may be that have failed in order."""
        return self.queue.retries if self.retries is None and self.queue.ordered else {}

    def call_size(self, most: int) -> int:
        """How many messages, ``most`` at most, the next call takes: one that has failed is alone.

        Others would share its tries, and be given up with it.
        """
        most = min(most, len(self) - self.done)
        if not (known := self._failed):  # mostly: then no key is made
            return most
        alone = (place for place in range(most) if self.key(self.done + place) in known)
        return max(1, next(alone, most))

    def messages(self) -> list[MessageExt]:
        """Those that are not done."""
        times = None
        if self.retries is not None:
            times = [each.times for each in self.retries[self.done :]]
        elif known := self._failed:
            failed = [known.get(self.key(place)) for place in range(self.done, len(self))]
            times = [0 if each is None else each.times for each in failed]
        return messages_of(self.queue.queue.topic, self.rows.rows.slice(self.done), times)


@dataclass
class ProcessQueue:
    """One queue's messages, from being read to being consumed.

    ``fetched``: position behind the last message read, ``consumed``: behind the last one before which none is
    unfinished. ``retries``: by message; if the queue is ordered, the first of those that are not consumed holds it up
    until ``held_until`` (ms). ``dead``: given up, by number, until ``consumed`` has passed them and they are in
    `dead_letters`, as those up to number ``buried`` are. ``skip``: settled by a former owner, though behind
    ``consumed``. ``sequential``: one slice after the other; ``version``: of its row in SqlPositions, which has the dead
    letters ``kept_dead``. ``ahead``: how many retries wait for the position, as of the last `advance`. ``stuck``: it is
    not read until something of it is consumed. ``count``: messages in hand; ``size``: bytes of those that are not taken
    yet, ``retry_size``: of retries that are not consumed yet. ``kept_by``, ``reset_id``: as in QueueState.
    """

    queue: MessageQueue
    epoch: int
    fetched: Position
    consumed: Position
    retries: dict[MessageKey, Retry]
    dead: dict[int, DeadLetter]
    dead_letters: int
    ordered: bool = False
    sequential: bool = False
    version: int = 0
    kept_dead: tuple[tuple[int, DeadLetter], ...] = ()
    buried: int = 0
    skip: frozenset[MessageKey] = frozenset()
    ahead: int = 0
    held_until: int = 0
    resumed_until: int = 0
    leaving: bool = False
    lost: bool = False
    stuck: bool = False
    count: int = 0
    size: int = 0
    retry_size: int = 0
    kept_by: str | None = None
    reset_id: str | None = None
    #: retries that are being read or consumed
    retrying: set[MessageKey] = field(default_factory=set)
    #: not taken yet; taken and unfinished, in order; to be taken first, retries and what was not finished
    _pieces: deque[Slice] = field(default_factory=deque)
    _slices: deque[Slice] = field(default_factory=deque)
    _again: deque[Slice] = field(default_factory=deque)
    _busy: int = 0
    _took_new: bool = True
    _run: tuple[Run, Position] | None = None

    @classmethod
    def of(
        cls, queue: MessageQueue, state: QueueState, ordered: bool, epoch: int, version: int | None = None
    ) -> ProcessQueue:
        """A queue that this member has taken."""
        position, retries = state.position, {each.message: each for each in state.retries}
        held_until = state.held.due_at if ordered and state.held is not None else 0
        if not ordered:  # of a group that was
            retries = {key: each._replace(held_since=None) for key, each in retries.items()}
        dead = dict(state.dead)
        found = cls(queue, epoch, position, position, retries, dead, state.dead_letters, ordered)
        found.held_until, found.sequential = held_until, version is not None
        found.version, found.kept_dead = version or 0, state.dead
        found.resumed_until, found.reset_id = state.resumed_until, state.reset_id
        given_up = {letter.message for letter in dead.values()}
        found.skip = frozenset(given_up if ordered else given_up.union(retries))
        found.advance()
        return found

    def state(self, owner: str | None) -> QueueState:
        """What is to be kept of it."""
        retries = tuple(self.retries.values())
        letters = self.kept_letters()
        return QueueState(self.consumed, retries, letters, self.dead_letters, owner, self.epoch, kept_by=self.kept_by)

    def kept_letters(self) -> tuple[tuple[int, DeadLetter], ...]:
        """Those of ``dead`` that are to be kept; the others are forgotten."""
        for number, letter in list(self.dead.items()):
            if number <= self.buried and self.consumed.has(letter.message):
                del self.dead[number]
        return tuple(self.dead.items())

    @property
    def one_by_one(self) -> bool:
        """True if a hanging call blocks all of it."""
        return self.ordered or self.sequential

    @property
    def has_room(self) -> bool:
        """True if more of it may be read."""
        return not (self.lost or self.leaving or self.stuck)

    def is_to_be_read(self, retry: Retry) -> bool:
        """True if the message of a retry that is due is to be read.

        What lies behind the position waits until that has passed it: until then nothing would tell a next owner that it
        was consumed. If the queue is ordered, such a message blocks it and is in flight.
        """
        return retry.message not in self.retrying and not self._is_ahead(retry.message)

    def _is_ahead(self, message: MessageKey) -> bool:
        return message in self.skip or (self.ordered and not self.consumed.has(message))

    def hold(self, message: MessageKey, since: int) -> None:
        """The message, which has a retry, is the next one, and blocks the queue until that is due."""
        retry = self.retries[message] = self.retries[message]._replace(held_since=since)
        self.held_until = retry.due_at

    @property
    def held(self) -> Retry | None:
        """The retry that holds it up; None = none does."""
        return holding(self.retries.copy().values(), self.consumed) if self.ordered else None

    @property
    def hungry(self) -> bool:
        """True if it could consume, and has nothing to."""
        return not (self._pieces or self._slices or self.lost or self.leaving)

    @property
    def at_rest(self) -> bool:
        """True if no message of it is being consumed."""
        return not self._busy

    @property
    def idle(self) -> bool:
        """True if no message of it is being consumed, or is to be finished."""
        return not self._busy and not any(map(self.must_finish, self._again))

    def is_done(self, paused: bool) -> bool:
        """True if it may be given back; ``paused``: whatever is to be finished, for the listener is not called."""
        return self.idle or (paused and self.at_rest)

    def must_finish(self, taken: Slice) -> bool:
        """True if messages behind it are or are being consumed: given back now, they would be consumed twice."""
        if taken.retries is not None or taken not in self._slices:
            return False
        behind = islice(self._slices, self._slices.index(taken) + 1, None)
        return any(each.busy or each.done for each in behind)

    def begin(self, run: Run) -> None:
        """What is added next is of this run."""
        self._run = run, self.fetched

    def add(self, rows: MessageRows) -> None:
        """Messages of the run, in order; none if the run was dropped."""
        if self._run is None or not len(rows):
            return
        run, base = self._run
        piece = Slice(self, run, base, self.fetched, rows)
        if self.skip:
            kept = [place for place in range(len(rows)) if piece.key(place) not in self.skip]
            if not kept:
                return
            rows = rows.take(np.array(kept, np.int64))
            piece = Slice(self, run, base, self.fetched, rows)
        self._pieces.append(piece)
        self.fetched = piece.after(len(rows))
        self.count += len(rows)
        self.size += rows.rows.nbytes

    def end(self, run: Run) -> None:
        """The run has no more messages."""
        if self._run is None or self._run[0] is not run:
            return
        self.fetched = run.after(self._run[1], len(run))
        self._run = None
        self._settle()

    def rewind(self) -> None:
        """Drop what is not taken yet, and the rest of the run: it is read again."""
        for each in [each for each in self._again if each.retries is not None]:
            self._again.remove(each)
            self._forget(each)
        if self._pieces:
            self.fetched = self._pieces[0].before
        self._pieces.clear()
        self.count, self.size = sum(map(len, self._slices)) + len(self.retrying), 0
        self._run = None
        self.stuck = bool(self._slices)

    def take(self, most: int, now: int, only_again: bool = False, only_new: bool = False) -> Slice | None:
        """Up to ``most`` messages to be consumed next; None if there are none now. ``now``: ms.

        ``only_again``: none that are consumed for the first time; ``only_new``: none but those.
        """
        if self.lost:
            return None
        if self.leaving:
            return self.take_to_finish()
        taken = None
        if (self.ordered and now < self.held_until) or (self._busy and self.one_by_one):
            return None
        new, again = bool(self._pieces) and not only_again, bool(self._again) and not only_new
        if new and again and not self.one_by_one:
            again = self._took_new  # in turn: neither holds up the other
        if again:
            taken = self._again.popleft()
        elif new:
            taken = self._next(most)
            self._slices.append(taken)
        self._took_new = not again
        return self._given(taken)

    def take_to_finish(self) -> Slice | None:
        """What a thread has to finish of a queue that is being given back; None if there is nothing."""
        if self.lost:
            return None
        taken = next(filter(self.must_finish, self._again), None)
        if taken is not None:
            self._again.remove(taken)
        return self._given(taken)

    def _given(self, taken: Slice | None) -> Slice | None:
        if taken is not None:
            self._busy += 1
            taken.busy = True
        return taken

    def _next(self, most: int) -> Slice:
        piece = self._pieces[0]
        if len(piece) <= most:
            self._pieces.popleft()
            self.size = max(0, self.size - piece.rows.rows.nbytes) if self._pieces else 0
            return piece
        first, rest = piece.rows.slice(0, most), piece.rows.slice(most, len(piece))
        taken = Slice(self, piece.run, piece.base, piece.before, first)
        self._pieces[0] = Slice(self, piece.run, piece.base, taken.after(most), rest)
        return taken

    def retry(self, rows: MessageRows, retries: list[Retry]) -> None:
        """Messages to be consumed again now."""
        self._again.append(Slice(self, Run([]), Position(), Position(), rows, 0, retries))
        self.retrying.update(each.message for each in retries)
        self.count += len(rows)
        self.retry_size += rows.rows.nbytes

    def keep(self) -> None:
        """Have a thread keep its state in the database though no message was consumed: a slice of none."""
        none = np.zeros(0, np.int64)
        self.retry(MessageRows(MessageKeys(none, none, none, none), pa.table({})), [])

    def _forget(self, taken: Slice) -> None:
        """Retries are consumed, or dropped."""
        self.retrying.difference_update(each.message for each in taken.retries or ())
        self.count -= len(taken)
        self.retry_size -= taken.rows.rows.nbytes

    def put_back(self, taken: Slice) -> None:
        """A thread has ended with it: consumed as far as ``done`` says."""
        self._busy -= 1
        taken.busy = False
        if taken.done < len(taken):
            self._again.appendleft(taken)
        elif taken.retries is not None:
            self._forget(taken)
        self._settle()

    def advance(self) -> None:
        """Bring ``consumed`` up to what is done, and forget what it has passed."""
        self._settle()
        if self.skip:
            self.skip = frozenset(key for key in self.skip if not self.consumed.has(key))
        self.ahead = sum(map(self._is_ahead, self.retries)) if self.skip or self.ordered else 0

    def _settle(self) -> None:
        while self._slices and self._slices[0].done == len(self._slices[0]):
            first = self._slices.popleft()
            self.stuck = False
            self.consumed = first.after(len(first))
            self.count -= len(first)
        if self._slices:
            if self._slices[0].done:
                self.consumed = self._slices[0].after(self._slices[0].done)
        elif not self._pieces and self._run is None:
            self.consumed = self.fetched

    def give_up(self, dead: DeadLetter) -> None:
        """The message goes to `dead_letters`, under the next number."""
        self.dead_letters += 1
        self.dead[self.dead_letters] = dead
