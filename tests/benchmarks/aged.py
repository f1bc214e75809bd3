"""What a lake's age costs: `batches` with a month of them after the other, at one every two seconds."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa

from benchmarks.report import report, rounded, say, scaled
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import SCHEMAS, arrow_schema

ROUNDS = 3
MONTHS = (1, 3, 12)
#: a month's, and those of a file, as maintenance leaves it
BATCHES, FILE = 1_300_000, 100_000
#: messages of each month's last batch
MESSAGES = 100
#: us: the first batch, and the time from one to the next
BEGIN, EACH = 1_780_000_000_000_000, 2_000_000
TOPIC = "topics/pay"
COMMANDS = {
    "status": ("status",),
    "pending": ("tx", "list", "--state", "pending"),
    "group": ("group", "list"),
}
#: a consumer from its start to its end, when it has heard all; prints its seconds and the peak of its memory in MB
_CONSUMER = """
import json, resource, sys, time
from checkback.consumer import ConsumeResult, PushConsumer
root, group, messages = sys.argv[1], sys.argv[2], int(sys.argv[3])
began = time.perf_counter()
with PushConsumer(group, root, lambda message: ConsumeResult.SUCCESS, threads=2).subscribe("pay") as consumer:
    started = time.perf_counter() - began
    while consumer.consumed < messages:
        time.sleep(0.01)
print(json.dumps([started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def bench(root: str) -> None:
    """A consumer that has consumed all, one that begins with the first message, and commands, after some months."""
    lake = AgedLake(root)
    for month in range(1, max(MONTHS) + 1):
        lake.add_month()
        if month in MONTHS:
            _figures(lake, month)


def _figures(lake: AgedLake, month: int) -> None:
    """``lake``: after so many months."""
    files = [entry.stat().st_size for entry in os.scandir(f"{lake.root}/batches") if entry.name.endswith(".parquet")]
    table = {"rows": lake.batches, "megabytes": round(sum(files) / 1e6), "files": len(files)}
    _consumer(lake, "end", lake.messages - lake.consumed)
    lake.consumed = lake.messages
    for name, group, messages in (("end", "end", 0), ("first", f"first-{month}", lake.messages)):
        runs = [_consumer(lake, f"{group}{'' if name == 'end' else each}", messages) for each in range(ROUNDS)]
        seconds, memory = statistics.median(run[0] for run in runs), max(run[1] for run in runs)
        say(f"{month} months, consumer at the {name}: starts in {seconds:.2f} s, {memory:.0f} MB")
        details = {"seconds": rounded([run[0] for run in runs]), "peak_mb": round(memory)}
        report(f"aged_{month}_consumer_{name}", seconds, "s", ROUNDS, **table, **details)
    for each in range(ROUNDS):  # which would lag behind
        shutil.rmtree(f"{lake.root}/consumer_groups/first-{month}{each}")
    for name, arguments in COMMANDS.items():
        times = [_command(lake.root, *arguments) for _ in range(ROUNDS)]
        say(f"{month} months, {name}: {statistics.median(times):.2f} s")
        report(f"aged_{month}_{name}", statistics.median(times), "s", ROUNDS, **table, seconds=rounded(times))


def _consumer(lake: AgedLake, group: str, messages: int) -> list[float]:
    command = [sys.executable, "-c", _CONSUMER, lake.root, group, str(messages)]
    found: list[float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def _command(root: str, *arguments: str) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-m", "checkback", *arguments, "--set", f"storage.root={root}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


class AgedLake:
    """Tables below a folder, of which only `batches` is large: rows as `reconcile` writes them, in compacted files."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.batches = self.messages = self.consumed = 0
        for name in (*SCHEMAS, TOPIC):
            DeltaLog.create(name, f"{root}/{name}", sync=False)

    def add_month(self) -> None:
        """Its batches; the last one publishes messages."""
        count, each = scaled(BATCHES, least=2_000), scaled(FILE, least=500)
        end = self.batches + count
        for first in range(self.batches, end, each):
            self._write("batches", _rows(np.arange(first, min(first + each, end)), end - 1))
        self.batches = end
        numbers = np.arange(self.messages, self.messages + MESSAGES)
        self.messages += MESSAGES
        times = np.full(MESSAGES, BEGIN + (end - 1) * EACH)
        columns = {
            "half_queue_id": pa.array(np.zeros(MESSAGES, np.int32)),
            "half_queue_offset": pa.array(numbers),
            "queue_id": pa.array(np.zeros(MESSAGES, np.int32)),
            "body": pa.array([b"x"] * MESSAGES),
            "batch_id": pa.array(np.full(MESSAGES, end - 1)),
            "published_at": _times(times),
            "born_timestamp": _times(times),
            "half_store_timestamp": _times(times),
        }
        self._write(TOPIC, _table(TOPIC, columns, MESSAGES))

    def _write(self, name: str, rows: pa.Table) -> None:
        with FileWriter(self.root, sync=False) as writer:
            writer.write(name, rows)
            files = writer.close()
        DeltaLog(name, f"{self.root}/{name}", sync=False).commit(files)


def _rows(ids: np.ndarray[tuple[int], np.dtype[np.int64]], publishes: int) -> pa.Table:
    """Batches with these ids, of which the one that ``publishes`` has messages."""
    count = len(ids)
    none = dict.fromkeys(("rolled_back", "discarded", "scheduled", "delivered", "checks", "rejected"), 0)
    rules = {"timeout_ms": 6000, "check_interval_ms": 6000, "check_max": 15, "max_age_ms": 259_200_000}
    same = none | rules | {"application": "query", "check_jitter_ms": 0, "count_undelivered": True, "unpublished": 0}
    schema = arrow_schema("batches")
    columns = {name: pa.repeat(pa.scalar(value, schema.field(name).type), count) for name, value in same.items()}
    # The topic's version is not known: it has fewer than the others.
    known = np.where(np.arange(3 * count) % 3 == 2, -1, np.repeat(ids, 3))
    offsets, names = (
        pa.array(np.arange(0, 3 * count + 1, 3).astype(np.int32)),
        pa.array(["decisions", "op", TOPIC] * count),
    )
    versions = pa.MapArray.from_arrays(offsets, names, pa.array(known), type=schema.field("table_versions").type)
    times = BEGIN + ids * EACH
    columns |= {
        "batch_id": pa.array(ids),
        "batch_time": _times(times),
        "finished_at": _times(times + 500_000),
        "committed": pa.array(np.where(ids == publishes, MESSAGES, 0)),
        "table_versions": versions,
    }
    return _table("batches", columns, count)


def _table(name: str, columns: dict[str, pa.Array], count: int) -> pa.Table:
    schema = arrow_schema(name)
    arrays = [
        columns[kind.name].cast(kind.type) if kind.name in columns else pa.nulls(count, kind.type) for kind in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _times(us: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    return pa.array(us).cast(pa.timestamp("us", "UTC"))
