"""A member of a consumer group: joins, beats, shares the queues, keeps positions, and takes over from the dead.

Nobody's clock is compared with another's: a member is dead if its heartbeat has not changed for the session's time,
measured by who watches it. A member that could not beat for most of that time stops by itself (`holds`). Only who joins
a group whose members keep positions elsewhere tells by the clock whether they live, with patience.
"""

from __future__ import annotations

import time
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from checkback.consumer.group import rebalance
from checkback.consumer.group.group_lag import lives
from checkback.consumer.group.group_state import GroupState, Member, MessageQueue, QueueState
from checkback.errors import SettingsError
from checkback.storage.files.lease import boot_time

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from checkback.consumer.group.group_table import GroupTable
    from checkback.consumer.position import Position
    from checkback.consumer.retry_or_dead_letter import Retry

#: share of the session after which a member that could not beat stops, and heartbeats in a session
_HOLDS, _BEATS = 0.8, 3


class Membership:
    """One member of a group. Not thread-safe, except `holds`."""

    def __init__(
        self,
        table: GroupTable,
        name: str,
        topics: Collection[str],
        session_s: float,
        start: Callable[[Collection[str]], Mapping[str, Position]],
        clock: Callable[[], float] = boot_time,
        selectors: Mapping[str, str] = MappingProxyType({}),
        in_database: bool = False,
    ) -> None:
        """``start``: the positions at which topics begin that are new to the group; ``clock``: s.

        ``selectors``, ``in_database``: as in `Member`.
        """
        self._table = table
        self.name = name
        self._topics = frozenset(topics)
        self._selectors = dict(selectors)
        self._in_database = in_database
        self._session = session_s
        #: time between heartbeats (s)
        self.beat_s = session_s / _BEATS
        self._start = start
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}
        self._beat_at = float("-inf")
        self._known: dict[MessageQueue, QueueState] = {}
        #: retries that somebody else has added, as of the last step
        self.added: dict[MessageQueue, list[Retry]] = {}

    @property
    def state(self) -> GroupState:
        """The group's state as last read."""
        return self._table.state

    def holds(self) -> bool:
        """True while no other member can have taken this one for dead."""
        return self._clock() < self._beat_at + _HOLDS * self._session

    def join(self) -> None:
        """Become a member, with the queues that are free.

        Raises SettingsError if members that live keep their positions elsewhere, StorageError.
        """
        self._table.refresh()
        known = {queue.topic for queue in self.state.queues}
        start = self._start(sorted(self._topics - known))
        began = self._clock()
        joined, session = round(time.time() * 1000), round(1000 * self._session)
        member = Member(self.name, 1, joined, self._topics, None, session, self._selectors, self._in_database)

        def change(state: GroupState) -> GroupState:
            others = [each for each in state.members.values() if each.in_database != self._in_database]
            living = [each for each in others if lives(each, self._table.written_at(), joined)]
            if living:
                raise _kept_elsewhere(living[0])
            return rebalance.join(rebalance.leave(state, *(each.name for each in others)), member, start)

        self._table.update(change)
        self._beat_at = began
        self._known = self.owned()

    def leave(self, states: Mapping[MessageQueue, QueueState]) -> None:
        """Keep these states, and leave the group. Raises StorageError."""

        def change(state: GroupState) -> GroupState | None:
            if self.name not in state.members:
                return None
            return rebalance.leave(self._with(state, states, ()), self.name)

        self._table.update(change)

    def owned(self) -> dict[MessageQueue, QueueState]:
        """The queues that this member owns, as last read."""
        return self.state.owned(self.name)

    def to_give_back(self) -> set[MessageQueue]:
        """The queues that another member is to own."""
        return rebalance.to_give_back(self.state, self.name)

    def step(
        self,
        states: Mapping[MessageQueue, QueueState],
        given_back: Collection[MessageQueue],
        commit: bool,
        last_error: str | None,
    ) -> bool:
        """Read the group's state, and write what has changed. False if this member was taken for dead.

        ``states``: this member's queues; ``given_back``: those of them that it gives back; ``commit``: keep the states
        even if no heartbeat is due. Raises StorageError.
        """
        self.added = {}
        self._table.refresh()
        dead = self._dead()
        now = self._clock()
        if self.name not in self.state.members:
            return False
        takes = rebalance.take(self.state, self.name) is not self.state
        if not (commit or given_back or dead or takes or now >= self._beat_at + self.beat_s):
            # Some may be taken by a commit that was done, and answered with an error.
            self._known = self.owned() | self._known
            return True

        def change(state: GroupState) -> GroupState | None:
            if self.name not in state.members:
                return None
            gone = [name for name in dead if name in state.members and state.members[name].heartbeat == dead[name]]
            self.added = {}
            kept = self._with(state, states, given_back)
            kept = rebalance.leave(kept, *gone) if gone else kept
            return rebalance.beat(rebalance.take(kept, self.name), self.name, last_error)

        if self._table.update(change) is None:
            return False
        self._beat_at = now
        self._known = self.owned()
        return True

    def _dead(self) -> dict[str, int]:
        """The heartbeats of members that have not beaten for their session."""
        now, members = self._clock(), self.state.members
        self._seen = {name: seen for name, seen in self._seen.items() if name in members}
        for name, member in members.items():
            if name not in self._seen or self._seen[name][0] != member.heartbeat:
                self._seen[name] = member.heartbeat, now
        return {
            name: heartbeat
            for name, (heartbeat, since) in self._seen.items()
            if name != self.name and now > since + members[name].session_timeout_ms / 1000
        }

    def _with(
        self, state: GroupState, states: Mapping[MessageQueue, QueueState], given_back: Collection[MessageQueue]
    ) -> GroupState:
        """With the states of the queues that this member still owns, by their epoch: others are fenced."""
        changed = {}
        for queue, mine in states.items():
            now = state.queues.get(queue)
            if now is not None and now.owner == self.name and now.epoch == mine.epoch:
                known = {each.message for each in (*self._known.get(queue, now).retries, *mine.retries)}
                # An operator has dead letters consumed again. Others are of a commit that was answered with an error.
                added = [each for each in now.retries if each.resumed and each.message not in known]
                if added:
                    self.added[queue] = added
                owner = None if queue in given_back else self.name
                changed[queue] = replace(mine, owner=owner, retries=(*mine.retries, *added))
        return state.with_queues(changed)


def _kept_elsewhere(other: Member) -> SettingsError:
    """Each of the two would go on with a queue where the other one began, and apply messages twice."""
    kept = "in a database (SqlPositions)" if other.in_database else "in Delta, without SqlPositions"
    fix = "stop all members, then start the new ones; one that was killed counts for three of its sessions"
    return SettingsError(f"the group's member {other.name} keeps positions {kept}", "positions", fix)
