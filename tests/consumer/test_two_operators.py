"""Two operators resume the dead letters of one group, whatever comes between their reads and commits: each death once.

They run the real command on real tables, each in a thread that stops before every read and commit. Between two steps
the member takes over, consumes and gives up, its clock going back and forth, and an operator may be killed.
"""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from hypothesis import example, given
from hypothesis import strategies as st

from checkback.consumer.dead_letter_requests import Request, act, look
from checkback.consumer.group import group_table
from checkback.consumer.group.group_state import MessageQueue
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.group.membership import Membership
from checkback.consumer.position import Position
from checkback.consumer.reconsume import AGAIN
from checkback.storage.log import log_tail
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.tables import Tables
from checkback.storage.timestamps import time_of
from consumer.published import START, Published
from support.examples import fewer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from checkback.consumer.position import MessageKey

pytestmark = pytest.mark.slow

_QUEUE = MessageQueue("pay", 0)
_DAY = 86_400_000
_ACTORS = ("alice", "bob")


class _KilledError(BaseException):
    """An operator's process ends."""


class Operator:
    """A run of the command, which goes on only when told to."""

    here = threading.local()

    def __init__(self, tables: Tables, actor: str, asked: list[str], now: int) -> None:
        """``asked``: transaction ids, none = all; ``now``: its clock (ms)."""
        self.runs = True
        self._about = tables, Request.of("g", None, asked, not asked, actor, "mended"), now
        self._turn, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self._at = ""
        self._killed = False
        self._error: BaseException | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self.here.operator = self
        try:
            self._turn.acquire()
            tables, request, now = self._about
            act(tables, request, [one for one in look(tables, request) if one.fate == AGAIN], now)
        except BaseException as error:  # noqa: BLE001 - raised by `step`
            self._error = error
        self.runs = False
        self._waits.release()

    def pause(self, before: str) -> None:
        self._at = before
        self._waits.release()
        self._turn.acquire()
        if self._killed:
            raise _KilledError

    def run(self, before: str) -> None:
        """Up to the next one of this in _POINTS, or its end."""
        self._at = ""
        while self.runs and self._at != before:
            self._turn.release()
            self._waits.acquire()
        if self._error is not None and not self._killed:
            raise self._error

    def kill(self) -> None:
        self._killed = True
        self.run("end")


def _pausing(before: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def paused(*arguments: Any, **named: Any) -> Any:
        operator = getattr(Operator.here, "operator", None)
        if operator is not None:
            operator.pause(before)
        return call(*arguments, **named)

    return paused


@pytest.fixture(scope="module", autouse=True)
def _pauses() -> Iterator[None]:
    """Operators stop before they read the group's state or the ledger, and before each commit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupTable, "refresh", _pausing("read state", GroupTable.refresh))
        patch.setattr(DeltaLog, "versions", _pausing("read ledger", DeltaLog.versions))
        for what, module in (("state", group_table), ("ledger", log_tail)):
            patch.setattr(module, "write_commit", _pausing(f"commit {what}", module.write_commit))
        yield


class Consumer:
    """The only member of the group, as its threads do it, and what it has heard."""

    def __init__(self, lake: Published, exactly_once: bool) -> None:
        self.lake = lake
        self._sql = exactly_once
        self._rows = lake.messages(2)
        lake.publish({"pay": [self._rows]})
        self._member = Membership(GroupTable(lake.tables, "g"), "m", ["pay"], 60.0, lambda _: {"pay": Position()})
        self._member.join()
        self._kept = self._member.owned()[_QUEUE]
        self._unburied: list[dict[str, Any]] = []
        self.heard: Counter[int] = Counter()
        self.deaths: dict[int, list[int]] = {0: [], 1: []}
        for offset in self.deaths:
            self._die(offset, START, 16)
        self.beat()

    def _die(self, offset: int, at: int, times: int) -> None:
        while at in self.deaths[offset]:
            at += 1
        self.deaths[offset].append(at)
        about = {"consumer_group": "g", "topic": "pay", "reconsume_times": times, "dead_at": time_of(at)}
        self._unburied.append(self._rows[offset] | about)

    def beat(self) -> None:
        """Keep what has changed, take over what operators have added, bury the dead."""
        self._member.step({_QUEUE: self._kept}, (), True, None)
        added = self._member.added.get(_QUEUE, ())
        if self._sql and added:
            self._kept = self._kept.with_resumed(self._member.owned()[_QUEUE].retries)
        else:
            self._kept = replace(self._kept, retries=(*self._kept.retries, *added))
        if self._unburied:
            self.lake.append("dead_letters", self._unburied)
            self._unburied = []

    def consume(self, dead_at: int | None) -> None:
        """All retries; they fail, and are given up at ``dead_at`` (ms), or not."""
        for retry in self._kept.retries:
            self._consume(retry.message, dead_at)
        self._kept = replace(self._kept, retries=())

    def _consume(self, message: MessageKey, dead_at: int | None) -> None:
        self.heard[message.half_queue_offset] += 1
        if dead_at is not None:
            self._die(message.half_queue_offset, dead_at, 1)


#: where an operator stops
_POINTS = ("read state", "read ledger", "commit state", "commit ledger", "end")
_run = st.tuples(st.just("run"), st.sampled_from(_ACTORS), st.sampled_from(_POINTS))
_steps = st.one_of(
    _run,
    _run,
    st.tuples(st.just("kill"), st.sampled_from(_ACTORS)),
    st.tuples(st.just("start"), st.sampled_from(_ACTORS), st.integers(-_DAY, _DAY)),
    st.tuples(st.just("beat")),
    st.tuples(st.just("consume"), st.none() | st.integers(-_DAY, _DAY)),
)
_CONSUMED = [("beat",), ("consume", None), ("beat",)]
#: both have read everything, then one goes first
_OVERTAKEN = [("run", "alice", "commit state"), ("run", "bob", "end"), *_CONSUMED, ("run", "alice", "end")]
#: what is not in the ledger yet is consumed, and the other one comes
_UNRECORDED = [("run", "alice", "commit state"), ("run", "alice", "commit ledger"), *_CONSUMED, ("run", "bob", "end")]
#: and given up once more, before the same command is repeated
_DIES_AGAIN = [*_UNRECORDED[:2], ("kill", "alice"), ("beat",), ("consume", 5), ("beat",), ("start", "alice", 0)]
_SLOWER_CLOCK = [("run", "alice", "end"), ("beat",), ("consume", -_DAY), ("beat",)]


@example(exactly_once=True, one_each=True, steps=_OVERTAKEN)
@example(exactly_once=True, one_each=False, steps=_OVERTAKEN)
@example(exactly_once=False, one_each=False, steps=_OVERTAKEN)
@example(exactly_once=True, one_each=False, steps=_UNRECORDED)
@example(exactly_once=False, one_each=False, steps=[*_UNRECORDED[:-1], ("kill", "alice"), _UNRECORDED[-1]])
@example(exactly_once=False, one_each=False, steps=[*_DIES_AGAIN, ("run", "alice", "end")])
@example(exactly_once=False, one_each=False, steps=_SLOWER_CLOCK)
@fewer(20)
@given(exactly_once=st.booleans(), one_each=st.booleans(), steps=st.lists(_steps, min_size=5, max_size=20))
def test_each_death_is_resumed_once_and_nothing_that_was_resumed_is_lost(
    exactly_once: bool, one_each: bool, steps: list[tuple[Any, ...]]
) -> None:
    """``one_each``: each operator resumes another message, else both resume all."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Published(Tables(root=f"{folder}/lake", by_files=True, sync=False))
        consumer = Consumer(lake, exactly_once)
        asked = {actor: [f"tx-{offset}"] if one_each else [] for offset, actor in enumerate(_ACTORS)}
        operators = {actor: Operator(lake.tables, actor, asked[actor], START) for actor in _ACTORS}
        try:
            for what, *of in steps:
                if what == "run":
                    operators[of[0]].run(of[1])
                elif what == "kill":
                    operators[of[0]].kill()
                elif what == "start" and not operators[of[0]].runs:
                    operators[of[0]] = Operator(lake.tables, of[0], asked[of[0]], START + of[1])
                elif what == "beat":
                    consumer.beat()
                elif what == "consume":
                    consumer.consume(None if of[0] is None else START + of[0])
            for operator in operators.values():
                operator.run("end")
        finally:
            for operator in operators.values():
                operator.kill()
        _settle(consumer)
        for actor in (*_ACTORS, *_ACTORS):  # repeated, the command completes what a kill has cut short
            Operator(lake.tables, actor, asked[actor], START).run("end")
            _settle(consumer)
        state = GroupTable(lake.tables, "g").state
        assert (state.queues[_QUEUE].retries, state.resumed) == ((), {})
        deaths = Counter({offset: len(found) for offset, found in consumer.deaths.items()})
        assert consumer.heard == deaths
        rows = DeltaTable(lake.tables.location("operations")).to_pyarrow_table(columns=["queue_offset"]).to_pylist()
        assert Counter(row["queue_offset"] for row in rows) == deaths


def _settle(consumer: Consumer) -> None:
    for _ in range(2):
        consumer.beat()
        consumer.consume(None)
        consumer.beat()
