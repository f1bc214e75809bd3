"""Producers: the load of the gateway, in a process of its own.

The generator keeps a number of connections, each with one request under way, as that many producers would. It writes
and reads HTTP itself: a client library would need more of the two cores than the gateway.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.processes import GROUP

if TYPE_CHECKING:
    from collections.abc import Sequence

BODY_BYTES = 256
TOPICS = 4
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_PLACE = re.compile(rb'"queue_id":(\d+),"queue_offset":(\d+)')


@dataclass
class Load:
    """What the generator saw: half messages and ops acknowledged, seconds of each request, and of all.

    Of transactions through the SDK: ``at``: when each had ended (time.monotonic); ``offsets``: of its half message.
    """

    acknowledged: int = 0
    ended: int = 0
    seconds: list[float] = field(default_factory=list)
    elapsed: float = 0.0
    at: list[float] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def hand_over(self) -> None:
        """Write it to stdout, for the process that has started this one."""
        with open(1, "w", closefd=False) as whole:  # unbuffered, print may write a part only
            json.dump(vars(self), whole)


class _Connection(asyncio.Protocol):
    """One producer: sends half messages, waits for the answer, commits them if it ``ends`` them, sends the next."""

    def __init__(self, name: str, size: int, ends: bool, load: Load, until: float) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._name = name
        self._size = size
        self._ends = ends
        self._load = load
        self._until = until
        self._body = base64.b64encode(os.urandom(BODY_BYTES)).decode()
        self._number = 0
        self._got = b""
        self._sent = 0.0
        self._committing = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._send_halves()

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, end, body = self._got.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not end or length is None or len(body) < int(length.group(1)):
            return
        self._got = b""
        places = _PLACE.findall(body)
        if not head.startswith(b"HTTP/1.1 200") or len(places) != self._size:
            at = max(0, body.find(b'"code"') - 200)
            self._refused(f"{head[:20]!r} ... {body[at : at + 400]!r}")
            return
        self._acknowledged(places)

    def _acknowledged(self, places: Sequence[tuple[bytes, bytes]]) -> None:
        self._load.seconds.append(time.perf_counter() - self._sent)
        if self._committing:
            self._load.ended += self._size
        else:
            self._load.acknowledged += self._size
        if self._ends and not self._committing:
            self._send_ops(places)
        elif self._number and time.perf_counter() >= self._until:
            self.done.set_result(None)
            self._transport.close()
        else:
            self._send_halves()

    def _refused(self, why: str) -> None:
        self.done.set_exception(RuntimeError(f"refused: {why}"))
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the gateway has closed the connection"))

    def _send_halves(self) -> None:
        self._committing = False
        self._send("half", "halves", "messages", [self._half() for _ in range(self._size)])

    def _send_ops(self, places: Sequence[tuple[bytes, bytes]]) -> None:
        """Commit the half messages of the last request: they are answered in its order."""
        self._committing = True
        first = self._number - self._size + 1
        ops = [
            f'{{"transaction_id":"{self._name}-{first + index}","producer_group":"{GROUP}","state":"COMMIT",'
            f'"queue_id":{queue_id.decode()},"queue_offset":{offset.decode()}}}'
            for index, (queue_id, offset) in enumerate(places)
        ]
        self._send("op", "ops", "ops", ops)

    def _half(self) -> str:
        self._number += 1
        return (
            f'{{"transaction_id":"{self._name}-{self._number}","producer_group":"{GROUP}",'
            f'"real_topic":"topic_{self._number % TOPICS}","tags":"created","keys":"{self._number}",'
            f'"properties":{{"region":"eu"}},"body":"{self._body}","born_timestamp":{round(time.time() * 1000)}}}'
        )

    def _send(self, one: str, many: str, member: str, messages: list[str]) -> None:
        path, content = (one, messages[0]) if self._size == 1 else (many, f'{{"{member}":[{",".join(messages)}]}}')
        head = f"POST /v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._sent = time.perf_counter()
        self._transport.write(f"{head}Content-Length: {len(content)}\r\n\r\n{content}".encode())


async def _produce(port: int, connections: int, batch: int, seconds: float, name: str, ends: bool) -> Load:
    load = Load()
    began = time.perf_counter()
    loop = asyncio.get_running_loop()
    producers = []
    for number in range(connections):
        _, producer = await loop.create_connection(
            lambda: _Connection(f"{name}-{number}", batch, ends, load, began + seconds),  # noqa: B023 - called at once
            "127.0.0.1",
            port,
        )
        producers.append(producer)
    await asyncio.gather(*(producer.done for producer in producers))
    load.elapsed = time.perf_counter() - began
    return load


def produce(port: int, connections: int, batch: int, seconds: float, name: str, ends: bool = False) -> Load:
    """The load of so many producers, for so long, run in this process.

    ``ends``: each commits its half messages.
    """
    import uvloop

    return uvloop.run(_produce(port, connections, batch, seconds, name, ends))


def produce_beside(port: int, connections: int, batch: int, seconds: float, name: str, ends: bool = False) -> Load:
    """The same in a process of its own: what this process does meanwhile does not hold it up."""
    words = [str(port), str(connections), str(batch), str(seconds), name, *["ends"] * ends]
    command = [sys.executable, "-m", "benchmarks.producers", *words]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    return Load(**json.loads(run.stdout))


if __name__ == "__main__":
    _port, _connections, _batch, _seconds, _name, *_how = sys.argv[1:]
    _numbers = int(_port), int(_connections), int(_batch), float(_seconds)
    produce(*_numbers, _name, ends="ends" in _how).hand_over()
