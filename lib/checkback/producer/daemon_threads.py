"""Threads for calls of a service's code or database: a hanging one blocks neither the others nor the exit."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast
from weakref import WeakSet

from checkback.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Deadlines:
    """Futures of an event loop, each resolved with False unless it is removed in time.

    One timer for all of them: one each takes a tenth of a transaction's time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._until: dict[asyncio.Future[bool], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, future: asyncio.Future[bool], seconds: float) -> None:
        """Resolve the future after so long."""
        self._until[future] = until = self.loop.time() + seconds
        if self._timer is None or until < self._timer.when():
            self._start(until)

    def remove(self, future: asyncio.Future[bool]) -> None:
        """The future is waited for no more. The timer runs on: the next one is due later, mostly."""
        self._until.pop(future, None)

    def _start(self, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(until, self._look)

    def _look(self) -> None:
        now, self._timer = self.loop.time(), None
        resolve([future for future, until in self._until.items() if until <= now], False)
        if left := [until for until in self._until.values() if until > now]:
            self._start(min(left))


def resolve(futures: Iterable[asyncio.Future[bool]], answered: bool) -> None:
    """Resolve those that are neither resolved nor cancelled."""
    for future in futures:
        if not future.done():
            future.set_result(answered)


T = TypeVar("T")
#: seconds after which a thread without calls ends
_IDLE_S = 60.0


class Outcome(NamedTuple, Generic[T]):
    """What a call returned, or else raised: a future takes no StopIteration, and a SystemExit ends its event loop."""

    returned: T | None
    error: BaseException | None

    def value(self) -> T:
        """What it returned. Raises what it raised."""
        if self.error is not None:
            raise self.error
        return cast("T", self.returned)


class DaemonThreads:
    """Runs up to ``most`` calls at a time, each in a daemon thread, started when needed and used again.

    Unlike those of ThreadPoolExecutor, and so of asyncio.to_thread, the interpreter's exit does not wait for them.
    Raises SettingsError for ``most`` < 1.
    """

    def __init__(self, most: int, name: str) -> None:
        if most < 1:
            raise SettingsError(f"{most} is not possible", "threads", "use 1 or more")
        self._most, self._name = most, name
        self._begin()
        _ALL.add(self)

    async def run(self, call: Callable[[], T]) -> Outcome[T]:
        """Make the call in a thread. If this is cancelled before the call has begun, it is not made."""
        future = self.submit(call)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.withdraw(future)
            raise

    def submit(self, call: Callable[[], T]) -> Future[Outcome[T]]:
        """Make the call in a thread. If the future is cancelled before the call has begun, it is not made."""
        future: Future[Outcome[T]] = Future()
        with self._changed:
            if len(self._waiting) >= self._idle and self._threads < self._most:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
                self._threads += 1
            self._waiting.append((future, copy_context().run, call))
            self._changed.notify()
        return future

    def withdraw(self, future: Future[Outcome[T]]) -> None:
        """Do not make the call, if it has not begun."""
        if future.cancel():
            with self._changed, suppress(StopIteration):
                self._waiting.remove(next(one for one in self._waiting if one[0] is future))

    def _begin(self) -> None:
        """At first, and in the child of a fork, which has none of the threads."""
        self._changed = threading.Condition()
        self._waiting: deque[Any] = deque()
        self._threads = self._idle = 0

    def _run(self) -> None:
        while (waiting := self._take()) is not None:
            future, run, call = waiting
            if future.set_running_or_notify_cancel():
                try:
                    outcome = Outcome(run(call), None)
                except BaseException as error:  # noqa: BLE001 - whoever has called is told
                    outcome = Outcome(None, error)
                future.set_result(outcome)
                del outcome
            del waiting, future, run, call  # an idle thread keeps nothing alive

    def _take(self) -> Any:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._waiting, _IDLE_S)
            self._idle -= 1
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None


class ReservedThread(Generic[T]):
    """A thread that waits for its one call, so that no other call holds that up. To be released in the end.

    ``free``: resolved with True, in the loop that has reserved it, once there is the thread.
    """

    def __init__(self, threads: DaemonThreads) -> None:
        self.free: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._threads = threads
        self._call: Future[Callable[[], T]] = Future()
        self._made = threads.submit(self._make)

    def _make(self) -> T:
        with suppress(RuntimeError):  # the loop is closed
            self.free.get_loop().call_soon_threadsafe(resolve, (self.free,), True)
        return self._call.result()()

    async def run(self, call: Callable[[], T]) -> Outcome[T]:
        """Make the call in the thread, which goes on if this is cancelled."""
        self._call.set_result(call)
        return await asyncio.wrap_future(self._made)

    def release(self) -> None:
        """Let the thread go, unless it makes the call."""
        self._call.cancel()
        self._threads.withdraw(self._made)


_ALL: WeakSet[DaemonThreads] = WeakSet()


def _forked() -> None:
    for each in _ALL:
        each._begin()


os.register_at_fork(after_in_child=_forked)
