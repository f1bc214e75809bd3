"""PushConsumer: consumes topics as a member of a group (DefaultMQPushConsumer of RocketMQ).

Three kinds of threads: one reads messages ahead, some call the listener, one keeps the positions and shares the queues
with the group's other members. What they share is `InHand`, under one lock.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from checkback.consumer.batch_log import BatchLog
from checkback.consumer.dead_letters import DeadLetters
from checkback.consumer.group_table import GroupTable
from checkback.consumer.in_hand import InHand, Run, Slice
from checkback.consumer.listening import Listening
from checkback.consumer.membership import Membership
from checkback.consumer.result import error_summary
from checkback.consumer.retry import MAX_RECONSUME_TIMES, RETRY_LEVELS, DeadLetter, after_failure, due
from checkback.consumer.start import StartFrom, start_positions
from checkback.consumer.storage import consumer_tables
from checkback.consumer.topic_reader import TopicReader
from checkback.consumer.transactional_listening import TransactionalListening
from checkback.errors import CheckbackError, SettingsError
from checkback.filter import MessageSelector
from checkback.messages import is_group, is_topic
from checkback.storage.object_store import is_registered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from checkback.consumer.group_state import MessageQueue, QueueState
    from checkback.consumer.position import MessageKey, Position
    from checkback.consumer.retry import Retry
    from checkback.consumer.sql_positions import SqlPositions
    from checkback.settings import Settings

_log = logging.getLogger("checkback.consumer")
#: time between looks for new batches, and between looks at the group (s): in a folder, in an object store
_POLL_S, _POLL_STORE_S = 0.05, 1.0
#: messages and bytes in hand beyond which no more are read
_MOST_MESSAGES, _MOST_BYTES = 20_000, 128 << 20
#: retries in hand beyond which only they are consumed
_MOST_RETRIES = 10_000
#: retries read together
_RETRIES = 256
#: after how long reading goes on without a queue that has no room (s)
_PATIENCE_S = 1.0
#: pause after an error of the store (s)
_PAUSE_S = 1.0


class PushConsumer:
    """Calls a listener with each message of the topics that it subscribes; a context manager starts and ends it.

    ``storage``: the root of the tables, or Settings. ``listener``: called with a MessageExt (with a list of up to
    ``batch`` of them if that is given), returns a ConsumeResult; an exception is RECONSUME_LATER. ``threads`` call it;
    if ``orderly``, one message after the other in each queue, and a failed one holds up its queue for ``suspend`` s.
    ``start_from``: where a topic begins that is new to the group: "first", "last", a datetime, or a batch id.

    Messages are consumed at least once; with ``positions`` exactly once: the listener is called with a connection as
    its second argument, and what it does through that is one transaction with the position. Raises SettingsError,
    StorageError.
    """

    def __init__(
        self,
        group: str,
        storage: Settings | str,
        listener: Callable[..., Any] | None = None,
        *,
        threads: int = 20,
        batch: int | None = None,
        orderly: bool = False,
        start_from: StartFrom = "first",
        positions: SqlPositions | None = None,
        max_reconsume_times: int = MAX_RECONSUME_TIMES,
        retry_levels: Iterable[float] | None = None,
        suspend: float = 1.0,
        session: float | None = None,
        commit_interval: float | None = None,
        member: str | None = None,
        options: dict[str, str] | None = None,
    ) -> None:
        self._tables, settings = consumer_tables(storage, options)
        if not is_group(group):
            raise SettingsError(
                "is not a group's name", group, "use letters, digits, _ and - only, at most 120 of them"
            )
        self.group = group
        self.member = member or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._listener = listener
        self._threads, self._batch, self._orderly = threads, batch, orderly
        self._start_from = start_from
        self._positions = positions
        self._most = max_reconsume_times
        levels = tuple(round(1000 * seconds) for seconds in retry_levels) if retry_levels is not None else RETRY_LEVELS
        self._levels = (round(1000 * suspend),) if orderly else levels
        self._session = session or settings.session.total_seconds()
        self._commit_s = commit_interval or settings.commit_interval.total_seconds()
        self._poll_s = _POLL_STORE_S if is_registered(self._tables.root) else _POLL_S
        self._selectors: dict[str, MessageSelector] = {}
        self._changed = threading.Condition()
        self._in_hand: dict[MessageQueue, InHand] = {}
        self._turn = 0
        self._stopping = threading.Event()
        self._paused = False
        self._running: list[threading.Thread] = []
        self._membership: Membership | None = None
        self._kept: dict[MessageQueue, Any] = {}
        #: the last error of the listener or the store: type and place; None = none
        self.last_error: str | None = None
        #: messages consumed, failed tries, messages given up
        self.consumed, self.failed, self.dead = 0, 0, 0

    def subscribe(self, topic: str, selector: MessageSelector | str = "*") -> PushConsumer:
        """Consume the messages of a topic that the selector (text: tags) matches. Before `start`. Returns itself."""
        if self._running:
            raise SettingsError("the consumer is running", topic, "subscribe before start()")
        if not is_topic(topic):
            raise SettingsError("is not a topic's name", topic, "see docs/protocol.md for what a name may be")
        self._selectors[topic] = MessageSelector.by_tag(selector) if isinstance(selector, str) else selector
        return self

    def register_listener(self, listener: Callable[..., Any]) -> PushConsumer:
        """Set the listener; see the class. Before `start`. Returns itself."""
        self._listener = listener
        return self

    def start(self) -> PushConsumer:
        """Join the group and begin to consume. Raises SettingsError, StorageError. Returns itself."""
        if self._running:
            return self
        if not self._selectors or self._listener is None:
            raise SettingsError("nothing to consume", self.group, "call subscribe(topic) and give a listener")
        self._listening: Listening | TransactionalListening = Listening(self._listener, self._batch)
        if self._positions is not None:
            self._positions.create_table()
            self._listening = TransactionalListening(self._listener, self._batch, self._positions, self.group)
        self._log = BatchLog(self._tables)
        self._log.refresh()
        table = GroupTable(self._tables, self.group)
        self._dead_letters = DeadLetters(self._tables, self.group)
        self._state_ids: dict[MessageQueue, str] = {}
        self._table_id = table.table_id
        self._membership = Membership(table, self.member, self._selectors, self._session, self._starts)
        self._membership.join()
        self._readers = {topic: self._reader(topic) for topic in self._selectors}
        self._dead_readers = {topic: TopicReader(self._tables, topic) for topic in self._selectors}
        self._adopt(self._membership)
        workers = [(self._work, f"consumer-{number}") for number in range(self._threads)]
        for target, name in [(self._read, "consumer-reader"), (self._coordinate, "consumer-group"), *workers]:
            thread = threading.Thread(target=target, name=f"{name}-{self.group}", daemon=True)
            self._running.append(thread)
            thread.start()
        return self

    def shutdown(self, timeout: float | None = None) -> None:
        """Finish the listener's calls in progress, keep the positions, leave the group. ``timeout``: s to wait."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        end = None if timeout is None else time.monotonic() + timeout
        for thread in self._running:
            if thread is not threading.current_thread():
                thread.join(None if end is None else max(0.0, end - time.monotonic()))
        if self._membership is not None:
            with suppress(CheckbackError):
                self._step(self._membership, True)
                self._membership.leave({queue: each.state(self.member) for queue, each in self._in_hand.items()})
        self._running, self._membership = [], None

    def pause(self) -> None:
        """Call the listener no more until `resume`; the member stays in the group."""
        self._paused = True

    def resume(self) -> None:
        """Go on after `pause`."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def queues(self) -> list[MessageQueue]:
        """The queues that this member owns."""
        with self._changed:
            return sorted(self._in_hand)

    @property
    def in_hand(self) -> int:
        """Messages that are read and not consumed yet."""
        with self._changed:
            return sum(each.count for each in self._in_hand.values())

    def settled_at(self, topic: str) -> int | None:
        """Batch time (ms) up to which this member's queues of the topic are consumed; None = nothing yet."""
        with self._changed:
            times = [each.consumed.settled_at for queue, each in self._in_hand.items() if queue.topic == topic]
        known = [time for time in times if time is not None]
        return min(known) if known and len(known) == len(times) else None

    def __enter__(self) -> PushConsumer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _reader(self, topic: str) -> TopicReader:
        selector = self._selectors[topic]
        return TopicReader(self._tables, topic, None if not selector.columns and selector.matches() else selector)

    def _starts(self, topics: Iterable[str]) -> dict[str, Position]:
        return start_positions(self._log, self._start_from, topics)

    # The reader's thread

    def _read(self) -> None:
        while not self._stopping.is_set():
            try:
                self._log.refresh()
                worked = [self._read_topic(topic) for topic in self._selectors] + [self._read_retries()]
            except Exception as error:  # noqa: BLE001 - the thread must go on
                self._note(error)
                self._stopping.wait(_PAUSE_S)
                continue
            if not any(worked):
                self._stopping.wait(self._poll_s)

    def _read_topic(self, topic: str) -> bool:
        """Read the next batches of the queues that have room; False if there is nothing to read."""
        with self._changed:
            room = [
                each
                for queue, each in self._in_hand.items()
                if queue.topic == topic
                and not (each.lost or each.leaving or each.stuck)
                and each.count < _MOST_MESSAGES
            ]
            if self._full() or not room:
                return False
            starts = {id(each): self._next_batch(each) for each in room}
            first = min(starts.values())
        if first >= len(self._log):
            return False
        count = self._readers[topic].run(self._log.batches[first:])
        mine = [each for each in room if starts[id(each)] < first + count]
        apart = [each for each in mine if each.fetched.part is not None and self._part_is_apart(each, first)]
        if apart:
            first, count, mine = self._log.index_of(apart[0].fetched.part.batch) or 0, 1, apart[:1]  # type: ignore[union-attr]
        batches = self._log.batches[first : first + count]
        run = Run([batch.key for batch in batches])
        with self._changed:
            for each in mine:
                each.begin(run)
            wanted = {each.queue.queue_id: each.fetched for each in mine}
        by_queue = {each.queue.queue_id: each for each in mine}
        for rows in self._readers[topic].read(batches, wanted):
            parts = list(rows.by_queue())
            with self._changed:
                for queue_id, part in parts:
                    by_queue[queue_id].add(part)
                self._changed.notify_all()
            self._wait_for_room(mine)
            if self._stopping.is_set():
                return True
        with self._changed:
            for each in mine:
                each.end(run)
        return True

    def _next_batch(self, queue: InHand) -> int:
        return self._log.first_unconsumed(queue.fetched)

    def _part_is_apart(self, queue: InHand, first: int) -> bool:
        """True if the batch that is consumed in part is not the next one: it is read by itself."""
        part = queue.fetched.part
        index = None if part is None else self._log.index_of(part.batch)
        return index is not None and index != self._next_batch(queue) and index != first

    def _full(self) -> bool:
        return sum(each.size for each in self._in_hand.values()) > _MOST_BYTES

    def _wait_for_room(self, mine: list[InHand]) -> None:
        """Wait until what was read is consumed in part; if others have nothing to do, what is stuck is read later."""
        with self._changed:
            began = time.monotonic()
            while not self._stopping.is_set() and (self._full() or any(each.count > _MOST_MESSAGES for each in mine)):
                self._changed.wait(0.05)
                hungry = any(each.hungry for each in self._in_hand.values())
                if hungry and not self._paused and time.monotonic() > began + _PATIENCE_S:
                    for each in mine:
                        if not each.hungry:
                            each.rewind()
                    return

    def _read_retries(self) -> bool:
        """Read messages whose retry is due; False if there is none."""
        now = _now()
        wanted: dict[str, list[tuple[InHand, Retry]]] = {}
        with self._changed:
            for queue, each in self._in_hand.items():
                if each.retries and not (each.lost or each.leaving):
                    # What lies behind the position waits until that has passed it: until then nothing would tell a
                    # next owner that it was consumed.
                    found = [
                        retry
                        for retry in due(each.retries, now)
                        if retry.message not in each.retrying and retry.message not in each.skip
                    ]
                    if self._orderly:  # the others hold up their queue, and are in hand
                        found = [retry for retry in found if retry.resumed]
                    wanted.setdefault(queue.topic, []).extend((each, retry) for retry in found)
        for topic, found_all in wanted.items():
            chosen = {retry.message: (each, retry) for each, retry in found_all[:_RETRIES]}
            if chosen:
                self._fetch_retries(topic, chosen)
        return any(wanted.values())

    def _fetch_retries(self, topic: str, chosen: dict[MessageKey, tuple[InHand, Retry]]) -> None:
        fetched = self._readers[topic].fetch(chosen)
        with self._changed:
            for place, key in enumerate(fetched.keys):
                each, retry = chosen.pop(key)
                each.retrying.add(key)
                each.retry(fetched.rows.slice(place, place + 1), [retry])  # type: ignore[union-attr]
            for key, (each, retry) in chosen.items():
                each.retries.pop(key, None)
                each.give_up(DeadLetter(key, retry.times, _now(), "the message is no longer in the topic's table"))
            self._changed.notify_all()

    # The listener's threads

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            done, failed = taken.done, taken.failed
            self._consume(taken)
            with self._changed:
                self.consumed += taken.done - done - (taken.failed - failed)
                taken.queue.put_back(taken)
                self._changed.notify_all()

    def _consume(self, taken: Slice) -> None:
        try:
            self._listening.consume(taken, self)
        except Exception as error:  # noqa: BLE001 - the thread must go on
            self._note(error)
            self._stopping.wait(_PAUSE_S)

    def _take(self) -> Slice | None:
        """The next messages for a thread; None at the end."""
        with self._changed:
            while True:
                stopping = self._stopping.is_set()
                if (not self._paused or stopping) and self._membership is not None and self._membership.holds():
                    taken = self._take_from(list(self._in_hand.values()), stopping)
                    if taken is not None:
                        return taken
                if stopping:
                    return None
                self._changed.wait(0.1)

    def _take_from(self, queues: list[InHand], stopping: bool) -> Slice | None:
        now, size = _now(), self._listening.slice_size()
        for number in range(len(queues)):
            each = queues[(self._turn + number) % len(queues)]
            taken = each.take_to_finish() if stopping else each.take(size, now)
            if taken is not None:
                self._turn += number + 1
                return taken
        return None

    def goes_on(self, taken: Slice) -> bool:
        """True while its messages may be given to the listener."""
        while self._paused and not self._stopping.is_set():
            time.sleep(0.05)
        queue, member = taken.queue, self._membership
        if queue.lost or member is None or not member.holds():
            return False
        if queue.leaving or self._stopping.is_set():
            with self._changed:
                return queue.must_finish(taken)
        return True

    def succeeded(self, taken: Slice, count: int) -> None:
        """The next ``count`` messages are consumed."""
        if taken.retries is not None or taken.queue.retries:
            with self._changed:
                for place in range(taken.done, taken.done + count):
                    taken.queue.retries.pop(taken.key(place), None)
        taken.done += count

    def failed_with(self, taken: Slice, count: int, reason: str) -> bool:
        """The next ``count`` messages are not consumed; False if they hold up their queue."""
        queue, now, first = taken.queue, _now(), taken.key(taken.done)
        with self._changed:
            self.failed += count
            self.last_error = reason
            if self._orderly:  # the messages of a call fail together
                known = queue.retries.pop(first, None)
                outcome = self._after_failure(known, first, reason, now)
                if not isinstance(outcome, DeadLetter):
                    queue.retries[first], queue.held_until, queue.held_count = outcome, outcome.due_at, count
                    return False
            for place in range(taken.done, taken.done + count):
                key = taken.key(place)
                if not self._orderly:
                    outcome = self._after_failure(queue.retries.pop(key, None), key, reason, now)
                if isinstance(outcome, DeadLetter):
                    queue.give_up(outcome._replace(message=key))
                    self.dead += 1
                else:
                    queue.retries[key] = outcome
            taken.done += count
            taken.failed += count
            return True

    def _after_failure(self, known: Retry | None, key: MessageKey, reason: str, now: int) -> Retry | DeadLetter:
        return after_failure(key, known.times if known else 0, reason, now, self._most, self._levels)

    # The group's thread

    def _coordinate(self) -> None:
        kept_at = float("-inf")
        while not self._stopping.wait(min(self._poll_s * 2, self._commit_s)):
            member = self._membership
            if member is None:
                return
            try:
                now = time.monotonic()
                commit = now >= kept_at + self._commit_s
                if self._step(member, commit) and commit:
                    kept_at = now
            except Exception as error:  # noqa: BLE001 - the thread must go on
                self._note(error)

    def _step(self, member: Membership, commit: bool) -> bool:
        give_back = member.to_give_back()
        with self._changed:
            for queue, each in self._in_hand.items():
                if queue in give_back and not each.leaving:
                    each.leaving = True
                    each.rewind()
                each.advance()
            states = {queue: each.state(self.member) for queue, each in self._in_hand.items()}
            done = {queue for queue, each in self._in_hand.items() if each.leaving and each.idle}
        changed = states != self._kept
        if not member.step(states, done, commit and changed, self.last_error):
            _log.warning("group %s: another member has taken this one for dead; joining again", self.group)
            with self._changed:
                for each in self._in_hand.values():
                    each.lost = True
                self._in_hand = {}
            member.join()
        elif commit and changed:
            self._kept = states
        self._adopt(member)
        self._bury(member)
        return True

    def _bury(self, member: Membership) -> None:
        """Append the dead letters that are kept by now to the table."""
        for queue, state in member.owned().items():
            with self._changed:
                each = self._in_hand.get(queue)
            if each is None or each.epoch != state.epoch:
                continue
            kept = each.kept_dead if each.sequential else state.dead_letters
            dead = {number: letter for number, letter in state.dead if each.buried < number <= kept}
            if dead:
                state_id = self._state_ids.get(queue, self._table_id)
                self._dead_letters.append(state_id, queue, dead, self._dead_readers[queue.topic])
                each.buried = max(dead)

    def _adopt(self, member: Membership) -> None:
        """Bring the queues in hand in line with those that this member owns."""
        owned = member.owned()
        with self._changed:
            new = [
                queue
                for queue in owned
                if queue not in self._in_hand or self._in_hand[queue].epoch != owned[queue].epoch
            ]
        taken = {queue: self._take_over(queue, owned[queue]) for queue in new if queue.topic in self._selectors}
        with self._changed:
            for queue, each in list(self._in_hand.items()):
                if queue not in owned or owned[queue].epoch != each.epoch:
                    each.lost = True
                    del self._in_hand[queue]
            for queue, each in taken.items():
                self._in_hand.setdefault(queue, each)
            for queue, added in member.added.items():
                mine = self._in_hand.get(queue)
                if mine is not None and mine.sequential:
                    self._drop(mine)  # taken anew with them, in one transaction of the database
                elif mine is not None:
                    mine.retries |= {retry.message: retry for retry in added}
            self._changed.notify_all()

    def _take_over(self, queue: MessageQueue, state: QueueState) -> InHand:
        if self._positions is None:
            return InHand.of(queue, state, self._orderly, state.epoch)
        kept = self._positions.load(self.group, queue, state)
        self._state_ids[queue] = kept.state_id
        return InHand.of(queue, kept.state, self._orderly, state.epoch, kept.version)

    def lose(self, queue: InHand, reason: str) -> None:
        """Drop what is in hand of the queue; if this member still owns it, it goes on from what is kept."""
        self.last_error = reason
        with self._changed:
            self._drop(queue)

    def _drop(self, queue: InHand) -> None:
        queue.lost = True
        if self._in_hand.get(queue.queue) is queue:
            del self._in_hand[queue.queue]

    def _note(self, error: Exception) -> None:
        self.last_error = str(error) if isinstance(error, CheckbackError) else error_summary(error)
        _log.warning("group %s: %s", self.group, self.last_error)


def _now() -> int:
    return round(time.time() * 1000)
