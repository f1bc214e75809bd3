"""PushConsumer: consumes topics as a member of a group (DefaultMQPushConsumer of RocketMQ).

One thread reads messages ahead (`reader_thread`), some call the listener (`listener_threads`), one keeps positions and
shares the queues with the group's other members (`coordinator`). What they share is `process_queues`.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from checkback import tracing
from checkback.consumer.batch_log import BatchLog
from checkback.consumer.browse import has_topic
from checkback.consumer.consume_from_where import StartFrom, check_start, start_positions
from checkback.consumer.coordinator import LOADS, Coordinator
from checkback.consumer.dead_letters import DeadLetters
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.group.membership import Membership
from checkback.consumer.listener_calls import Listening, TransactionalListening, one_listener, refuse_unfit
from checkback.consumer.listener_threads import ListenerThreads
from checkback.consumer.options import ConsumerOptions
from checkback.consumer.position import floor_of
from checkback.consumer.process_queues import ProcessQueues, warn
from checkback.consumer.reader_thread import ReaderThread
from checkback.consumer.storage import consumer_tables, no_topic, refuse_no_tables
from checkback.consumer.topic_reader import TopicReader
from checkback.errors import SettingsError
from checkback.filter import MessageSelector
from checkback.filter.message_selector import tags_of
from checkback.messages.durations import seconds_of
from checkback.messages.names import is_consumer_group, is_group, is_topic, not_a_folder
from checkback.storage.files.object_store import is_registered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from checkback.consumer.group.group_state import GroupState, MessageQueue
    from checkback.consumer.listener_calls import Listens
    from checkback.consumer.position import Position
    from checkback.consumer.retry_or_dead_letter import Retry
    from checkback.consumer.sql_positions import SqlPositions
    from checkback.settings import Settings

#: time between looks for new batches (s): in a folder, in an object store; at the group: twice as long
_POLL_S, _POLL_STORE_S = 0.05, 1.0


class PushConsumer:
    """Calls a listener with each message of the topics that it subscribes; a context manager starts and ends it.

    ``storage``: the root of the tables (text or path), or Settings. ``listener`` is called with a MessageExt,
    ``listener_batch`` with a list of up to ``max_batch_size`` of them; give one of the two. It returns a ConsumeResult;
    an exception is RECONSUME_LATER. ``threads`` call it; if ``orderly``, one message after the other in each queue: one
    that fails holds up its queue, and is tried again after ``suspend``, then after twice as long each time, up to 30 s.
    A message that has failed ``max_reconsume_times`` times more is given up; None: after 16, in order never.
    ``start_from``: where a topic begins that is new to the group: "first" (None), "last", a datetime with a time zone,
    or a batch id; the others go on where the group is.

    Messages are consumed at least once; with ``positions`` exactly once: the listener is called with a connection as
    its second argument, and what it does through that is one transaction with the position. Raises SettingsError,
    StorageError; TypeError unless there is one listener, for a ``storage`` that is neither, and for a duration that
    is a plain number.
    """

    def __init__(
        self,
        group: str,
        storage: Settings | str | os.PathLike[str],
        listener: Callable[..., Any] | None = None,
        *,
        listener_batch: Callable[..., Any] | None = None,
        max_batch_size: int = 32,
        threads: int = 20,
        orderly: bool = False,
        start_from: StartFrom | None = None,
        positions: SqlPositions | None = None,
        max_reconsume_times: int | None = None,
        retry_levels: Iterable[timedelta] | None = None,
        suspend: timedelta = timedelta(seconds=1),
        session_timeout: timedelta | None = None,
        commit_interval: timedelta | None = None,
        member: str | None = None,
        options: dict[str, str] | None = None,
    ) -> None:
        self._listener = one_listener(listener, listener_batch)
        refuse_unfit(self._listener, group, awaited=False)
        if tracing.loaded():
            self._listener = tracing.processed(self._listener, group)
        self._tables, settings = consumer_tables(storage, options)
        if not is_consumer_group(group):
            what, fix = "is not a group's name", "use letters, digits, _ and - only, at most 120 of them"
            if is_group(group):
                what, fix = f"is no consumer group's name: it {not_a_folder(group)}", "choose another"
            raise SettingsError(what, group, fix)
        if start_from is not None:
            check_start(start_from, datetime.now(timezone.utc))
        self._options = ConsumerOptions(
            threads=threads,
            max_batch_size=max_batch_size,
            orderly=orderly,
            max_reconsume_times=max_reconsume_times,
            retry_levels=None if retry_levels is None else tuple(retry_levels),
            suspend=suspend,
            session_timeout=settings.session_timeout if session_timeout is None else session_timeout,
            commit_interval=settings.commit_interval if commit_interval is None else commit_interval,
        )
        self.group = group
        #: the name in the group, from `start` on
        self.member = ""
        self._named = member
        #: set before `start`: instead of the listener's calls
        self.listening: Listens | None = None
        #: messages of a call; None = one, not in a list
        self._batch = max_batch_size if listener is None else None
        self._start_from = start_from
        self._positions = positions
        self._selectors: dict[str, MessageSelector] = {}
        self._hand = ProcessQueues(group, orderly)
        self._threads: list[threading.Thread] = []
        self._coordinator: Coordinator | None = None
        #: Held while it starts. What a service calls besides takes no lock that the threads need: a signal's
        #: handler may interrupt it anywhere, and its `close` waits for them.
        self._starting = threading.Lock()

    def subscribe(self, topic: str, selector: MessageSelector | str | None = "*") -> PushConsumer:
        """Consume the messages of a topic that the selector (text: tags, None: all) matches. Before `start`.

        Returns itself. Raises SettingsError, SelectorError; TypeError if the selector is something else.
        """
        if self._threads:
            raise SettingsError("the consumer is running", topic, "call subscribe before start()")
        if not is_topic(topic):
            raise SettingsError("is not a topic's name", topic, "see docs/landing.md for what a name may be")
        if selector is None or isinstance(selector, str):
            selector = MessageSelector.by_tag(selector)
        if not isinstance(selector, MessageSelector):
            raise TypeError(f"selector is {type(selector).__name__}; give a MessageSelector, or a text with tags")
        self._selectors[topic] = selector
        return self

    def start(self) -> PushConsumer:
        """Join the group and begin to consume. Raises SettingsError, StorageError. Returns itself."""
        with self._starting:
            if self.stopping:
                raise _closed(self.group)
            if not self._threads:
                self._start()
        return self

    def _start(self) -> None:
        hand, options = self._hand, self._options
        if not self._selectors:
            raise SettingsError("nothing to consume", self.group, "call subscribe(topic)")
        refuse_no_tables(self._tables)
        for topic in self._selectors:
            if not has_topic(self._tables, topic):
                warn("group %s: %s", self.group, no_topic(self._tables, topic))
        listening: Listens = self.listening or Listening(self._listener, self._batch)
        if self._positions is not None:
            self._positions.create_table()
            most = self._positions.most_connections
            if most is not None and most < options.threads:
                warn(
                    "group %s: the engine's pool has %d connections for %d threads, which wait for one another; "
                    "create_engine(..., pool_size=%d)",
                    *(self.group, most, options.threads, options.threads + LOADS),
                )
            listening = TransactionalListening(self._listener, self._batch, self._positions, hand)
        table = GroupTable(self._tables, self.group)
        known = sorted({queue.topic for queue in table.state.queues} & self._selectors.keys())
        batches = BatchLog(self._tables)
        batches.refresh(self._floor(table.state, known))
        if not len(batches):
            warn("group %s: there is no batch yet at %s", self.group, self._tables.root)
        if known and self._start_from is not None:
            warn(
                "group %s: start_from is for new topics; it goes on where it is in %s: see `checkback group reset`",
                *(self.group, ", ".join(known)),
            )

        def starts(topics: Iterable[str]) -> dict[str, Any]:
            return start_positions(batches, "first" if self._start_from is None else self._start_from, topics)

        selectors = {topic: said for topic, each in self._selectors.items() if (said := _said(each)) is not None}
        # Unique: a restarted process of the same name is another member, and so is a forked one.
        self.member = f"{self._named or f'{socket.gethostname()}-{os.getpid()}'}-{uuid.uuid4().hex[:8]}"
        kind: dict[str, Any] = {"selectors": selectors, "in_database": self._positions is not None}
        member = Membership(
            table, self.member, self._selectors, options.session_timeout.total_seconds(), starts, **kind
        )
        poll_s = _POLL_STORE_S if is_registered(self._tables.root) else _POLL_S
        reader = ReaderThread(hand, batches, {topic: self._reader(topic, batches) for topic in self._selectors}, poll_s)
        unfiltered = {topic: TopicReader(self._tables, topic, batches) for topic in self._selectors}
        letters = DeadLetters(self._tables, self.group)
        coordinator = Coordinator(hand, member, letters, unfiltered, table.table_id, self._positions, options.levels_ms)
        member.join()
        coordinator.adopt()
        listener_threads = ListenerThreads(hand, listening, member, options)
        targets = [("reader", reader.run), *((str(number), listener_threads.run) for number in range(options.threads))]
        group = self._thread("group", coordinator.run, 2 * poll_s, options.commit_interval.total_seconds())
        self._threads = [group, *(self._thread(*target) for target in targets)]
        self._coordinator = coordinator  # from here on `close` ends it
        if self.stopping:
            coordinator.leave()
            raise _closed(self.group)
        try:
            for thread in self._threads:  # the first message's listener may shut the consumer down: the group's first
                thread.start()
        except BaseException:  # no more threads are to be had
            self.close()
            raise

    def close(self, timeout: timedelta | None = None) -> None:
        """Finish the calls in progress, keep the positions, leave the group.

        ``timeout``: to wait for calls, and then for the session's time at most for the store; what that has not
        answered by then goes on behind.
        Called by the listener it returns at once, and the rest is done when the calls have returned. Called again, also
        by a signal's handler or after an interrupt, it waits for the same end.
        """
        timeout_s = None if timeout is None else seconds_of("timeout", timeout)
        called = threading.current_thread() in self._threads
        ending = threading.Thread(
            target=self._end, args=(timeout_s,), name=f"consumer-end-{self.group}", daemon=not called
        )
        try:
            ending.start()
        except RuntimeError:  # the interpreter is ending
            if called:
                raise
            self._end(timeout_s)
            return
        if called:
            self._hand.stopping.wait()
        else:
            ending.join()

    def _end(self, timeout_s: float | None) -> None:
        """In a thread of its own, which no signal interrupts. Of two at once each waits for its time, and no longer."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        self._hand.stopping.set()
        coordinator = self._coordinator
        if coordinator is None:  # if it is starting it finds that it is to stop
            return
        group, *others = self._threads
        for thread in others:
            _join(thread, None if end is None else max(0.0, end - time.monotonic()))
        coordinator.ended.set()
        # A store may not answer for minutes: after the session others take this member for dead anyway.
        _join(group, None if end is None else self._options.session_timeout.total_seconds())

    def pause(self) -> None:
        """Call the listener no more until `resume`; the member stays in the group."""
        self._hand.paused = True

    def resume(self) -> None:
        """Go on after `pause`."""
        self._hand.paused = False

    @property
    def stopping(self) -> bool:
        """True after `close`."""
        return self._hand.stopping.is_set()

    @property
    def running(self) -> bool:
        """True from `start` to `close`, while all its threads live."""
        threads = self._threads
        return bool(threads) and not self.stopping and all(thread.is_alive() for thread in threads)

    @property
    def last_error(self) -> str | None:
        """The last error of the listener (its type and place) or of the store; None = none."""
        return self._hand.last_error

    @property
    def consumed(self) -> int:
        """Messages consumed so far."""
        return self._hand.consumed

    @property
    def failed(self) -> int:
        """Tries that have failed so far."""
        return self._hand.failed

    @property
    def dead(self) -> int:
        """Messages given up so far."""
        return self._hand.dead

    @property
    def differing_members(self) -> int:
        """Members of the group with other topics or selectors than this one; messages are lost to the group then."""
        return 0 if self._coordinator is None else self._coordinator.differing

    def queues(self) -> list[MessageQueue]:
        """The queues that this member owns."""
        return sorted(self._hand.queues)

    @property
    def in_hand(self) -> int:
        """Messages that are read and not consumed yet."""
        return sum(each.count for each in self._hand.queues.copy().values())

    def held(self) -> dict[MessageQueue, Retry]:
        """In order: the failed messages that hold up queues of this member."""
        found = {queue: each.held for queue, each in self._hand.queues.copy().items()}
        return {queue: retry for queue, retry in found.items() if retry is not None}

    def settled_at(self, topic: str) -> int | None:
        """Batch time (ms) up to which this member's queues of the topic are consumed; None = nothing yet."""
        queues = self._hand.queues.copy().items()
        times = [each.consumed.settled_at for queue, each in queues if queue.topic == topic]
        known = [time for time in times if time is not None]
        return min(known) if known and len(known) == len(times) else None

    def __enter__(self) -> PushConsumer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _floor(self, state: GroupState, known: Sequence[str]) -> Position | None:
        """The batches that are not needed: the group has consumed them. ``known``: topics that are not new to it."""
        if not known or (self._start_from != "last" and len(known) < len(self._selectors)):
            return None
        mine = [each for queue, each in state.queues.items() if queue.topic in known]
        return floor_of((each.position for each in mine), (retry.message for each in mine for retry in each.retries))

    def _reader(self, topic: str, batches: BatchLog) -> TopicReader:
        selector = self._selectors[topic]
        return TopicReader(self._tables, topic, batches, None if _said(selector) is None else selector)

    def _thread(self, name: str, target: Callable[..., None], *arguments: float) -> threading.Thread:
        return threading.Thread(target=target, args=arguments, name=f"consumer-{name}-{self.group}", daemon=True)


def _said(selector: MessageSelector) -> str | None:
    """What the group's table says of a selector: equal ones of tags alike; None = all messages."""
    if not selector.columns and selector.matches():
        return None
    tags = tags_of(selector.text) if selector.type == "TAG" else None
    return f"{selector.type} {selector.text if tags is None else ' || '.join(sorted(tags))}"


def _closed(group: str) -> SettingsError:
    return SettingsError("the consumer was closed", group, "make a new one")


def _join(thread: threading.Thread, timeout: float | None) -> None:
    if thread.is_alive():  # one that is started after `close` ends at once
        thread.join(timeout)
