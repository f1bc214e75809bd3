"""Load for the benchmarks: half messages and ops, as they land."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.processes import GROUP
from checkback.storage.files.object_store import is_registered
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Offsets = NDArray[np.int64]

#: half messages, or ops, of a commit, and of one of its files
COMMIT = 250_000
_FILE = 125_000
SEED = 7


@dataclass(frozen=True)
class Load:
    """Transactions of one half queue, landed by delta-rs. Bodies are random; ``pending_every``: 0 = each gets an op.

    Not for several threads at once.
    """

    root: str
    body_bytes: int = 256
    topics: int = 4
    pending_every: int = 0
    queue_id: int = 0
    prefix: str = "topic_"
    _logs: dict[str, DeltaLog] = field(default_factory=dict, repr=False)
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(SEED), repr=False)

    def land(self, first: int, n: int) -> int:
        """Append the half messages ``first`` .. ``first + n - 1``, then their COMMITs; how many of these."""
        self.land_half(first, n)
        offsets = np.arange(first, first + n)
        committed = offsets[offsets % self.pending_every != 0] if self.pending_every else offsets
        self.land_op(committed)
        return len(committed)

    def land_half(self, first: int, n: int, born: float | None = None) -> None:
        """Append half messages, in commits; ``born``: seconds since the epoch, None = now."""
        for begin in range(first, first + n, COMMIT):
            offsets = np.arange(begin, min(begin + COMMIT, first + n))
            self._append("half", (self._half(part, born) for part in _parts(offsets)))

    def land_scheduled(self, first: int, deliver_at: Offsets) -> None:
        """Append messages without a transaction, offset ``first`` and following; ``deliver_at``: ms since the epoch."""
        for begin in range(0, len(deliver_at), COMMIT):
            offsets = first + np.arange(begin, min(begin + COMMIT, len(deliver_at)))
            self._append("half", (self._half(part, None, deliver_at[part - first]) for part in _parts(offsets)))

    def land_op(self, offsets: Offsets) -> None:
        """Append a COMMIT for each offset, in commits."""
        for begin in range(0, len(offsets), COMMIT):
            self._append("op", map(self._op, _parts(offsets[begin : begin + COMMIT])))

    def _append(self, name: str, parts: Iterable[pa.Table]) -> None:
        if name not in self._logs:
            place, sync = f"{self.root}/{name}", not is_registered(self.root)
            DeltaLog.create(name, place, sync)
            self._logs[name] = DeltaLog(name, place, sync)
        files = []
        for part in parts:
            with FileWriter(self.root) as writer:
                writer.write(name, part)
                files += writer.close()
        self._logs[name].commit(files)

    def _half(self, offsets: Offsets, born: float | None, deliver_at: Offsets | None = None) -> pa.Table:
        n = len(offsets)
        now = _microseconds(None, n)
        names = pa.array([f"{self.prefix}{topic}" for topic in range(self.topics)])
        ends = pa.array(np.arange(n + 1, dtype=np.int32))
        columns = {
            "queue_id": pa.array(np.full(n, self.queue_id, np.int32)),
            "queue_offset": pa.array(offsets),
            "transaction_id": self._ids(offsets),
            "producer_group": pa.repeat(GROUP, n),
            "real_topic": names.take(pa.array(offsets % self.topics)),
            "real_queue_id": pa.array((offsets % 8).astype(np.int32)),
            "tags": pa.repeat("created", n),
            "keys": pc.cast(pa.array(offsets), pa.string()),
            "properties": pa.MapArray.from_arrays(ends, pa.repeat("region", n), pa.repeat("eu", n)),
            "body": self._bodies(n),
            "born_timestamp": now if born is None else _microseconds(born, n),
            "store_timestamp": now,
        }
        if deliver_at is not None:
            columns["deliver_at"] = pa.array(deliver_at * 1000, pa.timestamp("us", "UTC"))
            columns["committed"] = pa.repeat(True, n)
        schema = arrow_schema("half")
        return pa.table({one.name: columns.get(one.name, pa.nulls(n, one.type)) for one in schema}).cast(schema)

    def _op(self, offsets: Offsets) -> pa.Table:
        n = len(offsets)
        now = _microseconds(None, n)
        columns = {
            "queue_id": pa.array(np.full(n, self.queue_id, np.int32)),
            "queue_offset": pa.array(offsets),
            "transaction_id": self._ids(offsets),
            "producer_group": pa.repeat(GROUP, n),
            "state": pa.repeat("COMMIT", n),
            "source": pa.repeat("producer", n),
            "remark": pa.nulls(n, pa.string()),
            "born_timestamp": now,
            "store_timestamp": now,
        }
        return pa.table(columns).cast(arrow_schema("op"))

    def _ids(self, offsets: Offsets) -> pa.Array:
        return pa.array([f"FD{self.queue_id:04X}0000000000{offset:016X}" for offset in offsets.tolist()])

    def _bodies(self, n: int) -> pa.Array:
        ends = np.arange(n + 1, dtype=np.int32) * self.body_bytes
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(self._random.bytes(n * self.body_bytes))]
        return pa.Array.from_buffers(pa.binary(), n, buffers)


def _parts(offsets: Offsets) -> Iterable[Offsets]:
    return (offsets[begin : begin + _FILE] for begin in range(0, len(offsets), _FILE))


def _microseconds(at: float | None, n: int) -> pa.Array:
    us = round((time.time() if at is None else at) * 1_000_000)
    return pa.array(np.full(n, us), pa.timestamp("us", "UTC"))
