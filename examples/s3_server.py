"""An S3 server for the demonstration: moto (an extra of developers), which knows conditional writes.

`python -m examples.s3_server [PORT]` runs one, which keeps what it is given in memory.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, cast

import requests
from werkzeug.serving import WSGIRequestHandler, make_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from werkzeug.serving import BaseWSGIServer

BUCKET = "lake"
ROOT = f"s3://{BUCKET}"


class _Handler(WSGIRequestHandler):
    """One answer ``100 Continue``, not two: that of http.server besides werkzeug's is taken for the response."""

    protocol_version = "HTTP/1.1"
    # An answer in two packets would wait 40 ms for the client's delayed acknowledgement.
    disable_nagle_algorithm = True

    def handle_expect_100(self) -> bool:
        return True

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Quiet."""


class _OneByOne:
    """Conditional writes one after the other.

    moto looks whether the object is there, and later writes it: of two at once both would be told that theirs is it.
    """

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "GET" or environ.keys().isdisjoint({"HTTP_IF_NONE_MATCH", "HTTP_IF_MATCH"}):
            return self._application(environ, start_response)
        with self._lock:
            return self._application(environ, start_response)


def _server(port: int) -> BaseWSGIServer:
    from moto.moto_server.werkzeug_app import create_backend_app  # takes longer than all else that tests need of this

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # Not moto's dispatcher, which guesses the service, and looks for 180 folders, at each request.
    application = _OneByOne(create_backend_app("s3"))
    return make_server("127.0.0.1", port, application, threaded=True, request_handler=_Handler)


def options(port: int) -> dict[str, str]:
    """storage.options for the server."""
    return {
        "aws_endpoint_url": f"http://127.0.0.1:{port}",
        "aws_region": "us-east-1",
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
        "aws_allow_http": "true",
    }


@contextmanager
def s3_server() -> Iterator[int]:
    """A running server with the bucket `BUCKET`, as a process of its own; its port.

    Not a thread: delta-rs keeps Python's lock during some requests, and would wait for itself.
    """
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: S603 - this module
        try:
            yield int(cast("IO[bytes]", process.stdout).readline())
        finally:
            process.kill()


def serve(port: int) -> None:
    """Print the port once the bucket is there, and serve until killed."""
    server = _server(port)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    requests.put(f"http://127.0.0.1:{server.port}/{BUCKET}", timeout=60).raise_for_status()
    print(server.port, flush=True)
    thread.join()


if __name__ == "__main__":
    serve(int(sys.argv[1]) if sys.argv[1:] else 0)
