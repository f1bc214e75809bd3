"""A gateway on 127.0.0.1 that keeps to the contract in memory, and fails as it is told to."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from check.servers import Received, Server, Wire, reply

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What may happen to one request. DROPPED: it lands, and the reply is lost; BROKEN: it is lost; CUT: it lands, and the
#: reply ends in the middle; TORN: it ends in its header; UNAVAILABLE, LATE: it lands, and a proxy before the gateway
#: loses the reply, or does not wait for it.
OK, DROPPED, BROKEN, CUT, TORN, UNAVAILABLE, LATE = "ok", "dropped", "broken", "cut", "torn", "unavailable", "late"
FULL, BAD_GATEWAY, FAILED, REFUSED, REDIRECT, NONSENSE = "full", "bad gateway", "failed", "refused", "redirect", "?"
FAULTS = (OK, DROPPED, BROKEN, CUT, TORN, UNAVAILABLE, LATE, FULL, BAD_GATEWAY, FAILED, REFUSED, REDIRECT, NONSENSE)


class StubGateway:
    """What landed, and what was said. Each request takes the next of ``halves`` or ``ops``; then all is well."""

    def __init__(
        self,
        halves: Iterable[str] = (),
        ops: Iterable[str] = (),
        full: Iterable[int] = (),
        *,
        queue_id: int = 3,
        port: int = 0,
    ) -> None:
        self.queue_id = queue_id
        self._faults = {"/v1/halves": list(halves), "/v1/ops": list(ops)}
        self._faults["/v1/messages"] = self._faults["/v1/halves"]
        #: numbers of a batch's messages for which there is no room yet, one for each request
        self._full = list(full)
        self._lock = threading.Lock()
        #: cleared: requests for half messages and messages, or for ops, are held
        self.takes_halves, self.takes_ops = threading.Event(), threading.Event()
        self.takes_halves.set()
        self.takes_ops.set()
        self._arrived = threading.Condition()
        self._counts: Counter[str] = Counter()
        self.halves: list[dict[str, Any]] = []
        self.ops: list[dict[str, Any]] = []
        #: by offset, how a check has decided before the op landed: the gateway learns it after the op
        self.decisions: dict[int, str] = {}
        #: ops for half messages of other gateways
        self.unverified: list[dict[str, Any]] = []
        self.server = Server(self._handle, port=port)

    def __enter__(self) -> StubGateway:
        self.server.__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        self.takes_halves.set()
        self.takes_ops.set()
        self.server.__exit__(*args)

    @property
    def url(self) -> str:
        return self.server.address

    def requests(self, path: str) -> list[Received]:
        return [received for received in self.server.received if received.path == path]

    def until(self, path: str, number: int) -> None:
        """Return when so many requests of a path have come."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: self._counts[path] >= number, 20)

    def _handle(self, received: Received, wire: Wire) -> bool:
        if received.path == "/readyz":
            wire.send(_json({"status": "ok"}))
            return True
        with self._arrived:
            self._counts[received.path] += 1
            self._arrived.notify_all()
        (self.takes_ops if received.path == "/v1/ops" else self.takes_halves).wait(20)
        with self._lock:
            faults = self._faults[received.path]
            fault = faults.pop(0) if faults else OK
            landing = self._ops if received.path == "/v1/ops" else self._messages
            said = landing(received.json) if fault in {OK, DROPPED, CUT, TORN, UNAVAILABLE, LATE} else b""
        if fault in {DROPPED, BROKEN}:
            # Reset, not closed: what a proxy does that restarts.
            wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        if fault in {CUT, TORN}:
            wire.send(said[: len(said) - 5] if fault == CUT else said[:30])
            return False
        wire.send(said if fault == OK else _REPLIES[fault])
        return True

    def _half(self, fields: dict[str, Any]) -> dict[str, Any]:
        for offset, half in enumerate(self.halves):
            if half["transaction_id"] == fields["transaction_id"]:
                same = {**half, "born_timestamp": 0} == {**fields, "born_timestamp": 0}
                return self._placed(fields, offset) if same else _refused(409, "contradiction")
        self.halves.append(fields)
        return self._placed(fields, len(self.halves) - 1)

    def _messages(self, fields: dict[str, Any]) -> bytes:
        full = self._full.pop(0) if self._full else None
        results = []
        for number, message in enumerate(fields["messages"]):
            if number == full:
                results.append(_refused(503, "queue_full"))
            elif message["tags"] == "refused":
                results.append(_refused(422, "unfit"))
            else:
                results.append(self._half(message))
        return _json({"results": results})

    def _placed(self, fields: dict[str, Any], offset: int) -> dict[str, Any]:
        place = {"queue_id": self.queue_id, "queue_offset": offset}
        return {"status": 200, "transaction_id": fields["transaction_id"], **place}

    def _ops(self, fields: dict[str, Any]) -> bytes:
        return _json({"results": [self._op(op) for op in fields["ops"]]})

    def _op(self, fields: dict[str, Any]) -> dict[str, Any]:
        offset = fields["queue_offset"]
        if fields["queue_id"] != self.queue_id:  # another gateway may have acknowledged the half message
            self.unverified.append(fields)
            answer = {key: fields[key] for key in ("transaction_id", "queue_id", "state")}
            return {"status": 200, **answer, "queue_offset": offset, "repeated": False}
        if offset >= len(self.halves):
            return _refused(404, "unknown_offset")
        if self.halves[offset]["transaction_id"] != fields["transaction_id"]:
            return _refused(422, "wrong_transaction_id")
        first = next((op for op in self.ops if op["queue_offset"] == offset), None)
        if first is None:
            self.ops.append(fields)
        elif self.decisions.get(offset, first["state"]) != fields["state"]:
            return _refused(409, "contradiction")
        return {**self._placed(fields, offset), "state": fields["state"], "repeated": first is not None}


def _refused(status: int, code: str) -> dict[str, Any]:
    return {"status": status, "code": code, "detail": f"told: {code}"}


def problem(status: int, code: str, **headers: str) -> bytes:
    """A problem as the gateway says it."""
    fields = {"type": "about:blank", "title": code, "status": status, "detail": f"told: {code}", "code": code}
    return reply(json.dumps(fields).encode(), f"{status} Told", Content_Type="application/problem+json", **headers)


def _json(fields: dict[str, Any]) -> bytes:
    return reply(json.dumps(fields).encode())


_REPLIES = {
    FULL: problem(429, "queue_full", Retry_After="1"),
    BAD_GATEWAY: reply(b"<html>", "502 Bad Gateway"),
    UNAVAILABLE: reply(b"upstream connect error", "503 Service Unavailable"),
    LATE: reply(b"<html>", "504 Gateway Timeout"),
    FAILED: problem(500, "failed"),
    REFUSED: problem(422, "bad_topic"),
    REDIRECT: reply(b"", "307 Temporary Redirect", Location="http://127.0.0.1:1/v1/halves"),
    NONSENSE: reply(
        b'{"results": [{"status": 200, "transaction_id": "of another", "queue_id": 0, "queue_offset": 0}]}'
    ),
}


def ids(gateway: StubGateway, path: str, member: str) -> list[list[str]]:
    """Of each request to a path the transaction ids of its ``member``."""
    return [[one["transaction_id"] for one in received.json[member]] for received in gateway.requests(path)]
