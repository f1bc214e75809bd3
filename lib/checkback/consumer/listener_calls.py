"""Calls of a listener, message by message or in batches, and how many messages a thread takes at once."""

from __future__ import annotations

import inspect
import os
import sys
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from checkback.consumer.process_queues import warn
from checkback.consumer.result import ConsumeResult
from checkback.errors import SettingsError, error_summary, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkback.consumer.message import MessageExt
    from checkback.consumer.process_queue import ProcessQueue, Slice

#: time for which a thread takes messages (s), and the most it takes
_SLICE_S, _SLICE = 0.005, 512


class ListenerGoneError(BaseException):
    """The listener can be called no more: its message was not consumed, nor has it failed."""


def one_listener(listener: Callable[..., Any] | None, listener_batch: Callable[..., Any] | None) -> Callable[..., Any]:
    """The one of the two that is given. Raises TypeError for none and for both."""
    found = listener if listener_batch is None else listener_batch
    if found is None or None not in (listener, listener_batch):
        raise TypeError(
            "give listener= (called with one message) or listener_batch= (with a list of them), one of them"
        )
    return found


def refuse_unfit(listener: Callable[..., Any], group: str, awaited: bool) -> None:
    """Raise SettingsError unless the listener is a coroutine function if it is ``awaited``, and none if it is not.

    Else no message could ever succeed, and all would become dead letters.
    """
    called: Any = listener if inspect.isroutine(listener) else getattr(listener, "__call__", None)  # noqa: B004
    inner = inspect.unwrap(called)  # a decorator's wrapper of a coroutine function need not be one
    coroutine = any(map(inspect.iscoroutinefunction, (listener, called)))
    if awaited and not coroutine and inspect.isroutine(inner) and not inspect.iscoroutinefunction(inner):
        raise SettingsError("the listener is not a coroutine function", group, "write async def, or use PushConsumer")
    if coroutine and not awaited:
        raise SettingsError("the listener is a coroutine function", group, "use AsyncPushConsumer")


class Consuming(Protocol):
    """Told of the outcome of each call."""

    def goes_on(self, taken: Slice) -> bool:
        """True while its messages may be given to the listener."""

    def succeeded(self, taken: Slice, count: int) -> None:
        """The next ``count`` messages are consumed."""

    def failed_with(self, taken: Slice, count: int, reason: str) -> bool:
        """The next ``count`` messages are not consumed; False if they hold up their queue."""

    def lose(self, queue: ProcessQueue, reason: str) -> None:
        """Drop what is in hand of the queue, and take it anew."""


class Listening:
    """A listener, called with one message (``batch`` None) or with lists of up to ``batch``."""

    def __init__(self, listener: Callable[..., Any], batch: int | None) -> None:
        self._listener = listener
        self._batch = batch
        self._pace = 0.0

    def slice_size(self) -> int:
        """How many messages a thread is to take: few if the listener is slow, so that others get some, too."""
        size = self._batch or 1
        return max(size, min(_SLICE, int(_SLICE_S / self._pace) * size if self._pace else size * 16))

    def consume(self, taken: Slice, consuming: Consuming) -> None:
        """Call the listener with its messages, while they may be consumed."""
        messages, began = taken.messages(), time.perf_counter()
        step, calls, first = self._batch or 1, 0, taken.done
        while taken.done < len(taken) and consuming.goes_on(taken):
            at = taken.done - first
            count = taken.call_size(step)
            reason = outcome_of(self._listener, messages[at] if self._batch is None else messages[at : at + count])
            calls += 1
            if reason is None:
                consuming.succeeded(taken, count)
            elif not consuming.failed_with(taken, count, reason):
                break
        if calls:
            self._pace = 0.8 * self._pace + 0.2 * (time.perf_counter() - began) / calls


def outcome_of(listener: Callable[..., Any], *arguments: Any) -> str | None:
    """Call the listener: None if it succeeded, else why not, without what its error's text may quote.

    Does not return in a child process that the listener has forked: it would go on as a second consumer.
    """
    own = os.getpid()
    try:
        result = listener(*arguments)
    except ListenerGoneError:
        raise
    except BaseException as error:  # noqa: BLE001 - any says RECONSUME_LATER; none may end the thread
        if os.getpid() != own:
            _exit_child(error)
        reason = error_summary(error)
        warn("the listener failed on %r: %s", _first_of(arguments[0]), reason)
        return reason
    if os.getpid() != own:
        _exit_child(None)
    if result is ConsumeResult.SUCCESS:
        return None
    if result is ConsumeResult.RECONSUME_LATER:
        return "RECONSUME_LATER"
    returned = printable(type(result).__name__)
    warn("the listener returned %s instead of a ConsumeResult, on %r", returned, _first_of(arguments[0]))
    return f"it returned {returned}"


def _first_of(given: MessageExt | list[MessageExt]) -> MessageExt:
    return given[0] if isinstance(given, list) else given


def _exit_child(error: BaseException | None) -> NoReturn:
    """End a forked process, as Python would at its end, but for what belongs to its parent: threads, connections."""
    status = 0 if error is None else 1
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(status & 0xFF)
