"""A connection of the gateway's own server, in this process."""

from __future__ import annotations

import asyncio
import gc
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from checkback.gateway.authentication import BearerTokens
from checkback.gateway.http.middleware import JSON, RequestMiddleware
from checkback.gateway.http.protocol import MAX_PIPELINED
from checkback.gateway.metrics import Metrics
from checkback.gateway.server import _config
from checkback.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from checkback.gateway.http.middleware import Reply
    from checkback.gateway.http.protocol import LimitedProtocol

    #: opens a connection to a server
    Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]

_REQUEST = b"POST /v1/half HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
_CHUNKED = _REQUEST.replace(b"Content-Length: 2\r\n\r\n{}", b"Transfer-Encoding: chunked\r\n\r\n")


async def _reply() -> Reply:
    return 200, b"{}", JSON, None


async def _reply_after(answers: asyncio.Semaphore) -> Reply:
    await answers.acquire()
    return await _reply()


@asynccontextmanager
async def served(reply: Callable[[], Awaitable[Reply]] = _reply) -> AsyncIterator[tuple[Connect, ServerState]]:
    """A server that answers half messages so."""
    settings = Settings()
    direct = {"/v1/half": lambda *_: reply()}
    app = RequestMiddleware(None, direct, BearerTokens({}), Metrics(), settings.gateway)  # type: ignore[arg-type]
    config = _config(settings.gateway, app, settings.gateway.max_connections)
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: config.http_protocol_class(config=config, server_state=state, app_state={}),  # type: ignore[call-arg]
        "127.0.0.1",
    )
    async with server:
        yield lambda: asyncio.open_connection(*server.sockets[0].getsockname()), state


async def until(met: Callable[[], object]) -> None:
    """Let the loop go on until it is so."""
    for _ in range(20_000):
        if met():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came")


def test_an_answered_request_is_no_work_for_the_garbage_collector() -> None:
    """A collection stops the gateway for tens of milliseconds."""

    async def run() -> int:
        async with served() as (connect, _):
            reader, writer = await connect()
            for _ in range(20):
                writer.write(_REQUEST)
                assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 200")
            left = sum(isinstance(one, RequestResponseCycle) for one in gc.get_objects())
            writer.close()
            await writer.wait_closed()
        return left

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(run()) <= 2
    finally:
        gc.enable()


async def waiting(state: ServerState, requests: int) -> LimitedProtocol:
    """The only connection, once so many of its requests wait for an earlier one."""
    await until(lambda: [len(each.pipeline) for each in state.connections] == [requests])  # type: ignore[union-attr]
    (protocol,) = state.connections
    return protocol  # type: ignore[return-value]


def test_nothing_is_read_while_requests_wait_for_an_earlier_one() -> None:
    """A client that pipelines would fill the memory: with each answer more of its requests came than were answered."""

    async def run() -> None:
        answers = asyncio.Semaphore(0)
        async with served(partial(_reply_after, answers)) as (connect, state):
            reader, writer = await connect()
            writer.write(_REQUEST * 3)
            protocol = await waiting(state, 2)
            for left in (1, 0):
                assert protocol.flow.read_paused
                answers.release()
                await reader.readuntil(b"{}")
                await waiting(state, left)
            answers.release()
            await reader.readuntil(b"{}")
            assert not protocol.flow.read_paused
            writer.write(_REQUEST)
            answers.release()
            await reader.readuntil(b"{}")
            writer.close()

    asyncio.run(run())


def test_too_many_requests_at_once_close_the_connection() -> None:
    async def run() -> None:
        async with served() as (connect, _):
            reader, writer = await connect()
            writer.write(_REQUEST * (MAX_PIPELINED + 1))
            for _ in range(MAX_PIPELINED + 1):
                assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 200")
            writer.write(_REQUEST * 1000)
            assert (await reader.read()).count(b"HTTP/1.1") <= MAX_PIPELINED + 1
            reader, writer = await connect()
            writer.write(_REQUEST)
            assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 200")
            writer.close()

    asyncio.run(run())


async def draining(state: ServerState) -> None:
    """Return when the only connection takes no more requests."""
    await until(lambda: [one._draining is not None for one in state.connections] == [True])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param(b"\0junk\r\n\r\n", id="no request"),
        pytest.param(b"\0" * 1_000_000, id="much of it"),
        pytest.param(_CHUNKED + b"no number\r\n", id="no chunk"),
        pytest.param(_REQUEST * MAX_PIPELINED, id="too many"),
    ],
)
def test_requests_before_junk_are_answered(junk: bytes) -> None:
    """Their messages are stored, and a client that got no answer does not know it."""

    async def run() -> None:
        answers = asyncio.Semaphore(0)
        async with served(partial(_reply_after, answers)) as (connect, state):
            reader, writer = await connect()
            writer.write(_REQUEST * 3 + junk)
            await draining(state)
            await writer.drain()
            for _ in range(3 + MAX_PIPELINED):
                answers.release()
            heard = await reader.read()
            assert heard.count(b"HTTP/1.1 200") == heard.count(b"HTTP/1.1") >= 3
            assert heard.count(b"connection: close") == 1
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("more", [b"", _REQUEST[:20]])
def test_a_client_that_sends_no_more_is_answered(more: bytes) -> None:
    """It has closed its side of the connection only, as some programs and proxies do behind their last request."""

    async def run() -> None:
        answers = asyncio.Semaphore(0)
        async with served(partial(_reply_after, answers)) as (connect, state):
            reader, writer = await connect()
            writer.write(_REQUEST + more)
            writer.write_eof()
            await draining(state)
            answers.release()
            heard = await reader.read()
            assert heard.count(b"HTTP/1.1 200") == heard.count(b"HTTP/1.1") == heard.count(b"connection: close") == 1
            await until(lambda: not state.connections)
            writer.close()

    asyncio.run(run())


def test_a_request_that_is_not_all_sent_ends_with_its_client() -> None:
    async def run() -> None:
        async with served() as (connect, state):
            reader, writer = await connect()
            writer.write(_REQUEST[:-1])
            writer.write_eof()
            assert await reader.read() == b""
            await until(lambda: not (state.connections or state.tasks))
            writer.close()

    asyncio.run(run())


def test_the_request_that_is_answered_learns_that_its_client_is_gone() -> None:
    """Not only the last one that came: its answer would be an error in the log."""

    async def run() -> None:
        go_on = asyncio.Event()

        async def reply() -> Reply:
            await go_on.wait()
            return await _reply()

        async with served(reply) as (connect, state):
            _, writer = await connect()
            writer.write(_REQUEST * 2)
            protocol = await waiting(state, 1)
            running = protocol._running
            protocol.transport.abort()
            await until(lambda: not state.connections)
            assert running is not None
            assert running.disconnected
            go_on.set()
            await until(lambda: not state.tasks)
            writer.close()

    asyncio.run(run())
