"""Listeners that are asked, and checks as Checkback and others send them."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import requests

from check.servers import request
from checkback.check.client import CheckClient
from checkback.check.endpoint import CheckedGroup
from checkback.producer import (
    AsyncTransactionListener,
    CheckRequest,
    CheckServer,
    LocalTransactionState,
    TransactionListener,
)
from checkback.signature import Signer

if TYPE_CHECKING:
    from checkback.check.wire import CheckAnswer

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + "A" * 32
COMMIT = LocalTransactionState.COMMIT


class Listener(TransactionListener):
    """Says ``said`` of every transaction, and remembers who asked."""

    def __init__(self, said: Any = COMMIT) -> None:
        self.said = said
        self.checks: list[CheckRequest] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def execute_local_transaction(self, message: Any, arg: Any) -> LocalTransactionState | None:
        raise NotImplementedError

    def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
        self.checks.append(check)
        self.go_on.wait(5)
        if isinstance(self.said, BaseException):
            raise self.said
        state: LocalTransactionState | None = self.said
        return state


class AsyncListener(AsyncTransactionListener):
    """The same in the event loop, which it remembers."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.loops: set[int] = set()

    async def execute_local_transaction(self, message: Any, arg: Any) -> LocalTransactionState | None:
        raise NotImplementedError

    async def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
        await asyncio.sleep(0)
        self.loops.add(id(asyncio.get_running_loop()))
        return self._listener.check_local_transaction(check)


def ask(url: str, secret: str | None = SECRET, timeout_s: float = 5, **changes: Any) -> CheckAnswer:
    with CheckClient(
        {"orders": CheckedGroup((url,), secret), "other": CheckedGroup((url,), secret)}, timeout_s
    ) as client:
        return client.ask(request(**changes))


def signed(body: str, secret: str = SECRET, name: str = "chk_0_7_1", ago: float = 0) -> dict[str, str]:
    return {"Content-Type": "application/json", **Signer(secret).headers(name, time.time() - ago, body)}


def post(url: str, body: str | bytes, headers: dict[str, str]) -> requests.Response:
    return requests.post(url, data=body, headers=headers, timeout=5)


BODY = request().to_json()


HEAD = b"POST /check HTTP/1.1\r\nHost: x\r\n"


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    connection.settimeout(20)
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def connected(server: CheckServer) -> socket.socket:
    host, port = server.url.split("/")[2].split(":")
    return socket.create_connection((host, int(port)), 20)
