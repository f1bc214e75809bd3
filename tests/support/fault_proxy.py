"""An HTTP proxy in front of an object store's server: `python -m support.fault_proxy UPSTREAM_PORT SEED RATE`.

Of all requests the share ``RATE`` fails: refused with 503 or 500 before it is done, or done and answered with 500, or
done and not answered at all. It counts the requests, lets them take longer, and may throttle: refuse all of them with
503, as S3 does with "SlowDown". It holds the answer to a request that it is told, until it is told to give it, or
refuses it with a status that it is told, or breaks off in the middle of it. Its listings may be late.
"""

from __future__ import annotations

import http.client
import json
import re
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, unquote, urlsplit

import requests

from support.server_process import server_process

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOP = {"connection", "transfer-encoding", "content-length", "expect"}
#: headers of an answer that this server writes itself
_OWN = {"server", "date"}
#: paths of its own: the counts so far, and how many requests came one after the other, which begin anew; from now on
#: each request takes so many seconds longer; from now on all requests are refused (1) or done again (0)
_COUNTS, _IN_SEQUENCE, _LATENCY, _THROTTLE = "/-/requests", "/-/in-sequence", "/-/latency/", "/-/throttle/"
#: so many of the next requests whose method and path match are done, and not answered, not even when they are repeated
#: (a client's timeout); how many are; they are answered
_HOLD, _HELD, _RELEASE = "/-/hold/", "/-/held", "/-/release"
#: so many of the next requests whose method and path match are refused with this status
_REFUSE = "/-/refuse/"
#: so many of the next listings with objects that were put since lack these
_LATE = "/-/late/"
#: such a status: it is done, and half of the answer's content is sent
_CUT = 0
#: an object in the answer to a listing of S3, and its key
_OBJECT = re.compile(rb"<Contents>(?:(?!</Contents>).)*?<Key>(.*?)</Key>.*?</Contents>", re.DOTALL)
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


def _handler(upstream: int, random: Random, rate: float) -> type[BaseHTTPRequestHandler]:
    counts: Counter[str] = Counter()
    in_sequence, last_ended = 0, 0.0
    latency_s = 0.0
    throttled = False
    holding = re.compile("")
    holds, released = 0, threading.Event()
    refusing, refusals, status = re.compile(""), 0, 0
    held: set[str] = set()
    late, put = 0, set[str]()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # An answer in two packets would wait 40 ms for the client's delayed acknowledgement.
        disable_nagle_algorithm = True

        def _do(self) -> None:
            nonlocal in_sequence, last_ended
            began = self._ended = time.monotonic()
            self._serve()
            with lock:
                # Of requests in the order of their ends, each that began after the last one counted had ended.
                if began >= last_ended and not self.path.startswith("/-/"):
                    in_sequence, last_ended = in_sequence + 1, self._ended

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path.startswith("/-/"):
                self._answer(200, {}, self._told())
                return
            counts[_kind(self.command, self.path)] += 1
            if throttled:
                self._answer(503, {"Content-Type": "application/xml"}, _SLOW_DOWN)
                return
            refused = self._is_refused()
            if refused and status != _CUT:
                self._answer(status, {}, b"")
                return
            time.sleep(latency_s)
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
            content = self._late(content)
            self._wait()
            if fault == "done":
                self._answer(500, {}, b"")
            elif fault == "silent":
                self.close_connection = True
            elif refused:
                self._answer(found.status, dict(found.getheaders()), content[: len(content) // 2], str(len(content)))
                self.close_connection = True
            elif self.command == "HEAD":
                self._answer(found.status, dict(found.getheaders()), b"", found.getheader("Content-Length"))
            else:
                self._answer(found.status, dict(found.getheaders()), content)

        def _is_refused(self) -> bool:
            nonlocal refusals
            with lock:
                if refused := refusals > 0 and refusing.search(f"{self.command} {self.path}") is not None:
                    refusals -= 1
                return refused

        def _late(self, content: bytes) -> bytes:
            """The content of an answer, of a late listing without what was put since."""
            nonlocal late
            with lock:
                if late and self.command == "PUT":
                    put.add(unquote(urlsplit(self.path).path).partition("/")[2].partition("/")[2])
                if not late or _kind(self.command, self.path) != "LIST":
                    return content
                seen = _OBJECT.sub(lambda found: b"" if unquote(found[1].decode()) in put else found[0], content)
                late -= seen != content
                return seen

        def _wait(self) -> None:
            """Until it may be answered."""
            with lock:
                if len(held) < holds and holding.search(f"{self.command} {self.path}"):
                    held.add(self.path)
            if self.path in held:
                released.wait()

        def _told(self) -> bytes:
            """Do what a path of its own says; the answer."""
            nonlocal latency_s, throttled, holding, holds, in_sequence, refusing, refusals, status, late
            said = b""
            if self.path == _COUNTS:
                said = json.dumps(counts).encode()
                counts.clear()
            elif self.path == _IN_SEQUENCE:
                said, in_sequence = str(in_sequence).encode(), 0
            elif self.path.startswith(_LATENCY):
                latency_s = float(self.path.removeprefix(_LATENCY))
            elif self.path.startswith(_THROTTLE):
                throttled = self.path.removeprefix(_THROTTLE) == "1"
            elif self.path.startswith(_HOLD):
                number, _, request = unquote(self.path.removeprefix(_HOLD)).partition("/")
                released.clear()
                holding, holds = re.compile(request), int(number)
                held.clear()
            elif self.path.startswith(_REFUSE):
                number, code, request = unquote(self.path.removeprefix(_REFUSE)).split("/", 2)
                refusing, refusals, status = re.compile(request), int(number), int(code)
            elif self.path.startswith(_LATE):
                late = int(self.path.removeprefix(_LATE))
                put.clear()
            elif self.path == _RELEASE:
                holds = 0
                released.set()
            else:
                said = str(len(held)).encode()
            return said

        def _answer(self, status: int, headers: dict[str, str], content: bytes, length: str | None = None) -> None:
            self._ended = time.monotonic()  # before the client knows, and sends the next one
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in _HOP | _OWN:
                    self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _do  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:
            """Quiet."""

    return Handler


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Quiet: clients are killed."""


def _kind(method: str, path: str) -> str:
    """GET, PUT, ..., or LIST: what a store charges for differently."""
    return "LIST" if method == "GET" and "list-type" in parse_qs(urlsplit(path).query) else method


@contextmanager
def fault_proxy(upstream: int, seed: int = 0, rate: float = 0.0) -> Iterator[int]:
    """A running proxy, as a process of its own; its port."""
    with server_process("support.fault_proxy", *map(str, (upstream, seed, rate))) as port:
        yield port


def requests_since(port: int) -> dict[str, int]:
    """The requests to the proxy since the last call, by kind."""
    found: dict[str, int] = requests.get(f"http://127.0.0.1:{port}{_COUNTS}", timeout=60).json()
    return found


def in_sequence_since(port: int) -> int:
    """The most requests to the proxy since the last call of which none began before another had ended.

    That many latencies have passed, whatever came beside them.
    """
    return int(requests.get(f"http://127.0.0.1:{port}{_IN_SEQUENCE}", timeout=60).text)


def set_latency(port: int, seconds: float) -> None:
    """From now on each request to the proxy takes so much longer."""
    requests.get(f"http://127.0.0.1:{port}{_LATENCY}{seconds}", timeout=60).raise_for_status()


def set_throttled(port: int, throttled: bool) -> None:
    """From now on all requests to the proxy are refused with 503 SlowDown, or done again."""
    requests.get(f"http://127.0.0.1:{port}{_THROTTLE}{int(throttled)}", timeout=60).raise_for_status()


def list_late(port: int, number: int) -> None:
    """The next ``number`` listings of S3 with what is put from now on lack it."""
    requests.get(f"http://127.0.0.1:{port}{_LATE}{number}", timeout=60).raise_for_status()


def hold(port: int, request: str, number: int) -> None:
    """Do ``number`` of the next requests to the proxy, and answer neither them nor their repetitions until `release`.

    ``request``: a regular expression that finds them, as in "PUT /bucket/key".
    """
    path = quote(f"{number}/{request}", safe="")
    requests.get(f"http://127.0.0.1:{port}{_HOLD}{path}", timeout=60).raise_for_status()


def refuse(port: int, request: str, status: int, number: int) -> None:
    """Refuse ``number`` of the next requests to the proxy with this status. ``request``: as in `hold`."""
    path = quote(f"{number}/{status}/{request}", safe="")
    requests.get(f"http://127.0.0.1:{port}{_REFUSE}{path}", timeout=60).raise_for_status()


def cut(port: int, request: str, number: int) -> None:
    """Break off in the middle of the answers to ``number`` of the next requests. ``request``: as in `hold`."""
    refuse(port, request, _CUT, number)


def held(port: int) -> int:
    """How many requests are held."""
    return int(requests.get(f"http://127.0.0.1:{port}{_HELD}", timeout=60).text)


def release(port: int) -> None:
    """Answer the requests that are held."""
    requests.get(f"http://127.0.0.1:{port}{_RELEASE}", timeout=60).raise_for_status()


if __name__ == "__main__":
    handler = _handler(int(sys.argv[1]), Random(int(sys.argv[2])), float(sys.argv[3]))
    server = _Server(("127.0.0.1", 0), handler)
    print(server.server_port, flush=True)
    server.serve_forever()
