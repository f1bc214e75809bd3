"""A Schema Registry after Confluent's REST API: the requests that readers make."""

from __future__ import annotations

import base64
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_NO_SCHEMA = {"error_code": 40403, "message": "Schema not found"}
_NO_SUBJECT = {"error_code": 40401, "message": "Subject not found."}


@dataclass
class SchemaRegistry:
    """Registered schemas, on a port of this machine. A context manager.

    ``asked``: the paths of the requests; ``status``: answered to each, None: what the API tells; ``error_code``:
    of that answer; ``authorization``: the header without which 401 is answered; ``drips``: answers come
    byte by byte until it is set.
    """

    authorization: str | None = None
    status: int | None = None
    error_code: int | None = None
    drips: threading.Event | None = None
    asked: list[str] = field(default_factory=list)
    _by_id: dict[int, dict[str, Any]] = field(default_factory=dict)
    _subjects: dict[str, list[int]] = field(default_factory=dict)
    _serialized: dict[int, bytes] = field(default_factory=dict)

    def __enter__(self) -> SchemaRegistry:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, answer = registry._answer(self.path, self.headers.get("Authorization"))
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(content)))
                if status in range(300, 400):
                    self.send_header("Location", self.path)
                self.end_headers()
                if registry.drips is not None:
                    while not registry.drips.wait(0.05):
                        self.wfile.write(b" ")
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Nothing is logged."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """The URL of its API."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def register(
        self,
        subject: str,
        schema: object,
        kind: str = "AVRO",
        references: list[dict[str, object]] | None = None,
        serialized: bytes | None = None,
    ) -> int:
        """Register a version of a subject; the schema's id. ``serialized``: of protobuf, a FileDescriptorProto."""
        number = 100 + len(self._by_id)
        self._by_id[number] = {"schema": schema if isinstance(schema, str) else json.dumps(schema)}
        if kind != "AVRO":  # the API leaves out the default
            self._by_id[number]["schemaType"] = kind
        if references:
            self._by_id[number]["references"] = references
        if serialized is not None:
            self._serialized[number] = serialized
        self._subjects.setdefault(subject, []).append(number)
        return number

    def _answer(self, path: str, authorization: str | None) -> tuple[int, object]:
        self.asked.append(path)
        if self.status is not None:
            return self.status, {"error_code": self.error_code or self.status * 100, "message": "as the test wants it"}
        if authorization != self.authorization:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        parts = urlsplit(path)
        serialized = parse_qs(parts.query).get("format") == ["serialized"]
        match [unquote(part) for part in parts.path.strip("/").split("/")]:
            case ["schemas", "ids", number]:
                found = self._schema(int(number), serialized)
                return (200, found) if found is not None else (404, _NO_SCHEMA)
            case ["subjects", subject, "versions", version]:
                numbers = self._subjects.get(subject, [])
                place = len(numbers) if version == "latest" else int(version)
                if not 0 < place <= len(numbers):
                    return 404, _NO_SUBJECT
                schema = self._schema(numbers[place - 1], serialized) or {}
                return 200, {"subject": subject, "version": place, "id": numbers[place - 1], **schema}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _schema(self, number: int, serialized: bool) -> dict[str, Any] | None:
        found = self._by_id.get(number)
        if found is not None and serialized and number in self._serialized:
            return found | {"schema": base64.b64encode(self._serialized[number]).decode()}
        return found


def headed(number: int, body: bytes, indexes: bytes = b"") -> bytes:
    """A body as Confluent's serializers write it. ``indexes``: protobuf's message indexes."""
    return b"\0" + number.to_bytes(4, "big") + indexes + body
