"""A check endpoint that answers at once and costs next to nothing: what a benchmark of the asking asks.

Any number of kept-alive connections, in processes of its own: ``with endpoint(2) as url: ...``. Run as a program it is
one of these processes. Standard library only.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
#: NOTHING: of a receiver of webhooks, which says nothing
_STATES = ("COMMIT", "ROLLBACK", "UNKNOWN", NOTHING := "NOTHING")


@contextmanager
def endpoint(processes: int = 1, state: str = "COMMIT") -> Iterator[str]:
    """The URL of an endpoint that says ``state`` of every transaction.

    The kernel deals its connections out to ``processes``, which end with the context, and with the caller's process.
    """
    if state not in _STATES:
        raise ValueError(f"{state} is no state")
    with ExitStack() as stack:
        reserved = stack.enter_context(_bound(0))  # does not listen: it only keeps the port for the processes
        port = reserved.getsockname()[1]
        for _ in range(processes):
            command = [sys.executable, __file__, str(port), state]
            process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise RuntimeError("the endpoint did not start: its reason is on stderr")
        yield f"http://127.0.0.1:{port}/check"


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", port))
    return sock


def _serve(port: int, state: str) -> None:
    """Answer until stdin is closed."""
    listener = _bound(port)
    listener.listen(1024)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    waiting: dict[socket.socket, bytes] = {}  # what came of a request that is not whole yet
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            sock = key.fileobj
            if sock is sys.stdin:
                return
            if sock is listener:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ)
                waiting[connection] = b""
                continue
            assert isinstance(sock, socket.socket)
            try:
                received = sock.recv(1 << 16)
                if received:
                    waiting[sock] = _answer(sock, waiting[sock] + received, state)
            except OSError:
                received = b""
            if not received:
                selector.unregister(sock)
                del waiting[sock]
                sock.close()


def _answer(sock: socket.socket, received: bytes, state: str) -> bytes:
    """Answer the requests that are whole; what is left."""
    while (end := received.find(b"\r\n\r\n")) >= 0:
        length = _LENGTH.search(received, 0, end)
        start, stop = end + 4, end + 4 + (int(length[1]) if length else 0)
        if len(received) < stop:
            break
        if state == NOTHING:
            sock.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
            received = received[stop:]
            continue
        said = json.dumps({"transaction_id": json.loads(received[start:stop])["transaction_id"], "state": state})
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(said)}\r\n\r\n"
        sock.sendall((head + said).encode("ascii"))
        received = received[stop:]
    return received


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2])
