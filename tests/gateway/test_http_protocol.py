"""A connection of the gateway's own server, in this process."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from checkback.gateway.authentication import BearerTokens
from checkback.gateway.http.middleware import JSON, RequestMiddleware
from checkback.gateway.metrics import Metrics
from checkback.gateway.run import _config
from checkback.settings import Settings

if TYPE_CHECKING:
    from checkback.gateway.http.middleware import Reply

_REQUEST = b"POST /v1/half HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


async def _reply() -> Reply:
    return 200, b"{}", JSON, None


def test_an_answered_request_is_no_work_for_the_garbage_collector() -> None:
    """A collection stops the gateway for tens of milliseconds."""
    settings = Settings()
    direct = {"/v1/half": {JSON: lambda *_: _reply()}}

    async def run() -> int:
        app = RequestMiddleware(None, direct, BearerTokens({}), Metrics(), settings.gateway)  # type: ignore[arg-type]
        config = _config(settings.gateway, app)
        config.load()
        state = ServerState()
        server = await asyncio.get_running_loop().create_server(
            lambda: config.http_protocol_class(config=config, server_state=state, app_state={}),  # type: ignore[call-arg]
            "127.0.0.1",
        )
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
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
