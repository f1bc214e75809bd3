"""Listeners that hang, or raise what ends threads and event loops: theirs is the only group that notices."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from checkback.errors import CheckbackError, SettingsError
from checkback.producer import (
    AsyncTransactionListener,
    AsyncTransactionProducer,
    CheckServer,
    LocalTransactionState,
    TransactionListener,
    TransactionProducer,
    check_app,
)
from producer.checked import BODY, COMMIT, SECRET, AsyncListener, Listener, ask

RAISED = [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, asyncio.CancelledError]
#: longer than anything here takes, in seconds
DEADLINE = 20


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("raised", RAISED)
def test_whatever_a_listener_raises_is_unknown(kind: str, raised: type[BaseException]) -> None:
    raising = Listener(raised())
    own = raising if kind == "sync" else AsyncListener(raising)
    with CheckServer(check_app({"orders": own, "other": Listener()}, secret=SECRET)) as server:
        answers = [ask(server.url), ask(server.url, group="other"), ask(server.url, offset=8)]
    assert [answer.outcome for answer in answers] == ["UNKNOWN", "COMMIT", "UNKNOWN"]
    assert answers[1].error is None
    # A coroutine cannot raise StopIteration (PEP 479).
    name = "RuntimeError" if (kind, raised) == ("async", StopIteration) else raised.__name__
    assert {answers[0].error, answers[2].error} == {f"listener raised {name}"}
    assert len(raising.checks) == 2


def test_ctrl_c_in_an_async_listener_ends_the_program() -> None:
    """Before Python 3.11, and in loops without asyncio.run, it comes wherever the main thread happens to be."""

    async def run() -> None:
        async with CheckServer(check_app(AsyncListener(Listener(KeyboardInterrupt())), secret=SECRET)) as server:
            await asyncio.to_thread(ask, server.url)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run())


def test_group_that_hangs_delays_no_other(listener: Listener) -> None:
    hanging = Listener()
    hanging.go_on.clear()
    app = check_app({"orders": hanging, "other": listener}, secret=SECRET, timeout=timedelta(seconds=0.2), threads=2)
    with CheckServer(app) as server:
        assert [ask(server.url, offset=number).error for number in range(3)] == ["status 503"] * 3
        assert ask(server.url, group="other").outcome == "COMMIT"
        hanging.go_on.set()
    assert len(hanging.checks) == 2  # nobody waits for the third any more


class Waiting(AsyncTransactionListener):
    """Waits until it is cancelled; ``stubborn``: and longer."""

    def __init__(self, stubborn: bool = False) -> None:
        self.begun, self.cancelled, self.go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._stubborn = stubborn

    async def execute_local_transaction(self, message: Any, arg: Any) -> LocalTransactionState | None:
        raise NotImplementedError

    async def check_local_transaction(self, *_: Any) -> LocalTransactionState | None:
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            if not self._stubborn:
                raise
            await self.go_on.wait()
        return COMMIT


async def request(app: Any, sent: list[Any]) -> None:
    """The check as an ASGI server passes it on."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY.encode()}

    async def send(event: Any) -> None:
        sent.append(event)

    headers = [(b"content-type", b"application/json")]
    await app({"type": "http", "method": "POST", "path": "/check", "headers": headers}, receive, send)


def test_request_that_is_cancelled_cancels_its_listener() -> None:
    """A server's shutdown, or a timeout around it."""

    async def run() -> list[Any]:
        sent: list[Any] = []
        listener = Waiting()
        asked = asyncio.create_task(request(check_app(listener, secret=None, timeout=timedelta(seconds=600)), sent))
        await asyncio.wait_for(listener.begun.wait(), DEADLINE)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asked, DEADLINE)
        await asyncio.wait_for(listener.cancelled.wait(), DEADLINE)
        return sent

    assert asyncio.run(run()) == []


@pytest.mark.parametrize("stubborn", [False, True])
def test_listener_that_takes_too_long_is_cancelled_and_not_waited_for(stubborn: bool) -> None:
    async def run() -> int:
        sent: list[Any] = []
        listener = Waiting(stubborn)
        await asyncio.wait_for(
            request(check_app(listener, secret=None, timeout=timedelta(seconds=0.05)), sent), DEADLINE
        )
        await asyncio.wait_for(listener.cancelled.wait(), DEADLINE)
        listener.go_on.set()
        return int(sent[0]["status"])

    assert asyncio.run(run()) == 503


HANGING = """
import threading
from datetime import timedelta
from check.servers import request
from checkback.check.client import CheckClient
from checkback.check.endpoint import CheckedGroup
from checkback.producer import CheckServer, TransactionListener, check_app
begun = threading.Event()
class Hanging(TransactionListener):
    def execute_local_transaction(self, message, arg): ...
    def check_local_transaction(self, check):
        begun.set()
        threading.Event().wait()
with CheckServer(check_app({"orders": Hanging()}, secret=None), close_timeout=timedelta(seconds=0)) as server:
    with CheckClient({"orders": CheckedGroup((server.url,))}, 0.2) as client:
        client.ask(request())
    assert begun.wait(20)
print("done", flush=True)
"""


@pytest.mark.processes
def test_process_does_not_wait_for_a_listener_that_hangs() -> None:
    command, tests = [sys.executable, "-c", HANGING], Path(__file__).parents[1]
    run = subprocess.run(command, cwd=tests, capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "done\n"


def _plain(*_: Any) -> Any: ...


async def _coroutine(*_: Any) -> Any: ...


def listener_of(kind: type, **methods: Any) -> Any:
    return type("Own", (kind,), {f"{name}_local_transaction": method for name, method in methods.items()})()


@pytest.mark.parametrize(
    ("unfit", "told"),
    [
        (
            listener_of(AsyncTransactionListener, execute=_plain, check=_coroutine),
            "execute_local_transaction is not a coroutine function; write async def",
        ),
        (
            listener_of(AsyncTransactionListener, execute=_coroutine, check=_plain),
            "check_local_transaction is not a coroutine function; write async def",
        ),
        (
            listener_of(TransactionListener, execute=_coroutine, check=_plain),
            "execute_local_transaction is a coroutine function; derive it from AsyncTransaction",
        ),
        (
            listener_of(TransactionListener, execute=_plain, check=_coroutine),
            "check_local_transaction is a coroutine function; derive it from AsyncTransaction",
        ),
        (listener_of(object, execute=_plain), "has no method check_local_transaction"),
        (
            type(listener_of(TransactionListener, execute=_plain, check=_plain)),
            "Own is a class; give an object",
        ),
    ],
)
def test_listener_of_the_other_kind_is_refused(unfit: Any, told: str) -> None:
    with pytest.raises(CheckbackError, match=f"^listener of orders: {told}"):
        check_app({"orders": unfit}, secret=None)
    with pytest.raises(CheckbackError, match=f"^listener: {told}"):
        AsyncTransactionProducer("orders", "http://127.0.0.1:1", unfit)
    if isinstance(unfit, AsyncTransactionListener):
        told = "is a listener for asyncio; use AsyncTransactionProducer"
    with pytest.raises(CheckbackError, match=f"^listener: {told}"):
        TransactionProducer("orders", "http://127.0.0.1:1", unfit)


def test_class_whose_methods_need_no_object_is_a_listener() -> None:
    class Static:
        execute_local_transaction = staticmethod(_plain)

        @classmethod
        def check_local_transaction(cls, _: Any) -> LocalTransactionState:
            return COMMIT

    with CheckServer(check_app(Static, secret=SECRET)) as server:  # type: ignore[arg-type]
        assert ask(server.url).outcome == "COMMIT"


def test_coroutine_function_in_a_decorator_is_one() -> None:
    def logged(method: Any) -> Any:
        @functools.wraps(method)
        def wrapper(*arguments: Any) -> Any:
            return method(*arguments)

        return wrapper

    class Decorated(AsyncTransactionListener):
        execute_local_transaction = logged(AsyncListener.execute_local_transaction)

        @logged
        async def check_local_transaction(self, *_: Any) -> LocalTransactionState | None:
            return COMMIT

    with CheckServer(check_app(Decorated(), secret=SECRET)) as server:
        assert ask(server.url).outcome == "COMMIT"


def test_no_threads_are_refused() -> None:
    with pytest.raises(SettingsError, match="threads: 0 is not possible"):
        check_app(Listener(), secret=None, threads=0)
