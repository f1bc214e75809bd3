"""Calls of a listener, message by message or in batches, and how many messages a thread takes at once.

With `SqlPositions` inside the database transaction that keeps the queue's position: exactly once.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from checkback.consumer.group.group_state import QueueState
from checkback.consumer.message import ConsumeResult
from checkback.consumer.process_queues import warn
from checkback.errors import FencedError, SettingsError, error_summary, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from checkback.consumer.message import MessageExt
    from checkback.consumer.process_queue import ProcessQueue, Slice
    from checkback.consumer.process_queues import ProcessQueues
    from checkback.consumer.sql_positions import SqlPositions


#: time for which a thread takes messages (s), and the most it takes
_SLICE_S, _SLICE = 0.005, 512


class ListenerGoneError(BaseException):
    """The listener can be called no more: its message was not consumed, nor has it failed."""


class NotNowError(ListenerGoneError):
    """The listener cannot take the message now, and has paused the consumer: it is called again after `resume`."""


class NotConsumedError(Exception):
    """RECONSUME_LATER, with a reason to keep, which must quote no message."""


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

    Also for a class. Else no message could ever succeed, and all would become dead letters.
    """
    if isinstance(listener, type):
        fix = f"give an object: {listener.__name__}()"
        raise SettingsError(f"the listener, {listener.__name__}, is a class", group, fix)
    called: Any = listener if inspect.isroutine(listener) else getattr(listener, "__call__", None)  # noqa: B004
    inner = inspect.unwrap(called)  # a decorator's wrapper of a coroutine function need not be one
    coroutine = any(map(inspect.iscoroutinefunction, (listener, called)))
    if awaited and not coroutine and inspect.isroutine(inner) and not inspect.iscoroutinefunction(inner):
        raise SettingsError("the listener is not a coroutine function", group, "write async def, or use PushConsumer")
    if coroutine and not awaited:
        raise SettingsError("the listener is a coroutine function", group, "use AsyncPushConsumer")


class Listens(Protocol):
    """Has messages consumed."""

    def slice_size(self) -> int:
        """How many messages a thread is to take."""

    def consume(self, taken: Slice, consuming: Consuming) -> None:
        """Consume its messages, while they may be."""


class Consuming(Protocol):
    """Told of the outcome of each call."""

    def goes_on(self, taken: Slice, waits: bool = True) -> bool:
        """True while its messages may be given to the listener; ``waits``: until a pause is over."""

    def succeeded(self, taken: Slice, count: int) -> None:
        """The next ``count`` messages are consumed."""

    def failed_with(self, taken: Slice, count: int, reason: str) -> bool:
        """The next ``count`` messages are not consumed; False if they hold up their queue."""

    def more(self, only_new: bool) -> Slice | None:
        """More messages for the thread, which it puts back; None if there are none now."""

    def put_back(self, taken: Slice) -> None:
        """The thread has ended with it. The first one is put back for it, unless it is done before."""

    def lose(self, queue: ProcessQueue, reason: str) -> None:
        """Discard the queue's in-flight messages and read them again."""


class Listening:
    """A listener, called with one message (``batch`` None) or with lists of up to ``batch``.

    ``fits``: how many of so many messages, from the first on, one call takes.
    """

    def __init__(
        self, listener: Callable[..., Any], batch: int | None, fits: Callable[[Sequence[MessageExt]], int] = len
    ) -> None:
        self._listener = listener
        self._batch = batch
        self._fits = fits
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
            count = self._fits(messages[at : at + taken.call_size(step)])
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
        reason = str(error) if isinstance(error, NotConsumedError) else error_summary(error)
        failed = _first_of(arguments[0])
        warn("the listener failed on %r: %s", failed, reason, message=failed)
        return reason
    if os.getpid() != own:
        _exit_child(None)
    if result is ConsumeResult.SUCCESS:
        return None
    if result is ConsumeResult.RECONSUME_LATER:
        return "RECONSUME_LATER"
    returned, failed = printable(type(result).__name__), _first_of(arguments[0])
    warn("the listener returned %s instead of a ConsumeResult, on %r", returned, failed, message=failed)
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


#: messages that a thread takes at once, each call in a transaction
_KEPT_SLICE = 64


class _FailedError(Exception):
    """The listener did not succeed; the transaction is rolled back."""


def _failed_in(error: BaseException | None) -> _FailedError | None:
    """What the listener has failed with, though the rollback after it has raised another error."""
    while error is not None and not isinstance(error, _FailedError):
        error = error.__context__
    return error


class TransactionalListening:
    """A listener, called with one message and a connection, or with lists of up to ``batch`` and a connection."""

    def __init__(
        self, listener: Callable[..., Any], batch: int | None, positions: SqlPositions, hand: ProcessQueues
    ) -> None:
        self._listener = listener
        self._batch = batch
        self._positions = positions
        self._hand = hand
        self._group = hand.group

    def slice_size(self) -> int:
        """How many messages a thread is to take."""
        return max(self._batch or 1, _KEPT_SLICE)

    def consume(self, taken: Slice, consuming: Consuming) -> None:
        """Call the listener with its messages, each call in a transaction, while they may be consumed.

        A queue whose transaction could not be committed is lost: its row tells what was committed.
        """
        try:
            if not len(taken):
                self._keep_failure(taken)
                return
            messages, step, first = taken.messages(), self._batch or 1, taken.done
            while taken.done < len(taken) and consuming.goes_on(taken):
                at = taken.done - first
                count = taken.call_size(step)
                reason = self._apply(taken, count, messages[at] if self._batch is None else messages[at : at + count])
                if reason is None:
                    consuming.succeeded(taken, count)
                    continue
                goes_on = consuming.failed_with(taken, count, reason)
                self._keep_failure(taken)
                if not goes_on:
                    break
        except FencedError as error:
            consuming.lose(taken.queue, str(error))
        except Exception as error:  # noqa: BLE001 - the database's: what was committed is not known here
            reason = error_summary(error)
            warn("group %s: the position could not be kept: %s", self._group, reason)
            consuming.lose(taken.queue, reason)

    def _keep_failure(self, taken: Slice) -> None:
        queue, state = taken.queue, self._state(taken, 0)
        with self._positions.engine.begin() as connection:
            self._keep(connection, queue, state)
        queue.version, queue.kept_dead = queue.version + 1, state.dead

    def _apply(self, taken: Slice, count: int, argument: Any) -> str | None:
        """None if the messages are applied and committed, else why the listener did not succeed."""
        queue = taken.queue
        try:
            with self._positions.engine.begin() as connection:
                state = self._state(taken, count)
                self._keep(connection, queue, state)
                self._succeed(queue, connection, outcome_of(self._listener, argument, connection))
        except Exception as error:
            failed = _failed_in(error)
            if failed is not None:
                return str(failed)
            if not isinstance(error, self._positions.refusals):
                raise
            # By what is checked at the commit: a deferred constraint.
            reason = error_summary(error)
            warn("the listener's transaction was refused: %s", reason)
            return reason
        queue.version, queue.kept_dead = queue.version + 1, state.dead
        return None

    def _succeed(self, queue: ProcessQueue, connection: Connection, reason: str | None) -> None:
        """Raise _FailedError unless the listener has succeeded, in the transaction that keeps the position."""
        if reason is not None:
            raise _FailedError(reason)
        if lost := self._positions.why_lost(connection, self._group, queue.queue, queue.version + 1):
            raise _FailedError(lost)

    def _keep(self, connection: Connection, queue: ProcessQueue, state: QueueState) -> None:
        self._positions.keep(connection, self._group, queue.queue, queue.version, state)

    def _state(self, taken: Slice, count: int) -> QueueState:
        """The queue's state once the next ``count`` messages are consumed."""
        queue = taken.queue
        done = {taken.key(place) for place in range(taken.done, taken.done + count)}
        with self._hand.changed:  # other threads add retries, and give messages up
            retries = tuple(each for key, each in queue.retries.items() if key not in done)
            position = queue.consumed if taken.retries is not None else taken.after(taken.done + count)
            letters, until, by = queue.kept_letters(), queue.resumed_until, queue.reset_id
            return QueueState(position, retries, letters, queue.dead_letters, resumed_until=until, reset_id=by)
