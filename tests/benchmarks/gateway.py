"""How many half messages the gateway acknowledges: a real gateway, and a load generator in another process.

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

from gateway.process import Gateway

if TYPE_CHECKING:
    from collections.abc import Iterator

BODY_BYTES = 256
#: of a round
SECONDS = 10.0
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


@dataclass
class Load:
    """What the generator saw: half messages acknowledged, seconds of each request, and of all."""

    acknowledged: int = 0
    seconds: list[float] = field(default_factory=list)
    elapsed: float = 0.0


class _Connection(asyncio.Protocol):
    """One producer: sends a request, waits for the answer, sends the next."""

    def __init__(self, requests: Iterator[bytes], size: int, load: Load, until: float) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests = requests
        self._size = size
        self._load = load
        self._until = until
        self._got = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, end, body = self._got.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not end or length is None or len(body) < int(length.group(1)):
            return
        self._got = b""
        good = head.startswith(b"HTTP/1.1 200") and body.count(b'"queue_offset"') == self._size
        if not good:
            self.done.set_exception(RuntimeError(f"refused: {(head + body)[:300]!r}"))
            self._transport.close()
            return
        now = time.perf_counter()
        self._load.seconds.append(now - self._sent)
        self._load.acknowledged += self._size
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the gateway has closed the connection"))

    def _send(self) -> None:
        self._sent = time.perf_counter()
        if self._sent >= self._until:
            self.done.set_result(None)
            self._transport.close()
            return
        self._transport.write(next(self._requests))


def _requests(name: str, batch: int) -> Iterator[bytes]:
    """Requests of one connection: half messages of different ids and bodies."""
    body = base64.b64encode(os.urandom(BODY_BYTES)).decode()
    number = 0
    while True:
        messages = []
        for _ in range(batch):
            number += 1
            messages.append(
                f'{{"transaction_id":"{name}-{number}","producer_group":"bench","real_topic":"payments",'
                f'"tags":"created","keys":"{number}","properties":{{"region":"eu"}},"body":"{body}",'
                '"born_timestamp":1795227064579}'
            )
        content = messages[0] if batch == 1 else f'{{"messages":[{",".join(messages)}]}}'
        path = "/v1/half" if batch == 1 else "/v1/halves"
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        yield f"{head}Content-Length: {len(content)}\r\n\r\n{content}".encode()


async def _produce(port: int, connections: int, batch: int, seconds: float, name: str) -> Load:
    load = Load()
    began = time.perf_counter()
    loop = asyncio.get_running_loop()
    producers = []
    for number in range(connections):
        requests = _requests(f"{name}-{number}", batch)
        _, producer = await loop.create_connection(
            lambda requests=requests: _Connection(requests, batch, load, began + seconds),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
        producers.append(producer)
    await asyncio.gather(*(producer.done for producer in producers))
    load.elapsed = time.perf_counter() - began
    return load


def produce(port: int, connections: int, batch: int, seconds: float, name: str) -> Load:
    """The load of so many producers, for so long, run in this process."""
    import uvloop

    return uvloop.run(_produce(port, connections, batch, seconds, name))


def produce_beside(port: int, connections: int, batch: int, seconds: float, name: str) -> Load:
    """The same in a process of its own: what this process does meanwhile does not hold it up."""
    command = [sys.executable, "-m", "benchmarks.gateway", str(port), str(connections), str(batch), str(seconds), name]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    return Load(**json.loads(run.stdout))


def measure(root: str, connections: int, batch: int, rounds: int) -> Iterator[Load]:
    """The load of each round on one gateway, after one to warm up."""
    with Gateway(root, "gateway.remember=1m") as running:
        for number in range(rounds + 1):
            load = produce_beside(running.port, connections, batch, SECONDS, f"round-{number}")
            if number:
                yield load


if __name__ == "__main__":
    _port, _connections, _batch, _seconds, _name = sys.argv[1:]
    print(json.dumps(vars(produce(int(_port), int(_connections), int(_batch), float(_seconds), _name))))
