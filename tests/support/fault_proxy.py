"""An HTTP proxy in front of the S3 server that has faults: `python -m support.fault_proxy UPSTREAM_PORT SEED RATE`.

Of all requests the share ``RATE`` fails: refused with 503 or 500 before it is done, or done and answered with 500, or
done and not answered at all.
"""

from __future__ import annotations

import http.client
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import TYPE_CHECKING

from support.server_process import server_process

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOP = {"connection", "transfer-encoding", "content-length", "expect", "server", "date"}


def _handler(upstream: int, random: Random, rate: float) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault = random.choice(["500", "503", "done", "silent"]) if random.random() < rate else ""
            if fault in ("500", "503"):
                self._answer(int(fault), {}, b"")
                return
            server = http.client.HTTPConnection("127.0.0.1", upstream, timeout=60)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
            server.request(self.command, self.path, body, headers)
            found = server.getresponse()
            content = found.read()
            server.close()
            if fault == "done":
                self._answer(500, {}, b"")
            elif fault == "silent":
                self.close_connection = True
            elif self.command == "HEAD":
                self._answer(found.status, dict(found.getheaders()), b"", found.getheader("Content-Length"))
            else:
                self._answer(found.status, dict(found.getheaders()), content)

        def _answer(self, status: int, headers: dict[str, str], content: bytes, length: str | None = None) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _do  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:
            """Quiet."""

    return Handler


@contextmanager
def fault_proxy(upstream: int, seed: int, rate: float) -> Iterator[int]:
    """A running proxy, as a process of its own; its port."""
    with server_process("support.fault_proxy", str(upstream), str(seed), str(rate)) as port:
        yield port


if __name__ == "__main__":
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), _handler(int(sys.argv[1]), Random(int(sys.argv[2])), float(sys.argv[3]))
    )
    print(server.server_port, flush=True)
    server.serve_forever()
