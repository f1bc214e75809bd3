"""PushConsumer that is started, or shut down, twice at once: it ends, and leaves its group."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from checkback.consumer import ConsumeResult, PushConsumer
from checkback.consumer.group.group_table import GroupTable
from checkback.errors import SettingsError
from consumer.heard import PATIENCE_S, Heard, until
from consumer.test_push_consumer import FAST

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumer.published import Published


#: processes that have imported what takes a second, and nothing of the tests' process
_FRESH = multiprocessing.get_context("forkserver")
_FRESH.set_forkserver_preload(["checkback.consumer", "checkback.consumer.group.group_table", "pandas", "pytest"])


def shut_down_twice(root: str, interrupted: bool) -> None:
    """A process whose only call returns once a signal has come while it waits for that."""
    began, go_on = threading.Event(), threading.Event()

    def listen(_: Any) -> ConsumeResult:
        began.set()
        assert go_on.wait(PATIENCE_S)
        return ConsumeResult.SUCCESS

    def handle(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        go_on.set()
        if interrupted:
            raise KeyboardInterrupt
        consumer.close()

    def send() -> None:
        until(lambda: consumer.stopping)
        while not go_on.wait(0.1):  # one that comes just before the main thread waits does not wake it
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, handle)
    consumer = PushConsumer("g", root, listen, **FAST | {"threads": 1}).subscribe("pay").start()
    assert began.wait(PATIENCE_S)
    threading.Thread(target=send).start()
    try:
        consumer.close()
    except KeyboardInterrupt:
        consumer.close()
    assert consumer.consumed == 1


@pytest.mark.processes
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_signal_comes_while_a_call_is_waited_for(lake: Published, interrupted: bool) -> None:
    """Its handler shuts the consumer down again, or interrupts the wait, after which it is shut down again."""
    lake.publish({"pay": [lake.messages(1)]})
    process = _FRESH.Process(target=shut_down_twice, args=(lake.tables.root, interrupted))
    process.start()
    process.join(3 * PATIENCE_S)  # it imports everything anew
    process.kill()
    process.join()
    assert process.exitcode == 0
    assert GroupTable(lake.tables, "g").state.members == {}


class Signalled(threading.Condition):
    """A lock under which a signal comes, if the main thread ever takes it."""

    def __enter__(self) -> bool:
        entered = super().__enter__()
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGTERM)
        return entered


def shut_down_under_the_lock(root: str, when: str) -> None:
    """A process that is told to end in the middle of whatever takes the lock of the consumer's threads."""
    consumer = PushConsumer("g", root, Heard(), **FAST).subscribe("pay")
    signal.signal(signal.SIGTERM, lambda *_: consumer.close())
    if when == "it starts":
        consumer._hand.changed = Signalled()
        with pytest.raises(SettingsError, match="closed"):
            consumer.start()
        return
    consumer.start()
    until(lambda: consumer.consumed == 3)
    consumer._hand.changed.__class__ = Signalled
    asked: object = getattr(consumer, when)
    if callable(asked):
        asked(*["pay"] if when == "settled_at" else [])
    consumer.close()


@pytest.mark.processes
@pytest.mark.parametrize("when", ["it starts", "queues", "in_hand", "settled_at", "resume"])
def test_a_signal_comes_under_the_lock(lake: Published, when: str) -> None:
    """Its handler's shutdown waits for threads that need the lock."""
    lake.publish({"pay": [lake.messages(3)]})
    process = _FRESH.Process(target=shut_down_under_the_lock, args=(lake.tables.root, when))
    process.start()
    process.join(PATIENCE_S)
    process.kill()
    process.join()
    assert process.exitcode == 0
    assert GroupTable(lake.tables, "g").state.members == {}


class Threadless(PushConsumer):
    """There is no thread for its second caller."""

    def _thread(self, name: str, target: Callable[..., None], *arguments: float) -> threading.Thread:
        thread = super()._thread(name, target, *arguments)
        if name == "1":
            thread.start = cannot_start  # type: ignore[method-assign]
        return thread


def cannot_start() -> None:
    raise RuntimeError("can't start new thread")


def test_a_consumer_that_lacks_a_thread_does_not_start(lake: Published) -> None:
    """It leaves the group, instead of keeping queues that it may not consume."""
    lake.publish({"pay": [lake.messages(3)]})
    consumer = Threadless("threadless", lake.tables.root, Heard(), **FAST).subscribe("pay")
    with pytest.raises(RuntimeError, match="thread"):
        consumer.start()
    left = [thread for thread in threading.enumerate() if thread.name.endswith("-threadless")]
    members = GroupTable(lake.tables, "threadless").state.members
    consumer.close()
    assert (left, members) == ([], {})


def test_the_time_to_wait_counts_while_another_shutdown_waits(lake: Published) -> None:
    """The member leaves then, and the other one waits on for the call."""
    lake.publish({"pay": [lake.messages(1)]})
    began, go_on = threading.Event(), threading.Event()

    def wait(_: Any) -> None:
        began.set()
        assert go_on.wait(2 * PATIENCE_S)

    consumer = PushConsumer("g", lake.tables.root, Heard(also=wait), **FAST).subscribe("pay").start()
    assert began.wait(PATIENCE_S)
    patient = threading.Thread(target=consumer.close)
    patient.start()
    until(lambda: consumer.stopping)
    hasty = threading.Thread(target=consumer.close, args=(timedelta(seconds=0.1),))
    hasty.start()
    hasty.join(PATIENCE_S / 3)
    ended, waits, members = not hasty.is_alive(), patient.is_alive(), GroupTable(lake.tables, "g").state.members
    go_on.set()
    patient.join(PATIENCE_S)
    assert (ended, waits, members, patient.is_alive()) == (True, True, {}, False)


def test_a_consumer_is_started_once(lake: Published) -> None:
    lake.publish({"pay": [lake.messages(3)]})
    heard, both = Heard(), threading.Barrier(2)
    consumer = PushConsumer("twice", lake.tables.root, heard, **FAST | {"threads": 2}).subscribe("pay")

    def start() -> None:
        both.wait(PATIENCE_S)
        consumer.start()

    starting = [threading.Thread(target=start) for _ in range(2)]
    for thread in starting:
        thread.start()
    for thread in starting:
        thread.join(PATIENCE_S)
    heard.wait_for(0, 1, 2)
    assert len([thread for thread in threading.enumerate() if thread.name.endswith("-twice")]) == 4
    consumer.close(timedelta(seconds=20))
    assert not [thread for thread in threading.enumerate() if thread.name.endswith("-twice")]
