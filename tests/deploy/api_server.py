"""What Spark asks of the server of Kubernetes' API, over HTTP: objects are made, listed, watched, changed, deleted.

Every object that is made must be valid by Kubernetes' schemas.
"""

from __future__ import annotations

import json
import queue
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

Object = dict[str, Any]
NAMESPACE = "checkback-test"
_PATH = re.compile(r"/(?:api/v1|apis/[^/]+/[^/]+)/namespaces/[^/]+/(?P<kind>\w+)(?:/(?P<name>[^/]+))?(?:/status)?$")
_TERM = re.compile(r"(?P<key>[^,=!\s]+)\s*(?P<how>=|==|!=|in|notin)\s*(?:\((?P<of>[^)]*)\)|(?P<is>[^,]*))")


class _Asked(NamedTuple):
    """Of which objects a request is; ``name`` None: of all that ``labels`` fit."""

    kind: str
    name: str | None
    labels: str

    @classmethod
    def of(cls, target: str) -> _Asked | None:
        url = urlsplit(target)
        found = _PATH.match(url.path)
        if found is None:
            return None
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        name = found["name"] or query.get("fieldSelector", "").removeprefix("metadata.name=") or None
        return cls(found["kind"], name, query.get("labelSelector", ""))

    def fits(self, kind: str, one: Object) -> bool:
        if kind != self.kind or self.name not in (None, one["metadata"]["name"]):
            return False
        labels = one["metadata"].get("labels", {})
        for term in _TERM.finditer(self.labels):
            values = [value.strip() for value in (term["of"] or term["is"] or "").split(",")]
            if (labels.get(term["key"]) in values) is term["how"].startswith(("!", "not")):
                return False
        return True


class Server:
    """The objects of one namespace. Thread-safe."""

    def __init__(self) -> None:
        self.made: list[Object] = []
        self.invalid: list[str] = []
        self._objects: dict[tuple[str, str], Object] = {}
        self._watchers: dict[queue.Queue[Object | None], _Asked] = {}
        self._version = 0
        self._lock = threading.RLock()

    def objects(self, kind: str) -> list[Object]:
        """Those of this kind (`pods`) that there are."""
        return self.found(_Asked(kind, None, ""))

    def found(self, asked: _Asked) -> list[Object]:
        """Those that fit."""
        with self._lock:
            return [one for (kind, _), one in self._objects.items() if asked.fits(kind, one)]

    def make(self, kind: str, one: Object) -> Object:
        """The object as it is kept."""
        with self._lock:
            self.made.append(json.loads(json.dumps(one)))
            try:
                kubernetes_validate.validate(one, "1.37", strict=True)
            except kubernetes_validate.ValidationError as error:
                self.invalid.append(f"{one['kind']} {one['metadata'].get('name')}: {error.message}")
            now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            one["metadata"] |= {"namespace": NAMESPACE, "uid": str(uuid.uuid4()), "creationTimestamp": now}
            if kind == "pods":
                one["status"] = {"phase": "Pending"}
            self._objects[kind, one["metadata"]["name"]] = one
            self._tell("ADDED", kind, one)
            return one

    def change(self, kind: str, name: str, more: Object) -> Object | None:
        """The object, merged with ``more``; None if there is none."""
        with self._lock:
            one = self._objects.get((kind, name))
            if one is not None:
                _merge(one, more)
                self._tell("MODIFIED", kind, one)
            return one

    def delete(self, asked: _Asked) -> list[Object]:
        """Those that are gone now."""
        with self._lock:
            gone = self.found(asked)
            for one in gone:
                del self._objects[asked.kind, one["metadata"]["name"]]
                self._tell("DELETED", asked.kind, one)
            return gone

    def _tell(self, what: str, kind: str, one: Object) -> None:
        self._version += 1
        one["metadata"]["resourceVersion"] = str(self._version)
        event = json.loads(json.dumps({"type": what, "object": one}))
        for watcher, asked in self._watchers.items():
            if asked.fits(kind, one):
                watcher.put(event)

    def watch(self, asked: _Asked) -> Iterator[Object]:
        """What happens to those that fit, at first their being there, until the server is closed."""
        events: queue.Queue[Object | None] = queue.Queue()
        with self._lock:
            for one in self.found(asked):
                events.put({"type": "ADDED", "object": one})
            self._watchers[events] = asked
        while (event := events.get()) is not None:
            yield event

    def close(self) -> None:
        """End what watches."""
        with self._lock:
            for events in self._watchers:
                events.put(None)


def _merge(one: Object, more: Object) -> None:
    for key, value in more.items():
        if value is None:
            one.pop(key, None)
        elif isinstance(value, dict) and isinstance(one.get(key), dict):
            _merge(one[key], value)
        else:
            one[key] = value


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def _answer(self, status: int, answer: Object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _asked(self) -> _Asked | None:
        asked = _Asked.of(self.path)
        if asked is None:
            self._missing(self.path)
        return asked

    def _missing(self, name: str) -> None:
        self._answer(404, {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": name})

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")

    def _list(self, found: list[Object]) -> None:
        self._answer(200, {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": found})

    def do_GET(self) -> None:
        asked = self._asked()
        if asked is None:
            return
        if "watch=true" in self.path:
            self._watch(asked)
            return
        found = self.server.kept.found(asked)
        if not asked.name or "fieldSelector" in self.path:
            self._list(found)
        elif found:
            self._answer(200, found[0])
        else:
            self._missing(asked.name)

    def _watch(self, asked: _Asked) -> None:
        """As lines; a client that asks for a WebSocket takes that, too."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        if self.headers.get("Upgrade"):
            self.close_connection = True
            return
        try:
            for event in self.server.kept.watch(asked):
                self.wfile.write(json.dumps(event).encode() + b"\n")
        except OSError:  # the client has gone
            pass
        self.close_connection = True

    def do_POST(self) -> None:
        if asked := self._asked():
            self._answer(201, self.server.kept.make(asked.kind, self._body()))

    def do_PATCH(self) -> None:
        self._change()

    def do_PUT(self) -> None:
        self._change()

    def _change(self) -> None:
        asked, body = self._asked(), self._body()
        if asked is None or asked.name is None:
            return
        assert isinstance(body, dict), f"{self.headers['Content-Type']} of {self.path}"
        changed = self.server.kept.change(asked.kind, asked.name, body)
        if changed is None and "apply" in self.headers["Content-Type"]:
            self._answer(201, self.server.kept.make(asked.kind, body))
        elif changed is None:
            self._missing(asked.name)
        else:
            self._answer(200, changed)

    def do_DELETE(self) -> None:
        asked, _ = self._asked(), self._body()
        if asked:
            gone = self.server.kept.delete(asked)
            if asked.name and not gone:
                self._missing(asked.name)
            else:
                self._list(gone)


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    kept: Server


@contextmanager
def api_server() -> Iterator[tuple[str, Server]]:
    """The server's URL, and what it has."""
    with _Http(("127.0.0.1", 0), _Handler) as http:
        http.kept = Server()
        serving = threading.Thread(target=http.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{http.server_address[1]}", http.kept
        finally:
            http.kept.close()
            http.shutdown()
            serving.join()
