"""The group's thread of a PushConsumer: it keeps positions, gives queues back and takes others, buries dead letters."""

from __future__ import annotations

import threading
import time
from concurrent.futures import wait
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from checkback.consumer.process_queue import ProcessQueue
from checkback.consumer.process_queues import now_ms, warn
from checkback.consumer.reader_thread import PAUSE_S
from checkback.consumer.retry_or_dead_letter import not_later
from checkback.errors import StorageError, printable
from checkback.producer.daemon_threads import DaemonThreads
from checkback.storage.failure_scope import is_error
from checkback.storage.schemas import GROUP_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Future

    from checkback.consumer.dead_letters import DeadLetters
    from checkback.consumer.group.group_state import MessageQueue, QueueState
    from checkback.consumer.group.membership import Membership
    from checkback.consumer.process_queues import ProcessQueues
    from checkback.consumer.retry_or_dead_letter import DeadLetter
    from checkback.consumer.sql_positions import KeptState, SqlPositions
    from checkback.consumer.topic_reader import TopicReader
    from checkback.producer.daemon_threads import Outcome

#: positions that are loaded from a database at once
LOADS = 4
_SLOW = "a heartbeat took longer than the session allows: the listener is not called"


class Coordinator:
    """``topics``: readers of its own, by topic; ``state_id``: of the group's table; ``positions``: None = in Delta.

    ``levels``: pauses before the retries (ms).
    """

    def __init__(
        self,
        hand: ProcessQueues,
        member: Membership,
        dead_letters: DeadLetters,
        topics: Mapping[str, TopicReader],
        state_id: str,
        positions: SqlPositions | None,
        levels: tuple[int, ...],
    ) -> None:
        self._hand = hand
        self._member = member
        self._dead_letters = dead_letters
        self._topics = topics
        self._state_id = state_id
        self._state_ids: dict[MessageQueue, str] = {}
        self._positions = positions
        self._levels = levels
        self._kept: dict[MessageQueue, QueueState] = {}
        #: Loads of positions from a database, by queue and epoch. In threads of their own: one that waits for a
        #: connection, or for a database that does not answer, keeps the member from no beat.
        self._loads: dict[tuple[MessageQueue, int], Future[Outcome[KeptState]]] = {}
        self._loaders = DaemonThreads(LOADS, f"consumer-load-{hand.group}")
        #: when each queue was last tried to be taken over, or to have its dead letters appended (monotonic, s)
        self._tried: dict[tuple[str, MessageQueue], float] = {}
        #: members that do not subscribe as this one does, and the names of those that were told
        self.differing = 0
        self._told: frozenset[str] = frozenset()
        #: the listener's calls have returned: nothing is left to be kept alive for
        self.ended = threading.Event()

    def run(self, poll_s: float, commit_s: float) -> None:
        """Until `ended`, for while calls are in progress the member must beat; then it leaves the group."""
        kept_at = float("-inf")
        while not self.ended.wait(min(poll_s, commit_s)):
            now = time.monotonic()
            commit = now >= kept_at + commit_s
            if self._attempt(commit) and commit:
                kept_at = now
        try:
            self.leave()
        except BaseException as error:  # its queues are taken over after the session
            if not is_error(error):
                raise
            self._hand.note(error)

    def _attempt(self, commit: bool) -> bool:
        try:
            self.step(commit)
        except BaseException as error:  # noqa: BLE001 - the thread must go on; a panic of delta-rs is no Exception
            self._hand.note(error)
            self.ended.wait(min(PAUSE_S, self._member.beat_s))
            return False
        return True

    def step(self, commit: bool) -> None:
        """Keep what has changed (with ``commit`` also positions), and bring the queues in line with the group.

        Raises StorageError, or what the database of the positions raises, once all that can be done is.
        """
        hand, member = self._hand, self._member
        give_back, owned = member.to_give_back(), member.owned()
        with hand.changed:
            for queue, each in hand.queues.items():
                if queue in give_back and not each.leaving:
                    each.leaving = True
                    each.rewind()
                each.advance()
            states = {queue: each.state(member.name) for queue, each in hand.queues.items()}
            leaving = {queue: each for queue, each in hand.queues.items() if each.leaving}
            done = {queue for queue, each in leaving.items() if each.lost or each.is_done(hand.paused)}
            for queue in done:  # from here on its next owner's: whatever happens until that is written
                leaving[queue].lost = True
            for queue in give_back - hand.queues.keys():  # not taken over yet
                if queue in owned and not hand.is_busy(queue):
                    states[queue] = owned[queue]
                    done.add(queue)
        commit = commit and states != self._kept
        try:
            if not member.step(states, done, commit, hand.last_error):
                warn("group %s: another member has taken this one for dead; joining again", hand.group)
                with hand.changed:
                    for each in list(hand.queues.values()):
                        hand.drop(each)
                member.join()
            elif commit:
                self._kept = states
        finally:
            hand.cut_off = not member.holds()
        self._compare()
        if hand.cut_off:
            hand.note(StorageError(_SLOW, f"{GROUP_PREFIX}{hand.group}", "raise consumer.session_timeout"))
        until = time.monotonic() + member.beat_s
        errors = [*self._adopt(until), *self._bury(until)]
        if errors:
            raise errors[0]

    def leave(self) -> None:
        """Keep everything, and leave the group. Raises StorageError."""
        try:
            self.step(True)
        except BaseException as error:  # what could be kept is
            if not is_error(error):
                raise
            self._hand.note(error)
        with self._hand.changed:
            states = {queue: each.state(self._member.name) for queue, each in self._hand.queues.items()}
            for each in list(self._hand.queues.values()):  # a call that hangs may return
                self._hand.drop(each)
        self._member.leave(states)

    def adopt(self) -> None:
        """Take over the queues that this member owns, as far as there is time; the others at the next steps."""
        self._compare()
        for error in self._adopt(time.monotonic() + self._member.beat_s)[:1]:
            self._hand.note(error)

    def _compare(self) -> None:
        """Log members whose subscription differs from this one's, once each: while a service is deployed it may."""
        state, name = self._member.state, self._member.name
        others = {each.name: each for each in state.unlike(name)}
        new = sorted(others.keys() - self._told)
        self.differing, self._told = len(others), frozenset(others)
        if new:
            mine, other = (printable(str(each.subscription))[:200] for each in (state.members[name], others[new[0]]))
            warn(
                "group %s: members subscribe differently, each filters the queues that it owns, the rest is lost to "
                "the group: %s to %s, this one to %s%s; give all members the same topics and selectors",
                *(self._hand.group, new[0], other, mine, f" (and {len(new) - 1} more members)" if new[1:] else ""),
            )

    def _adopt(self, until: float) -> list[BaseException]:
        """Align the assigned queues with those that this member owns."""
        hand, owned = self._hand, self._member.owned()
        with hand.changed:
            epochs = {queue: each.epoch for queue, each in hand.queues.items()}
            # In order, or in one transaction after the other: a call that was in progress has to return first.
            one_by_one = hand.orderly or self._positions is not None
            busy = {queue for queue in owned if one_by_one and hand.is_busy(queue)}
        new = [queue for queue, state in owned.items() if epochs.get(queue) != state.epoch and queue not in busy]
        taken: dict[MessageQueue, ProcessQueue] = {}
        self._load({queue: owned[queue] for queue in new}, until)

        def take_over(queue: MessageQueue) -> None:
            if (ready := self._take_over(queue, owned[queue])) is not None:
                taken[queue] = ready

        errors = self._try_each(take_over, new, until)
        with hand.changed:
            for queue, each in list(hand.queues.items()):
                if queue not in owned or owned[queue].epoch != each.epoch:
                    hand.drop(each)
            for queue, each in taken.items():
                hand.queues.setdefault(queue, each)
            for queue, added in self._member.added.items():
                mine = hand.queues.get(queue)
                if mine is not None and mine.sequential:
                    hand.drop(mine)  # taken again with them, in one transaction of the database
                elif mine is not None:
                    mine.retries |= {retry.message: retry for retry in added}
            hand.changed.notify_all()
        return errors

    def _try_each(
        self, work: Callable[[MessageQueue], None], queues: Iterable[MessageQueue], until: float
    ) -> list[BaseException]:
        """Do it for each queue; the rest at the next step if there is no time left: the member must beat.

        The errors are returned: an error of one queue does not block the others.
        """
        errors: list[BaseException] = []
        for queue in sorted(queues, key=lambda queue: self._tried.get((work.__name__, queue), 0.0)):
            try:
                work(queue)
            except BaseException as error:
                if not is_error(error):
                    raise
                errors.append(error)  # for the caller to raise
            now = self._tried[work.__name__, queue] = time.monotonic()
            if now >= until:
                break
        return errors

    def _take_over(self, queue: MessageQueue, state: QueueState) -> ProcessQueue | None:
        """The queue, ready to be consumed; None if its position is being loaded, or is to be loaded again."""
        if self._positions is None:
            return ProcessQueue.of(queue, self._due(state), self._hand.orderly, state.epoch)
        load = self._loads[queue, state.epoch]
        if not load.done():
            return None
        del self._loads[queue, state.epoch]
        kept = load.result().value()
        if kept.state.with_resumed(state.retries) != kept.state:  # an operator has added some during the load
            return None
        self._state_ids[queue] = kept.state_id
        ready = ProcessQueue.of(queue, self._due(kept.state), self._hand.orderly, state.epoch, kept.version)
        ready.kept_by = kept.state_id
        return ready

    def _load(self, states: Mapping[MessageQueue, QueueState], until: float) -> None:
        """Begin to load the positions of these queues, and wait for those that have just begun."""
        if self._positions is None:
            return
        wanted = {(queue, state.epoch) for queue, state in states.items()}
        for key in self._loads.keys() - wanted:
            self._loads.pop(key).cancel()
        new = wanted - self._loads.keys()
        for queue, epoch in new:
            work = partial(self._positions.load, self._hand.group, queue, states[queue], self._state_id)
            self._loads[queue, epoch] = self._loaders.submit(work)
        wait([self._loads[key] for key in new], max(0.0, until - time.monotonic()))

    def _due(self, state: QueueState) -> QueueState:
        """The state with retries that are not due later than their own pause from now."""
        now = now_ms()
        return replace(state, retries=tuple(not_later(each, now, self._levels) for each in state.retries))

    def _bury(self, until: float) -> list[BaseException]:
        """Append the dead letters that are kept by now to the table."""
        unburied: dict[MessageQueue, tuple[ProcessQueue, dict[int, DeadLetter]]] = {}
        for queue, state in self._member.owned().items():
            with self._hand.changed:
                each = self._hand.queues.get(queue)
            if each is None or each.epoch != state.epoch:
                continue
            # With SqlPositions those that both have: the group's table may have one that no transaction has kept, whose
            # number is then another message's; an operator's `group reconsume` judges by the group's table.
            kept = set(each.kept_dead if each.sequential else state.dead)
            new = [one for one in state.dead if one[0] > each.buried and one in kept]
            if new:
                unburied[queue] = each, dict(new)

        def bury(queue: MessageQueue) -> None:
            each, dead = unburied[queue]
            state_id = self._state_ids.get(queue, self._state_id)
            last = self._dead_letters.append(state_id, queue, dead, self._topics[queue.topic])
            with self._hand.changed:
                each.buried, each.dead_letters = max(dead), max(each.dead_letters, last)

        return self._try_each(bury, unburied, until)
