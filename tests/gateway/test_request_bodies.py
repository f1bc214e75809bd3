"""What requests hold while they arrive and while they wait: bounded, whoever sends them."""

from __future__ import annotations

import asyncio
import json
import socket
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.gateway.http.api import create_app
from checkback.gateway.http.middleware import FREE, BodyBuffers, RequestStream
from checkback.gateway.metrics import Metrics
from checkback.gateway.problems import Problem
from checkback.gateway.service import GatewayService
from checkback.settings import Settings
from gateway.process import PATIENCE_S, Gateway, half

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from starlette.types import Message

    from checkback.gateway.authentication import Groups

pytestmark = pytest.mark.slow

TOKEN = "orders-token-0123456789"
ENVIRON = {"CHECKBACK__PRODUCERS__orders__TOKEN": "env:T_ORDERS", "T_ORDERS": TOKEN}
A, B = frozenset({"a"}), frozenset({"b"})
BODY, ROOM = 4 * FREE, 8 * FREE


class Client:
    """A request whose body comes part by part; ``answer`` is what `BodyBuffers` made of it."""

    def __init__(self, receiving: BodyBuffers, groups: Groups = None) -> None:
        self._parts: asyncio.Queue[Message] = asyncio.Queue()
        self._task = asyncio.ensure_future(receiving.body(RequestStream(self._parts.get), groups))

    async def sends(self, size: int, more: bool = True) -> None:
        self._parts.put_nowait({"type": "http.request", "body": bytes(size), "more_body": more})
        await self._settled()

    async def goes(self) -> None:
        self._parts.put_nowait({"type": "http.disconnect"})
        await self._settled()

    async def _settled(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    @property
    def answer(self) -> Any:
        if not self._task.done():
            return "waits"
        result = self._task.result()
        return result.code if isinstance(result, Problem) else None if result is None else len(result)


def test_small_bodies_always_have_room() -> None:
    """Large ones that do not come to an end take it from large ones only, and leave it when they end or go."""

    async def run() -> None:
        receiving = BodyBuffers(BODY, ROOM, PATIENCE_S)
        slow = [Client(receiving) for _ in range(3)]
        for client in slow:
            await client.sends(BODY)
        assert [client.answer for client in slow] == ["waits", "waits", "queue_full"]
        assert receiving.held == 6 * FREE
        small = Client(receiving)
        await small.sends(FREE, more=False)
        assert small.answer == FREE
        late = Client(receiving)
        await late.sends(3 * FREE)
        assert late.answer == "waits"
        await late.sends(1)
        assert late.answer == "queue_full"
        await slow[0].goes()
        await slow[1].sends(0, more=False)
        assert [client.answer for client in slow[:2]] == [None, BODY]
        assert receiving.held == 0

    asyncio.run(run())


def test_rest_of_a_refused_body_is_not_waited_for() -> None:
    """Whatever else would end the connection."""

    async def never() -> Message:
        await asyncio.Event().wait()
        return {}

    asyncio.run(asyncio.wait_for(BodyBuffers(BODY, ROOM, 0).rest(RequestStream(never)), PATIENCE_S))


def test_one_token_has_not_all_the_room() -> None:
    async def run() -> None:
        receiving = BodyBuffers(BODY, ROOM, PATIENCE_S)
        mine = [Client(receiving, A) for _ in range(2)]
        for client in mine:
            await client.sends(3 * FREE)
        assert [client.answer for client in mine] == ["waits", "waits"]
        await mine[1].sends(1)
        assert mine[1].answer == "queue_full"
        other = Client(receiving, B)
        await other.sends(BODY, more=False)
        assert other.answer == BODY

    asyncio.run(run())


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["sends", "ends", "goes"]), st.integers(0, 3 * FREE)), max_size=40
    )
)
def test_what_is_held_is_bounded_and_let_go(steps: list[tuple[int, str, int]]) -> None:
    """However bodies come: never more than the room counts, and nothing of those that have ended."""

    async def run() -> None:
        receiving = BodyBuffers(BODY, ROOM, PATIENCE_S)
        clients: dict[int, Client] = {}
        for number, step, size in steps:
            client = clients.setdefault(number, Client(receiving, (A, B)[number % 2]))
            if step == "goes":
                await client.goes()
            else:
                await client.sends(size, more=step == "sends")
            assert receiving.held <= ROOM
            if client.answer != "waits":
                del clients[number]
        for client in clients.values():
            await client.goes()
        assert receiving.held == 0

    asyncio.run(run())


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """With a token, and a long time for requests: what is answered without it is not answered by the time."""
    with Gateway(tmp_path_factory.mktemp("tables"), "gateway.timeout=1h", environ=ENVIRON) as running:
        yield running


def head(length: int, *more: str) -> bytes:
    lines = ["POST /v1/half HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {length}"]
    return "\r\n".join([*lines, *more, "", ""]).encode()


def heard(connection: socket.socket) -> dict[str, Any]:
    """The problem that comes; the connection need not end for that."""
    said = b""
    while not (said.endswith(b"}") and b"\r\n\r\n" in said):
        part = connection.recv(65536)
        assert part, said
        said += part
    members: dict[str, Any] = json.loads(said.partition(b"\r\n\r\n")[2])
    return members


@pytest.mark.processes
@pytest.mark.parametrize("more", [[], ["Expect: 100-continue"], ["Connection: close"], ["Authorization: Bearer x"]])
def test_who_has_no_token_is_answered_before_the_body(guarded: Gateway, more: list[str]) -> None:
    """And may then send it in vain: the connection is not reset under it."""
    with socket.create_connection(("127.0.0.1", guarded.port), PATIENCE_S) as connection:
        connection.sendall(head(1 << 20, *more))
        assert heard(connection)["code"] == "unauthorized"
        connection.sendall(bytes(1 << 20))
        assert connection.recv(1) == b""


@pytest.mark.processes
@pytest.mark.parametrize("more", [[], ["Content-Type: text/plain"], ["X: " + "y" * 40_000]])
def test_what_the_headers_tell_is_answered_before_the_body(guarded: Gateway, more: list[str]) -> None:
    with socket.create_connection(("127.0.0.1", guarded.port), PATIENCE_S) as connection:
        connection.sendall(head((16 << 20) + (not more), f"Authorization: Bearer {TOKEN}", *more))
        assert heard(connection)["status"] in (413, 415, 431)


@pytest.mark.processes
def test_body_that_is_refused_is_let_by_up_to_its_limit(guarded: Gateway) -> None:
    """Without end it ends the connection."""
    with socket.create_connection(("127.0.0.1", guarded.port), PATIENCE_S) as connection:
        connection.sendall(head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
        assert heard(connection)["code"] == "unauthorized"
        chunk = b"%x\r\n" % (1 << 20) + bytes(1 << 20) + b"\r\n"
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            connection.sendall(chunk * 100)


@pytest.mark.processes
def test_question_is_answered_whatever_body_it_brings(tmp_path: Path) -> None:
    """None is read for it; when it does not come to an end there is no second answer."""
    with (
        Gateway(tmp_path, "gateway.timeout=400ms") as gateway,
        socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S) as connection,
    ):
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        said = b""
        while part := connection.recv(65536):
            said += part
        assert said.startswith(b"HTTP/1.1 200")
        assert said.count(b"HTTP/1.1") == 1


@pytest.mark.processes
def test_full_room_says_when_to_come_again(tmp_path: Path) -> None:
    """While a large body does not come to an end, another is told 503; small ones are taken; then all are."""
    with Gateway(
        tmp_path, "gateway.max_body=200000B", "gateway.max_receiving=200000B", "gateway.timeout=1h"
    ) as gateway:
        content = json.dumps(half("slow", properties={}, keys="k" * 30_000, body="A" * 160_000)).encode()
        with socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S) as slow:
            slow.sendall(head(len(content)) + content[:-1])
            refused = gateway.post("/v1/half", half("large", body="A" * 150_000, tags="first"))
            while refused.status_code != 503:  # the slow one has not been read so far
                assert refused.status_code in (200, 409)
                refused = gateway.post("/v1/half", half("large", body="A" * 150_000, tags="again"))
            assert (refused.json()["code"], refused.headers["retry-after"]) == ("queue_full", "1")
            assert gateway.post("/v1/half", half("small")).status_code == 200
            slow.sendall(content[-1:])
            assert slow.recv(65536).startswith(b"HTTP/1.1 200")
        assert gateway.post("/v1/half", half("later", body="A" * 150_000)).status_code == 200


@pytest.mark.processes
def test_client_that_does_not_read_is_not_waited_for(tmp_path: Path) -> None:
    """Its answers, and its place among the connections, are given up after gateway.timeout."""
    with Gateway(tmp_path, "gateway.timeout=400ms", "gateway.max_connections=1") as gateway, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", gateway.port))
        deaf.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        told = ["too_many_connections"]
        while told[-1] == "too_many_connections" and len(told) < 20_000:
            with socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S) as connection:
                told.append(heard(connection)["code"])
        assert told[-1] == "too_slow"


def test_requests_that_wait_hold_no_bodies(tmp_path: Path) -> None:
    """The same message sent again and again while its commit is awaited is there once."""
    options = {"linger": "1h", "max_connections": 30, "acknowledge": "table"}
    config = Settings.model_validate({"storage": {"root": str(tmp_path)}, "gateway": options})
    content = json.dumps(half("big", body="A" * (1 << 20))).encode()

    async def run() -> None:
        metrics = Metrics()
        service = GatewayService(config, metrics, lambda error: pytest.fail(str(error)))
        app = create_app(service, metrics, config.gateway)
        committing = asyncio.create_task(service.run())
        statuses: list[int] = []

        async def request() -> None:
            headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
            scope = {"type": "http", "method": "POST", "path": "/v1/half", "headers": headers}
            parts = [content[: len(content) // 2], content[len(content) // 2 :]]

            async def receive() -> Message:
                return {"type": "http.request", "body": bytearray(parts.pop(0)), "more_body": bool(parts)}

            async def send(message: Message) -> None:
                if message["type"] == "http.response.start":
                    statuses.append(message["status"])

            await app(scope, receive, send)

        tracemalloc.start()
        try:
            waiting = [asyncio.create_task(request()) for _ in range(30)]
            for _ in range(10):
                await asyncio.sleep(0)
            assert service.halves.commits.waiting == 1
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        # Those who have gone are waited for, too: no more of them than connections.
        await request()
        assert statuses == [503]
        service.hurry()
        await asyncio.gather(*waiting)
        assert statuses[1:] == [200] * 30
        service.close()
        await committing
        assert held < 8 << 20

    asyncio.run(run())
