"""The reader's thread of a PushConsumer: it reads the messages of new batches, and those whose retry is due."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from checkback.consumer.position import floor_of
from checkback.consumer.process_queue import Run
from checkback.consumer.process_queues import MOST_MESSAGES, now_ms, warn
from checkback.consumer.retry_or_dead_letter import DeadLetter, due
from checkback.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from checkback.consumer.batch_log import BatchLog
    from checkback.consumer.group.group_state import MessageQueue
    from checkback.consumer.position import MessageKey
    from checkback.consumer.process_queue import ProcessQueue
    from checkback.consumer.process_queues import ProcessQueues
    from checkback.consumer.retry_or_dead_letter import Retry
    from checkback.consumer.topic_reader import TopicReader

#: retries read together, and of a queue in hand beyond which no more are read
_RETRIES = 256
#: bytes of retries in hand of a queue that is consumed one by one: what a call holds up must leave room for others
_RETRY_BYTES = 2 << 20
#: after how long reading goes on without a queue that has no room (s)
_PATIENCE_S = 1.0
#: pause after an error of the store (s)
PAUSE_S = 1.0
#: time between looks at what retention has removed (s): a request in an object store
_MISSED_S = 60.0
_RESTORED = "batches that the group has consumed are gone: the tables were restored from a backup"
_IS_CONSUMED = "nothing to do: later batches are consumed, and what was published again is consumed again"
_GONE = "the message is no longer in the topic's table, or was erased"


class ReaderThread:
    """Reads ahead for all assigned queues. ``poll_s``: time between looks for new batches."""

    def __init__(
        self, hand: ProcessQueues, batches: BatchLog, topics: Mapping[str, TopicReader], poll_s: float
    ) -> None:
        self._hand = hand
        self._log = batches
        self._topics = topics
        self._poll_s = poll_s
        self._paused_until: dict[tuple[str, str], float] = {}
        #: by queue its epoch, and the listing of batches that its position was compared with
        self._compared: dict[MessageQueue, tuple[int, int]] = {}
        #: the listing of which was told that batches are gone
        self._told = -1
        #: by topic the messages that the group has missed, as was last told, and when to look again (monotonic, s)
        self._missed: dict[str, tuple[int, float]] = {}

    def run(self) -> None:
        """Until the consumer stops."""
        stopping = self._hand.stopping
        while not stopping.is_set():
            worked = [self._attempt("", self._refresh)]
            worked += [self._attempt(topic, self._read_topic) for topic in self._topics]
            worked += [self._attempt(topic, self._read_retries) for topic in self._topics]
            if not any(worked):
                stopping.wait(self._poll_s)

    def _attempt(self, topic: str, work: Callable[[str], bool]) -> bool:
        """Its result; False for a while after an error, which must not hold up other topics, nor other work."""
        what = topic, work.__name__
        if time.monotonic() < self._paused_until.get(what, 0.0):
            return False
        try:
            return work(topic)
        except BaseException as error:  # noqa: BLE001 - the thread must go on; a panic of delta-rs is no Exception
            self._hand.note(error)
            self._paused_until[what] = time.monotonic() + PAUSE_S
            return False

    def _refresh(self, _: str) -> bool:
        floor = self._log.listed.floor
        with self._hand.changed:
            mine = list(self._hand.queues.values())
            if mine and (self._log.is_full or not all(each.fetched.covers(floor) for each in mine)):
                floor = floor_of((each.fetched for each in mine), (key for each in mine for key in each.retries))
        return self._log.refresh(floor)

    def _read_topic(self, topic: str) -> bool:
        """Read the next batches of the queues that have room; False if there is nothing to read."""
        hand, reader = self._hand, self._topics[topic]
        with hand.changed:
            room = [each for queue, each in hand.queues.items() if queue.topic == topic and each.has_room]
            # One that was taken meanwhile may need batches that are not listed.
            room = [each for each in room if each.count < MOST_MESSAGES and each.fetched.covers(self._log.listed.floor)]
            if hand.full or hand.only_again or not room:
                return False
            for each in room:
                self._compare(each)
            starts = {each.queue: self._log.listed.first_unconsumed(each.fetched) for each in room}
            first = min(starts.values())
        if first >= len(self._log):
            return False
        self._tell_missed(topic, min(each.fetched.settled_at or 0 for each in room))
        mine, count = self._apart(room, starts), 1
        if mine:
            first = starts[mine[0].queue]
        else:
            count = reader.run(self._log.batches[first:])
            mine = [each for each in room if starts[each.queue] < first + count]
        batches = self._log.batches[first : first + count]
        run = Run(batches)
        with hand.changed:
            # One that is given back meanwhile has dropped messages before this run, which its position must not pass.
            mine = [each for each in mine if each.has_room]
            for each in mine:
                each.begin(run)
            wanted = {each.queue.queue_id: each.fetched for each in mine}
        by_queue = {each.queue.queue_id: each for each in mine}
        for rows in reader.read(batches, wanted):
            parts = list(rows.by_queue())
            with hand.changed:
                for queue_id, part in parts:
                    by_queue[queue_id].add(part)
                hand.changed.notify_all()
            self._wait_for_room(mine)
            if hand.stopping.is_set():
                return True
        with hand.changed:
            for each in mine:
                each.end(run)
        return True

    def _compare(self, each: ProcessQueue) -> None:
        """Compare a queue's position with the batches, once for each listing of them. Under the lock."""
        now = each.epoch, self._log.listing
        if self._compared.get(each.queue) == now:
            return
        self._compared[each.queue] = now
        if self._log.listed.lacks(each.fetched) and self._told != self._log.listing:
            self._told = self._log.listing
            self._hand.note(StorageError(_RESTORED, self._log.place, _IS_CONSUMED))

    def _tell_missed(self, topic: str, settled_at: int) -> None:
        """Log how many messages retention has removed that the group, which had consumed up to then (ms), missed."""
        now = time.monotonic()
        told, again = self._missed.get(topic, (-1, now))
        if now < again:
            return
        horizon, missed = self._topics[topic].missed(self._hand.group)
        if told < 0:  # else it was told when the group went on
            told = 0 if settled_at < horizon else missed
        self._missed[topic] = missed, now + _MISSED_S
        if missed > told:
            warn(
                "group %s: retention has removed %d messages of the topic %s that the group has not consumed: it goes "
                "on at the first one that is left",
                self._hand.group,
                missed - told,
                topic,
            )

    def _apart(self, room: list[ProcessQueue], starts: dict[MessageQueue, int]) -> list[ProcessQueue]:
        """A queue whose batch consumed in part is not the next one: that is read by itself, as its ``starts`` says.

        The order of the batches can change between two starts if a clock was set back before a rebuild.
        """
        for each in room:
            part = each.fetched.part
            index = None if part is None else self._log.listed.index_of(part.batch)
            if index is not None and index != starts[each.queue]:
                starts[each.queue] = index
                return [each]
        return []

    def _wait_for_room(self, mine: list[ProcessQueue]) -> None:
        """Wait until what was read is consumed in part.

        What others are to overtake, queues without messages or due retries, is read later.
        """
        hand = self._hand
        with hand.changed:
            began = time.monotonic()
            while not hand.stopping.is_set() and (hand.full or any(each.count > MOST_MESSAGES for each in mine)):
                hand.changed.wait(0.05)
                others = hand.only_again or any(each.hungry for each in hand.queues.values())
                if others and not hand.paused and time.monotonic() > began + _PATIENCE_S:
                    for each in mine:
                        if not each.hungry:
                            each.rewind()
                    return

    def _read_retries(self, topic: str) -> bool:
        """Read messages whose retry is due; False if there is none."""
        hand, now = self._hand, now_ms()
        with hand.changed:
            mine = [each for queue, each in hand.queues.items() if queue.topic == topic and each.retries]
            wanted = {
                retry.message: (each, retry)
                for each in (() if hand.full else mine)
                if not (each.lost or each.leaving) and len(each.retrying) < (1 if each.one_by_one else _RETRIES)
                for retry in due(each.retries, now)
                if each.is_to_be_read(retry)
            }
        chosen = dict(list(wanted.items())[:_RETRIES])
        if chosen:
            self._fetch(topic, chosen)
        return bool(chosen)

    def _fetch(self, topic: str, chosen: dict[MessageKey, tuple[ProcessQueue, Retry]]) -> None:
        hand = self._hand
        try:
            for fetched in self._topics[topic].fetch(chosen):
                with hand.changed:
                    for place, key in enumerate(fetched.keys):
                        if key not in chosen:  # another writer has put the message into the topic twice
                            continue
                        each, retry = chosen.pop(key)
                        if not each.one_by_one or each.retry_size < _RETRY_BYTES:
                            each.retry(fetched.rows.take(np.array([place])), [retry])  # a slice would keep all rows
                    hand.changed.notify_all()
                    if hand.full:
                        chosen.clear()  # the others are read later
                        break
        except BaseException:
            hand.unreadable.add(topic)
            raise
        hand.unreadable.discard(topic)
        with hand.changed:
            for key, (each, retry) in chosen.items():
                each.retries.pop(key, None)
                each.give_up(DeadLetter(key, retry.times, now_ms(), _GONE))
                hand.dead += 1
            for each in {id(each): each for each, _ in chosen.values() if each.sequential}.values():
                each.keep()
            hand.changed.notify_all()
