"""What waits to be sent to one route: all of it at that moment is the next request. Safe for threads."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from contextlib import contextmanager, nullcontext
from threading import Condition, RLock, get_ident
from typing import TYPE_CHECKING, Generic, TypeVar

from checkback.messages.limits import BATCH_MAX
from checkback.producer.calls import BATCH_BYTES, Call, Op

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

C = TypeVar("C", bound=Call)
#: seconds between two looks whether a signal has come
LOOK_S = 0.5
#: threads that wait for calls: more than there are
_ALL = 1 << 30
_NOTHING = nullcontext()


class Accumulator(Generic[C]):
    """Calls in the order in which they came.

    ``linger_s``: what arrives so long after the first call of a request goes with it; 0 = nothing waits for more.
    """

    def __init__(self, linger_s: float = 0.0) -> None:
        self._linger_s = linger_s
        self._hurry = False
        self._lock = RLock()  # a signal's handler may interrupt who holds it, and come here
        self._arrived = Condition(self._lock)
        self._hurried = Condition(self._lock)
        self._finished = Condition(self._lock)
        self._waiting: deque[C] = deque()
        #: threads that wait for the first call
        self._idle = 0
        #: requests that were taken and are not `done`: their calls may be put back
        self._under_way = 0
        self._closed = False

    def __len__(self) -> int:
        """Calls that wait."""
        return len(self._waiting)

    @property
    def is_held(self) -> bool:
        """Has this thread been interrupted in one of these methods? Until it goes on, nothing is taken."""
        held: bool = self._lock._is_owned()  # type: ignore[attr-defined]  # Condition asks likewise
        return held

    def let_go(self) -> AbstractContextManager[None]:
        """Meanwhile others go on, if this thread has been interrupted in one of these methods."""
        return self._let_go() if self.is_held else _NOTHING

    @contextmanager
    def _let_go(self) -> Iterator[None]:
        """As Condition.wait does."""
        held = self._lock._release_save()  # type: ignore[attr-defined]
        try:
            yield
        finally:
            self._lock._acquire_restore(held)  # type: ignore[attr-defined]

    def add(self, call: C) -> bool:
        """Append a call; False if the accumulator is closed."""
        with self._lock:
            if self._closed:
                return False
            call.taken = False
            self._waiting.append(call)
            if self._idle:  # under load there is none, and asking Condition takes longer than the rest
                self._arrived.notify(1 if call.pinned is None and call.preferred is None else _ALL)
            return True

    def put_back(self, calls: Sequence[C]) -> None:
        """Have calls that were taken sent again, before all others; also if it is closed."""
        with self._lock:
            for call in reversed(calls):
                call.taken = False
                self._waiting.appendleft(call)
            self._arrived.notify_all()

    def withdraw(self, call: C) -> bool:
        """Take back a call whose caller has given up; False if it is being sent, or has been."""
        with self._lock:
            if call.taken:
                return False
            if call in self._waiting:  # else it was never added
                self._waiting.remove(call)
                self._removed()
            return True

    def take(self, gateway: str = "") -> list[C]:
        """The calls of the next request to a gateway; waits for the first one. None: closed, and nothing is left.

        To be followed by `done`.
        """
        with self._lock:
            while True:
                if self._linger_s and self._waiting and not (self._hurry or self._closed):
                    self._hurried.wait(self._linger_s)
                if calls := self._next(gateway):
                    self._under_way += 1
                    return calls
                if self._is_over():
                    return []
                self._idle += 1
                self._arrived.wait()
                self._idle -= 1

    def done(self) -> None:
        """The calls of a request that was taken have ended, or were put back."""
        with self._lock:
            self._under_way -= 1
            self._removed()

    def hurry(self) -> None:
        """Have what waits now sent at once."""
        with self._lock:
            self._hurry = bool(self._waiting)
            self._hurried.notify_all()

    def free(self, gateway: str) -> None:
        """Any gateway may have the calls that prefer this one."""
        with self._lock:
            for call in self._waiting:
                if call.preferred == gateway:
                    call.preferred = None
            self._arrived.notify_all()

    def expired(self, now: float) -> list[C]:
        """Remove the calls whose time is over."""
        with self._lock:
            late = [call for call in self._waiting if call.attempts.until <= now]
            if late:
                self._waiting = deque(call for call in self._waiting if call.attempts.until > now)
                self._removed()
            return late

    def finished(self, timeout_s: float) -> bool:
        """Wait so long for its end: closed, and nothing is left."""
        with self._lock:
            return self._finished.wait_for(self._is_over, timeout_s)

    def close(self, *, discard: bool = False) -> None:
        """Take no more calls; what waits is still sent, unless it is discarded."""
        with self._lock:
            self._closed = True
            if discard:
                self._waiting.clear()
            self._arrived.notify_all()
            self._hurried.notify_all()
            self._finished.notify_all()

    def _removed(self) -> None:
        """Have all threads end if that was the last call."""
        if self._is_over():
            self._arrived.notify_all()
            self._finished.notify_all()

    def _is_over(self) -> bool:
        return self._closed and not (self._waiting or self._under_way)

    def _next(self, gateway: str) -> list[C]:
        calls: list[C] = []
        others: list[C] = []
        number = size = 0
        while self._waiting:
            call = self._waiting.popleft()
            if (call.pinned or call.preferred or gateway) != gateway:
                others.append(call)
                continue
            number += len(call)
            size += call.size
            if calls and (number > BATCH_MAX or size > BATCH_BYTES):
                others.append(call)
                break
            call.taken = True
            calls.append(call)
        self._waiting.extendleft(reversed(others))
        self._hurry = self._hurry and bool(self._waiting)
        return calls


class Outstanding:
    """Ops that were handed over and have no last word yet, in the order in which they came.

    ``telling``: those that have it, while the caller may not know it yet, and the thread that tells it.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        #: As in `Accumulator`. Not by way of the condition: Ctrl-C may interrupt that before it lets the lock go.
        self.lock = RLock()
        self._changed = Condition(self.lock)
        self._ops: OrderedDict[int, Op] = OrderedDict()
        self._telling: dict[int, int] = {}
        self._last = 0

    @property
    def is_held(self) -> bool:
        """Has this thread been interrupted in one of these methods?"""
        held: bool = self.lock._is_owned()  # type: ignore[attr-defined]
        return held

    @property
    def full(self) -> bool:
        """Are there as many as there may be?"""
        return len(self._ops) >= self._bound

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait while it is full; False if it still is."""
        with self.lock:
            return self._wait_for(lambda: not self.full, timeout_s)

    def add(self, op: Op) -> None:
        """An op is handed over."""
        with self.lock:
            self._last += 1
            op.number = self._last
            self._ops[op.number] = op

    def settle(self, ops: Iterable[Op]) -> list[Op]:
        """These have their last word; returns those of them that had none. They are to be `told`."""
        with self.lock:
            return self._settled([op for op in ops if self._ops.pop(op.number, None) is not None])

    def told(self, ops: Iterable[Op]) -> None:
        """The caller knows the last word of these."""
        with self.lock:
            for op in ops:
                self._telling.pop(op.number, None)
            self._changed.notify_all()

    def among(self, ops: Iterable[Op]) -> list[Op]:
        """Those of these that have no last word yet."""
        with self.lock:
            return [op for op in ops if op.number in self._ops]

    def flush(self, timeout_s: float) -> bool:
        """Wait until the last word of all that were handed over before is told; False if some still have not.

        A thread that is telling one does not wait for what is being told: it would wait for itself.
        """
        with self.lock:
            last = self._last
            tells = get_ident() in self._telling.values()

            def flushed() -> bool:
                if next(iter(self._ops), last + 1) <= last:
                    return False
                return tells or all(number > last for number in self._telling)

            return self._wait_for(flushed, timeout_s)

    def _wait_for(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """As Condition.wait_for. Ctrl-C that another thread gets is raised at the next look."""
        until = time.monotonic() + timeout_s
        while not self._changed.wait_for(holds, min(timeout_s, LOOK_S)):
            timeout_s = until - time.monotonic()
            if timeout_s <= 0:
                return False
        return True

    def abandon(self) -> list[Op]:
        """Those without a last word, which is now that they are given up. They are to be `told`."""
        with self.lock:
            ops = list(self._ops.values())
            self._ops.clear()
            return self._settled(ops)

    def _settled(self, ops: list[Op]) -> list[Op]:
        self._telling |= dict.fromkeys((op.number for op in ops), get_ident())
        self._changed.notify_all()
        return ops
