"""Calls of a listener inside the database transaction that keeps the queue's position: exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checkback.consumer.group.group_state import QueueState
from checkback.consumer.listener_calls import outcome_of
from checkback.consumer.process_queues import warn
from checkback.errors import FencedError, error_summary

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from checkback.consumer.listener_calls import Consuming
    from checkback.consumer.process_queue import ProcessQueue, Slice
    from checkback.consumer.process_queues import ProcessQueues
    from checkback.consumer.sql_positions import SqlPositions

#: messages that a thread takes at once
_SLICE = 64


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
        return max(self._batch or 1, _SLICE)

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
