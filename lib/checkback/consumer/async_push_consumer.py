"""AsyncPushConsumer: a PushConsumer whose listener is a coroutine function."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import wait
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from checkback.consumer.listener_calls import ListenerGoneError, one_listener, refuse_unfit
from checkback.consumer.push_consumer import PushConsumer
from checkback.errors import SettingsError
from checkback.producer.daemon_threads import Outcome

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable
    from datetime import timedelta
    from types import TracebackType

    from checkback.filter import MessageSelector
    from checkback.settings import Settings


#: time between looks whether the event loop is still there (s)
_LOOK_S = 1.0
#: the listener's call that this code runs in, itself or in tasks that it has begun
_CALL: ContextVar[asyncio.Task[Any] | None] = ContextVar("_CALL", default=None)


class AsyncPushConsumer:
    """Like `PushConsumer`, in a running event loop: the listener is awaited there, ``threads`` calls at a time.

    ``listener`` is called with a message, ``listener_batch`` with a list of them: coroutine functions.

    An asynchronous context manager. Options are those of PushConsumer, without ``positions``: a transaction of
    SqlPositions belongs to its thread.
    """

    def __init__(
        self,
        group: str,
        storage: Settings | str | os.PathLike[str],
        listener: Callable[..., Awaitable[Any]] | None = None,
        *,
        listener_batch: Callable[..., Awaitable[Any]] | None = None,
        **options: Any,
    ) -> None:
        if options.get("positions") is not None:
            raise SettingsError("SqlPositions needs a listener in a thread", group, "use PushConsumer")
        self._listener = one_listener(listener, listener_batch)
        refuse_unfit(self._listener, group, awaited=True)
        self._loop: asyncio.AbstractEventLoop
        self._calls: set[asyncio.Task[Any] | None] = set()
        self._ending: asyncio.Task[None] | None = None
        options["listener_batch" if listener is None else "listener"] = self._listen
        self.consumer = PushConsumer(group, storage, **options)

    def subscribe(self, topic: str, selector: MessageSelector | str | None = "*") -> AsyncPushConsumer:
        """See `PushConsumer.subscribe`."""
        self.consumer.subscribe(topic, selector)
        return self

    async def start(self) -> AsyncPushConsumer:
        """Join the group and begin to consume. Raises SettingsError, StorageError."""
        self._loop = asyncio.get_running_loop()
        starting = asyncio.create_task(asyncio.to_thread(self.consumer.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:  # nobody will shut it down
            starting.add_done_callback(lambda _: threading.Thread(target=self.consumer.close).start())
            raise
        return self

    async def close(self, timeout: timedelta | None = None) -> None:
        """Finish the listener's calls in progress, keep the positions, leave the group.

        Called by the listener it returns at once, and the rest is done when the calls have returned.
        """
        if _CALL.get() in self._calls:
            self._ending = asyncio.create_task(asyncio.to_thread(self.consumer.close, timeout))
        else:
            await asyncio.to_thread(self.consumer.close, timeout)

    def pause(self) -> None:
        """Call the listener no more until `resume`."""
        self.consumer.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        self.consumer.resume()

    async def __aenter__(self) -> AsyncPushConsumer:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _listen(self, argument: Any) -> Any:
        """Await the listener in the event loop; if that ends, the message is left to another member."""
        awaiting = self._call(argument)
        try:
            loop = self._loop
            call = asyncio.run_coroutine_threadsafe(awaiting, loop)
        except (AttributeError, RuntimeError):  # `start` was not called, or the loop is closed
            awaiting.close()
            self.consumer.close()
            raise ListenerGoneError from None
        while not wait([call], _LOOK_S).done:
            if loop.is_closed() or (self.consumer.stopping and not loop.is_running()):
                call.cancel()
                self.consumer.close()
                raise ListenerGoneError
        if call.cancelled():
            raise ListenerGoneError
        return call.result().value()

    async def _call(self, argument: Any) -> Outcome[Any]:
        """The listener's call, in a task of its own.

        Nobody knows this one: it is cancelled only with all others, as the event loop ends. What the call then raises
        is no failure of the message.
        """
        listening = asyncio.create_task(self._awaited(argument))
        try:
            await asyncio.wait([listening])
        except asyncio.CancelledError:
            listening.cancel()
            if (await listening).error is not None:
                raise
        return Outcome(None, asyncio.CancelledError()) if listening.cancelled() else listening.result()

    async def _awaited(self, argument: Any) -> Outcome[Any]:
        task = asyncio.current_task()
        _CALL.set(task)
        self._calls.add(task)
        try:
            return Outcome(await self._listener(argument), None)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a SystemExit would end the service's event loop
            return Outcome(None, error)
        finally:
            self._calls.discard(task)
