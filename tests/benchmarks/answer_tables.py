"""Tables as a long run of reconcile leaves them, written by Arrow and delta-rs: history, and a group that is silent."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkback.storage.files.table_files import LOG, commit_file
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.lru_cache import LruCache
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import SCHEMAS, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

READ_RANGES = arrow_schema("batches").field("read_ranges").type
#: transactions of a batch
BATCH = 50_000
TOPICS = 4
GROUPS = 8
#: half queues
QUEUES = 4
#: checks that a pending transaction has had, all in vain
CHECKS = 3
SILENT = "silent"
#: us: the first batch, and the time from one to the next
BEGIN, EACH = 1_780_000_000_000_000, 10_000_000
MINUTE = 60_000_000


@dataclass
class AnswerTables:
    """The tables below a folder. The last ``pending`` of the ``transactions`` are those of a silent group."""

    root: str
    transactions: int
    pending: int
    body: bytes = b"x" * 100
    #: us: the first batch, and the time from one to the next
    begin: int = BEGIN
    each: int = EACH
    topics: int = TOPICS
    _logs: LruCache[DeltaLog] = field(default_factory=lambda: LruCache(256, SCHEMAS.__contains__), repr=False)
    _read: dict[str, int] = field(default_factory=lambda: {"half": 0, "op": 0}, repr=False)

    def create(self) -> None:
        """The tables, empty."""
        for name in (*SCHEMAS, *(f"topics/topic-{number}" for number in range(min(TOPICS, self.topics)))):
            DeltaLog.create(name, f"{self.root}/{name}", sync=False)
        for number in range(TOPICS, self.topics):
            self._create_alike("topics/topic-0", f"topics/topic-{number}")

    def _create_alike(self, known: str, name: str) -> None:
        """A table in a folder, without rows, as `DeltaLog.create` makes it in ten times the time."""
        commit = Path(commit_file(f"{self.root}/{known}", 0)).read_text()
        text = commit.replace(self._log(known).table_id(), str(uuid.uuid4()))
        os.makedirs(f"{self.root}/{name}/{LOG}")
        Path(commit_file(f"{self.root}/{name}", 0)).write_text(text.replace(f"{known}/", f"{name}/"))

    def _log(self, name: str) -> DeltaLog:
        return self._logs.get(name, lambda: DeltaLog(name, f"{self.root}/{name}", sync=False))

    def make(self) -> int:
        """Write them; the time right after the last batch (us)."""
        self.create()
        decided = self.transactions - self.pending
        batches = [numbers for numbers in _parts(np.arange(decided)) if len(numbers)]
        for batch, numbers in enumerate(batches):
            self.decided(batch, numbers)
        batch = len(batches)
        for numbers in _parts(np.arange(decided, self.transactions)):
            self.half(numbers, self._time(batch) - 2 * MINUTE)
        for check in range(1, CHECKS + 1):
            self._checked(batch, np.arange(decided, self.transactions), check)
            batch += 1
        return self._time(batch)

    def decided(self, batch: int, numbers: Numbers) -> None:
        """Half messages, their COMMITs, decisions, and messages in four topics."""
        landed, time = self._time(batch) - 1_000_000, self._time(batch)
        self.half(numbers, landed)
        whose, ops = _names(numbers, _groups(numbers)), _key(numbers, "queue_offset")
        said = {"state": "COMMIT", "source": "producer"}
        self._write("op", numbers, {**ops, **whose, **said}, born_timestamp=landed, store_timestamp=landed)
        topics = {"real_topic": _text("topic-", numbers % self.topics)}
        done = {**_key(numbers), **whose, **topics, **said, "check_times": 0, "batch_id": batch}
        self._write("decisions", numbers, done, decided_at=time)
        for topic in range(self.topics):
            mine = numbers[numbers % self.topics == topic]
            rows = {
                **_key(mine, "half_queue_offset", "half_queue_id"),
                **_names(mine, _groups(mine)),
                "queue_id": 0,
                "body": self.body,
                "batch_id": batch,
            }
            self._write(
                f"topics/topic-{topic}",
                mine,
                rows,
                born_timestamp=landed,
                half_store_timestamp=landed,
                published_at=time,
            )
        self.conclude(batch, committed=len(numbers))

    def half(self, numbers: Numbers, landed: int) -> None:
        """Half messages that landed at a time (us)."""
        rows = {**_key(numbers), **_names(numbers, self._senders(numbers)), "body": self.body, "real_queue_id": 0}
        rows["real_topic"] = _text("topic-", numbers % self.topics)
        self._write("half", numbers, rows, born_timestamp=landed, store_timestamp=landed)

    def _checked(self, batch: int, numbers: Numbers, check: int) -> None:
        time = self._time(batch)
        asked = {**_key(numbers), **_names(numbers, self._senders(numbers)), "check_times": check, "batch_id": batch}
        asked["real_topic"] = _text("topic-", numbers % self.topics)
        self._write("check_requests", numbers, asked, requested_at=time, born_timestamp=time - 2 * MINUTE)
        told = {"outcome": "NO_ANSWER", "endpoint": "http://127.0.0.1:1/check", "error": "connection refused"}
        self._write(
            "check_answers", numbers, {**asked, **told, "latency_ms": 3, "delivered": False}, answered_at=time + 5000
        )
        self.conclude(batch, checks=len(numbers))

    def _senders(self, numbers: Numbers) -> pa.Array:
        silent = numbers >= self.transactions - self.pending
        return pc.if_else(pa.array(silent), SILENT, _groups(numbers))

    def conclude(self, batch: int, **counts: int) -> None:
        """The batch's row in `batches`."""
        rules = {"timeout_ms": 6000, "check_interval_ms": self.each // 1000, "check_max": 15, "max_age_ms": 259_200_000}
        none = dict.fromkeys(("committed", "rolled_back", "discarded", "scheduled", "checks", "rejected"), 0)
        more = {"application": "query", "batch_id": batch, "check_jitter_ms": 0, "count_undelivered": True}
        time, ranges = self._time(batch), []
        for name, version in self._read.items():
            self._read[name] = self._log(name).seen_version + 1
            ends = {"to_version": self._read[name], "to_index": -1}
            ranges.append((name, {"from_version": version, "from_index": -1, **ends}))
        row = {**rules, **none, **more, **counts, "read_ranges": pa.array([ranges], READ_RANGES)}
        self._write("batches", np.zeros(1, np.int64), row, batch_time=time, finished_at=time + 2_000_000)

    def _time(self, batch: int) -> int:
        return self.begin + batch * self.each

    def _write(self, name: str, numbers: Numbers, values: Mapping[str, object], **times: int) -> None:
        rows, columns = len(numbers), []
        for kind in arrow_schema(name):
            if kind.name in times:
                columns.append(pa.array(np.full(rows, times[kind.name])).cast(kind.type))
            elif isinstance(values.get(kind.name), (pa.Array, pa.ChunkedArray)):
                columns.append(values[kind.name])
            else:
                columns.append(pa.repeat(pa.scalar(values.get(kind.name), kind.type), rows))
        with FileWriter(self.root, sync=False) as writer:
            writer.write(name, pa.table(columns, schema=arrow_schema(name)))
            files = writer.close()
        self._log(name).commit(files)


def _parts(numbers: Numbers) -> list[Numbers]:
    return np.array_split(numbers, max(1, -(-len(numbers) // BATCH)))


def _text(prefix: str, numbers: Numbers) -> pa.Array:
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")


def _groups(numbers: Numbers) -> pa.Array:
    return _text("group-", numbers % GROUPS)


def _key(numbers: Numbers, offset: str = "queue_offset", queue: str = "queue_id") -> dict[str, object]:
    return {queue: pa.array(numbers % QUEUES).cast(pa.int32()), offset: pa.array(numbers // QUEUES)}


def _names(numbers: Numbers, groups: pa.Array) -> dict[str, object]:
    return {"transaction_id": _text("transaction-", numbers), "producer_group": groups}
