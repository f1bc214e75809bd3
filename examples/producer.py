"""A producer that answers checks, for the demo and the tests: not for production.

It is a real HTTP server on the loopback interface, from the standard library; its answers come from a script.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from standardwebhooks import Webhook, WebhookVerificationError

if TYPE_CHECKING:
    from types import TracebackType

#: a failure of the producer, in the script
EXCEPTION = "EXCEPTION"
#: RocketMQ's spelling -> the protocol's
_SPELLING = {"UNKNOW": "UNKNOWN"}
_LONGEST_REQUEST = 16 * 1024 * 1024

Script = Mapping[str, Sequence[str]]


def read_script(path: str | Path) -> dict[str, list[str]]:
    """The script in a JSON file: transaction id -> {"check_answers": [...]} or just the list."""
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    return {
        transaction_id: list(entry["check_answers"] if isinstance(entry, dict) else entry)
        for transaction_id, entry in content.items()
    }


def said(answers: Sequence[str], check_times: int, instance: str) -> str:
    """The answer of ``instance`` (A or B) to the check with that number: the last answer repeats.

    ``A:UNKNOW,B:COMMIT`` gives answers by instance; an instance not named answers UNKNOWN.
    """
    answer = answers[min(max(check_times, 1), len(answers)) - 1]
    if ":" in answer:
        answer = dict(part.split(":", 1) for part in answer.split(",")).get(instance, "UNKNOWN")
    return _SPELLING.get(answer, answer)


class ExampleProducer:
    """Answers checks on 127.0.0.1 while its ``with`` block runs; not for production.

    ``script``: transaction id -> answers to its 1st, 2nd ... check, or the path of such a JSON file (see
    ``read_script``). An answer is COMMIT, ROLLBACK, UNKNOWN, EXCEPTION (an HTTP 500), or by instance,
    ``A:UNKNOWN,B:COMMIT``. The request's check_times selects the answer: a check sent twice gets the same.
    Two instances of the same service listen at ``/a/check`` and ``/b/check``.
    ``secret``: answer 401 to requests not signed with it (Standard Webhooks 1.0).
    A transaction that is not in the script: 404.
    """

    def __init__(self, script: Script | str | Path, secret: str | None = None) -> None:
        self._script: dict[str, Sequence[str]] = {}
        self._script.update(read_script(script) if isinstance(script, (str, Path)) else script)
        self._webhook = None if secret is None else Webhook(secret)
        self._received: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> ExampleProducer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._server.hang_up()
        self._thread.join()

    @property
    def endpoints(self) -> list[str]:
        """The URLs of the instances A and B."""
        return [f"http://127.0.0.1:{self._server.server_address[1]}/{instance}/check" for instance in "ab"]

    @property
    def checks_received(self) -> int:
        """Number of checks so far, including those of unknown transactions, but not those with a wrong signature."""
        with self._lock:
            return self._received.total()

    @property
    def checks_by_transaction(self) -> dict[str, int]:
        """Transaction id -> checks so far."""
        with self._lock:
            return dict(self._received)

    def change_mind(self, transaction_id: str, *answers: str) -> None:
        """Change the answers from now on."""
        with self._lock:
            self._script[transaction_id] = answers

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str]]:
        """(HTTP status, JSON object) for one request."""
        instance = {"/a/check": "A", "/b/check": "B"}.get(path)
        if instance is None:
            return HTTPStatus.NOT_FOUND, {"error": "no such path"}
        if not self._is_signed(headers, body):
            return HTTPStatus.UNAUTHORIZED, {"error": "signature"}
        try:
            check: dict[str, Any] = json.loads(body)
            transaction_id, check_times = str(check["transaction_id"]), int(check["check_times"])
        except (ValueError, KeyError, TypeError):
            return HTTPStatus.BAD_REQUEST, {"error": "not a check"}
        with self._lock:
            self._received[transaction_id] += 1
            answers = self._script.get(transaction_id)
        if not answers:
            return HTTPStatus.NOT_FOUND, {"error": "unknown transaction"}
        state = said(answers, check_times, instance)
        if state == EXCEPTION:
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "the producer failed"}
        return HTTPStatus.OK, {"transaction_id": transaction_id, "state": state}

    def _is_signed(self, headers: Mapping[str, str], body: bytes) -> bool:
        if self._webhook is None:
            return True
        try:
            self._webhook.verify(body, dict(headers), json_parse=False)
        except (WebhookVerificationError, ValueError):  # ValueError: a header or the body cannot be decoded
            return False
        return True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # keep-alive connections wait for the next request
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], producer: ExampleProducer) -> None:
        super().__init__(address, _Handler)
        self.producer = producer
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection."""
        with self._lock:
            self._connections.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._connections.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed closes the connection midway: not an error to print."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def hang_up(self) -> None:
        """Close the keep-alive connections: a producer that is gone answers on none of them."""
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keep-alive
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body in one packet
    timeout = 60

    def do_POST(self) -> None:
        """Answer one check."""
        assert isinstance(self.server, _Server)  # noqa: S101 - for mypy
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _LONGEST_REQUEST:
            self.close_connection = True
            self._reply(HTTPStatus.LENGTH_REQUIRED, {"error": "Content-Length"})
            return
        self._reply(*self.server.producer.answer(self.path, dict(self.headers), self.rfile.read(int(length))))

    def _reply(self, status: int, fields: dict[str, str]) -> None:
        body = json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's names
        """Log nothing: the demo shows the tables."""
