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
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
        self._parts: list[bytes] = []

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
            f'"queue_id":{queue_id.decode()},"half_offset":{offset.decode()}}}'
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


class _Stream:
    """A request whose body is an Arrow IPC stream. It is made once; later some columns get other values."""

    def __init__(self, path: str, columns: dict[str, Any], filled: Sequence[str]) -> None:
        """``filled``: columns to be filled in; their values so far are like nothing else in the stream."""
        table = pa.table(columns)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        content = sink.getvalue().to_pybytes()
        head = f"POST /v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
        self.whole = bytearray(f"{head}Content-Type: application/vnd.apache.arrow.stream\r\n\r\n".encode() + content)
        self._columns = {}
        for name in filled:
            values = table[name].chunk(0).buffers()[-1].to_pybytes()
            begin = self.whole.index(values)
            self._columns[name] = np.frombuffer(self.whole, np.uint8)[begin : begin + len(values)]

    def fill(self, name: str, values: Any) -> None:
        """Other values of a column: an array of as many bytes."""
        self._columns[name][:] = values.reshape(-1).view(np.uint8)


class _ArrowConnection(_Connection):
    """The same with Arrow IPC streams, as a producer that has its messages as columns."""

    def __init__(self, name: str, size: int, ends: bool, load: Load, until: float) -> None:
        super().__init__(name, size, ends, load, until)
        bodies = np.frombuffer(os.urandom(size * BODY_BYTES), np.uint8)
        places = np.arange(size + 1, dtype=np.int32)
        body = pa.Array.from_buffers(pa.binary(), size, [None, pa.py_buffer(places * BODY_BYTES), pa.py_buffer(bodies)])
        numbers = pa.array(range(size))
        topics = pa.array([f"topic_{number}" for number in range(TOPICS)])
        names = [f"{name}-{'?' * 12}-{row:04d}" for row in range(size)]
        self._ids = np.frombuffer("".join(names).encode(), np.uint8).reshape(size, -1).copy()
        self._digits = slice(len(name) + 1, len(name) + 13)
        unlike = np.frombuffer(os.urandom(8 * size), np.int64)
        group = {"producer_group": pa.repeat(GROUP, size)}
        self._halves = _Stream(
            "halves",
            group
            | {
                "transaction_id": names,
                "born_timestamp": pa.array(unlike).view(pa.timestamp("ms", "UTC")),
                "real_topic": topics.take(pc.bit_wise_and(numbers, TOPICS - 1)),
                "tags": pa.repeat("created", size),
                "keys": pc.cast(numbers, pa.string()),
                "properties": pa.MapArray.from_arrays(places, pa.repeat("region", size), pa.repeat("eu", size)),
                "body": body,
            },
            ("transaction_id", "born_timestamp"),
        )
        columns = {"transaction_id": names, "queue_id": unlike.astype(np.int32), "half_offset": unlike}
        self._ops = _Stream("ops", group | columns | {"state": pa.repeat("COMMIT", size)}, tuple(columns))

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)
        head, end, first = self._parts[0].partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        got = sum(map(len, self._parts))
        if not end or length is None or got < len(head) + len(end) + int(length.group(1)):
            return
        body, self._parts = first + b"".join(self._parts[1:]), []
        if not head.startswith(b"HTTP/1.1 200"):
            self._refused(f"{(head + body)[:300]!r}")
            return
        with pa.ipc.open_stream(body) as stream:
            self._answers = stream.read_all()
        refused = np.flatnonzero(np.asarray(self._answers["status"]) != 200)
        if len(refused):
            self._refused(f"{len(refused)} of {self._size}: {self._answers.slice(refused[0], 1).to_pylist()[0]}")
            return
        self._acknowledged(())

    def _send_halves(self) -> None:
        self._committing = False
        self._number += 1
        self._ids[:, self._digits] = np.frombuffer(b"%012d" % self._number, np.uint8)
        self._halves.fill("transaction_id", self._ids)
        self._halves.fill("born_timestamp", np.full(self._size, round(time.time() * 1000)))
        self._send_stream(self._halves)

    def _send_ops(self, places: Sequence[tuple[bytes, bytes]]) -> None:  # noqa: ARG002 - they are in the answers
        self._committing = True
        self._ops.fill("transaction_id", self._ids)
        self._ops.fill("queue_id", np.asarray(self._answers["queue_id"]))
        self._ops.fill("half_offset", np.asarray(self._answers["queue_offset"]))
        self._send_stream(self._ops)

    def _send_stream(self, stream: _Stream) -> None:
        self._sent = time.perf_counter()
        self._transport.write(memoryview(stream.whole))


async def _produce(port: int, connections: int, batch: int, seconds: float, name: str, ends: bool, arrow: bool) -> Load:
    load = Load()
    began = time.perf_counter()
    loop = asyncio.get_running_loop()
    kind = _ArrowConnection if arrow else _Connection
    producers = []
    for number in range(connections):
        _, producer = await loop.create_connection(
            lambda: kind(f"{name}-{number}", batch, ends, load, began + seconds),  # noqa: B023 - called at once
            "127.0.0.1",
            port,
        )
        producers.append(producer)
    await asyncio.gather(*(producer.done for producer in producers))
    load.elapsed = time.perf_counter() - began
    return load


def produce(
    port: int, connections: int, batch: int, seconds: float, name: str, ends: bool = False, arrow: bool = False
) -> Load:
    """The load of so many producers, for so long, run in this process.

    ``ends``: each commits its half messages. ``arrow``: as Arrow IPC streams, else as JSON.
    """
    import uvloop

    return uvloop.run(_produce(port, connections, batch, seconds, name, ends, arrow))


def produce_beside(
    port: int, connections: int, batch: int, seconds: float, name: str, ends: bool = False, arrow: bool = False
) -> Load:
    """The same in a process of its own: what this process does meanwhile does not hold it up."""
    words = [str(port), str(connections), str(batch), str(seconds), name, *["ends"] * ends, *["arrow"] * arrow]
    command = [sys.executable, "-m", "benchmarks.producers", *words]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    return Load(**json.loads(run.stdout))


if __name__ == "__main__":
    _port, _connections, _batch, _seconds, _name, *_how = sys.argv[1:]
    _numbers = int(_port), int(_connections), int(_batch), float(_seconds)
    produce(*_numbers, _name, ends="ends" in _how, arrow="arrow" in _how).hand_over()
