"""Real servers on 127.0.0.1 that answer a check in every way a producer can, and some it should not."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from checkback.check.wire import CheckRequest

if TYPE_CHECKING:
    from types import TracebackType

#: a short real timeout, in seconds
SHORT = 0.3


@dataclass
class Received:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> dict[str, Any]:
        fields = json.loads(self.body)
        assert isinstance(fields, dict)
        return fields


@dataclass
class Wire:
    """The connection that a request came on, to answer as one likes."""

    sock: socket.socket
    stopped: threading.Event = field(repr=False)

    def send(self, content: bytes) -> None:
        self.sock.sendall(content)

    def drip(self, content: bytes, pause: float = 0.02) -> None:
        """A byte at a time; ends when the client hangs up."""
        for byte in content:
            self.sock.sendall(bytes([byte]))
            if self.stopped.wait(pause):
                return

    def wait(self, seconds: float) -> None:
        self.stopped.wait(seconds)


#: answers one request; True keeps the connection
Handler = Callable[[Received, Wire], bool]


class Server:
    """Reads requests and leaves the answers to ``handler``; one that is not ``reading`` accepts connections only."""

    def __init__(self, handler: Handler, reading: bool = True, port: int = 0) -> None:
        self.received: list[Received] = []
        self.connections = 0
        self._handler = handler
        self._reading = reading
        self._stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", port))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = f"{self.address}/check"
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(2)

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(sock, self.connections), daemon=True).start()

    def _serve(self, sock: socket.socket, connection: int) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with sock, sock.makefile("rb") as stream:
                if not self._reading:
                    self._stopped.wait(5)
                while first := stream.readline():
                    headers = {}
                    while (line := stream.readline().strip()) != b"":
                        name, _, value = line.decode().partition(": ")
                        headers[name.lower()] = value
                    body = stream.read(int(headers.get("content-length", 0)))
                    received = Received(first.decode().split()[1], headers, body, connection)
                    self.received.append(received)
                    if not self._handler(received, Wire(sock, self._stopped)):
                        return
        except OSError:
            pass  # the client hung up, as it should on most of these


def reply(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    """A response; ``headers`` with _ for -."""
    lines = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


def says(state: object, transaction_id: object = "tx-1") -> bytes:
    """The JSON of an answer."""
    return json.dumps({"transaction_id": transaction_id, "state": state}).encode()


def always(response: bytes, keep: bool = True) -> Handler:
    """The same response to every request."""

    def handle(received: Received, wire: Wire) -> bool:
        wire.send(response)
        return keep

    return handle


def hang_up(received: Received, wire: Wire) -> bool:
    """No answer at all."""
    return False


def late(received: Received, wire: Wire) -> bool:
    """The right answer, far too late."""
    wire.wait(3)
    wire.send(reply(says("COMMIT")))
    return False


def request(
    *,
    queue_id: int = 0,
    offset: int = 7,
    times: int = 1,
    group: str = "orders",
    transaction_id: str = "tx-1",
    **more: Any,
) -> CheckRequest:
    """A check request."""
    return CheckRequest(
        queue_id=queue_id,
        queue_offset=offset,
        transaction_id=transaction_id,
        producer_group=group,
        real_topic="orders",
        check_times=times,
        born_timestamp=1_795_227_064_579,
        **more,
    )


def unused_url() -> str:
    """A URL where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}/check"
