"""A gateway on 127.0.0.1 that keeps to the contract in memory, and fails as it is told to."""

from __future__ import annotations

import json
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

from check.servers import Received, Server, Wire, reply

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What may happen to one request. DROPPED: it lands, and the reply is lost; BROKEN: it is lost; CUT: it lands, and the
#: reply ends in the middle.
OK, DROPPED, BROKEN, CUT = "ok", "dropped", "broken", "cut"
FULL, BAD_GATEWAY, FAILED, REFUSED, REDIRECT, NONSENSE = "full", "bad gateway", "failed", "refused", "redirect", "?"
FAULTS = (OK, DROPPED, BROKEN, CUT, FULL, BAD_GATEWAY, FAILED, REFUSED, REDIRECT, NONSENSE)


class StubGateway:
    """What landed, and what was said. Each request takes the next of ``halves`` or ``ops``; then all is well."""

    def __init__(self, halves: Iterable[str] = (), ops: Iterable[str] = (), full: Iterable[int] = ()) -> None:
        self._faults = {"/v1/half": list(halves), "/v1/op": list(ops)}
        self._faults |= {"/v1/message": self._faults["/v1/half"], "/v1/messages": self._faults["/v1/half"]}
        #: numbers of a batch's messages for which there is no room yet, one for each request
        self._full = list(full)
        self._lock = threading.Lock()
        self.halves: list[dict[str, Any]] = []
        self.ops: list[dict[str, Any]] = []
        self.server = Server(self._handle)

    def __enter__(self) -> StubGateway:
        self.server.__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        self.server.__exit__(*args)

    @property
    def url(self) -> str:
        return self.server.address

    def requests(self, path: str) -> list[Received]:
        return [received for received in self.server.received if received.path == path]

    def _handle(self, received: Received, wire: Wire) -> bool:
        with self._lock:
            faults = self._faults[received.path]
            fault = faults.pop(0) if faults else OK
            landing = {"/v1/op": self._op, "/v1/messages": self._messages}.get(received.path, self._half)
            said = landing(received.json) if fault in {OK, DROPPED, CUT} else b""
        if fault in {DROPPED, BROKEN}:
            # Reset, not closed: what a proxy does that restarts.
            wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        if fault == CUT:
            wire.send(said[: len(said) - 5])
            return False
        wire.send(said if fault == OK else _REPLIES[fault])
        return True

    def _half(self, fields: dict[str, Any]) -> bytes:
        for offset, half in enumerate(self.halves):
            if half["transaction_id"] == fields["transaction_id"]:
                same = {**half, "born_timestamp": 0} == {**fields, "born_timestamp": 0}
                return self._placed(fields, offset) if same else problem(409, "contradiction")
        self.halves.append(fields)
        return self._placed(fields, len(self.halves) - 1)

    def _messages(self, fields: dict[str, Any]) -> bytes:
        full = self._full.pop(0) if self._full else None
        results = []
        for number, message in enumerate(fields["messages"]):
            if number == full:
                results.append({"status": 503, "code": "queue_full"})
            elif message["tags"] == "refused":
                results.append({"status": 422, "code": "unfit", "detail": "tags: refused"})
            else:
                results.append({"status": 200, **json.loads(self._half(message).partition(b"\r\n\r\n")[2])})
        return _json({"results": results})

    def _placed(self, fields: dict[str, Any], offset: int) -> bytes:
        return _json({"transaction_id": fields["transaction_id"], "queue_id": 3, "queue_offset": offset})

    def _op(self, fields: dict[str, Any]) -> bytes:
        offset = fields["half_offset"]
        if fields["queue_id"] != 3 or offset >= len(self.halves):
            return problem(404, "unknown_offset")
        if self.halves[offset]["transaction_id"] != fields["transaction_id"]:
            return problem(422, "wrong_transaction_id")
        first = next((op for op in self.ops if op["half_offset"] == offset), None)
        if first is None:
            self.ops.append(fields)
        elif first["state"] != fields["state"]:
            return problem(409, "contradiction")
        answer = {key: fields[key] for key in ("transaction_id", "queue_id", "state")}
        return _json({**answer, "queue_offset": offset, "repeated": first is not None})


def problem(status: int, code: str, **headers: str) -> bytes:
    """A problem as the gateway says it."""
    fields = {"type": "about:blank", "title": code, "status": status, "detail": f"told: {code}", "code": code}
    return reply(json.dumps(fields).encode(), f"{status} Told", Content_Type="application/problem+json", **headers)


def _json(fields: dict[str, Any]) -> bytes:
    return reply(json.dumps(fields).encode())


_REPLIES = {
    FULL: problem(429, "queue_full", Retry_After="1"),
    BAD_GATEWAY: reply(b"<html>", "502 Bad Gateway"),
    FAILED: problem(500, "failed"),
    REFUSED: problem(422, "bad_topic"),
    REDIRECT: reply(b"", "307 Temporary Redirect", Location="http://127.0.0.1:1/v1/half"),
    NONSENSE: reply(b'{"transaction_id": "of another", "queue_id": 0, "queue_offset": 0}'),
}
