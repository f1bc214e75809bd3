"""What a lake's age costs, under the default retention: a day beside a year of months at the same rate.

`reconcile` has a batch every two seconds. The year ends now: rows have the times of their month, and so do the files
(`os.utime`), so that `maintain`, which runs at the end of each month, removes what is older than the retention. The
transactions are fewer than those of a busy lake, and are written in some hundred commits a month; the logs of tables
that are written all the time are filled up with empty commits, as many as `maintain` leaves of them.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from benchmarks.answer_tables import TOPICS, AnswerTables
from benchmarks.report import report, rounded, say, scaled
from checkback.maintain.command import ProgressBar
from checkback.maintain.file_retention import most_commits
from checkback.maintain.maintenance import maintain
from checkback.settings import Settings
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables
from gateway.process import Gateway

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.answer_tables import Numbers
    from checkback.maintain.report import TableReport

ROUNDS = 5
MONTHS = 12
#: s
DAY, MONTH = 86_400, 30 * 86_400
#: batches of a month, those of a file as maintenance leaves it, and those that have transactions
BATCHES, FILE, BUSY = 1_296_000, 100_000, 300
#: transactions a month
TRANSACTIONS = 300_000
PENDING = 100
#: by table, seconds from one commit to the next: the journal's, the batches', and each topic's in turn
COMMITTED = {
    **dict.fromkeys(("half", "op"), 0.5),
    **dict.fromkeys(("decisions", "batches", "check_requests", "check_answers"), 2.0),
    **{f"topics/topic-{number}": 2.0 * TOPICS for number in range(TOPICS)},
}
COMMANDS = {
    "status": ("status",),
    "pending": ("tx", "list", "--state", "pending"),
    "describe": ("tx", "describe", "transaction-1"),
    "audit_since": ("audit", "--since", "1h ago"),
    "groups": ("group", "list"),
    "rebuild": ("rebuild", "--set", "spark.spark.master=local[2]"),
    "reconcile": ("reconcile", "--available-now", "--set", "spark.spark.master=local[2]"),
}
MEASURED = ("status", "pending", "describe", "audit_since", "groups", "reconcile")
#: a consumer from its start to its end, when it has heard all; prints its seconds and the peak of its memory in MB
_CONSUMER = r"""
import json, re, sys, time
from checkback.consumer import ConsumeResult, PushConsumer
root, group, messages = sys.argv[1], sys.argv[2], int(sys.argv[3])
began = time.perf_counter()
with PushConsumer(group, root, lambda message: ConsumeResult.SUCCESS, threads=2).subscribe("topic-0") as consumer:
    started = time.perf_counter() - began
    while consumer.consumed < messages:
        time.sleep(0.01)
peak = re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())  # ru_maxrss begins with the parent's
print(json.dumps([started, int(peak[1]) / 1024]))
"""


def bench(root: str) -> None:
    """Tables and `maintain` by month; commands, a gateway's and a consumer's start after a day and after a year."""
    day = AgedLake(f"{root}/day", DAY)
    day.pass_time(DAY)
    _figures(day, "day")
    lake = AgedLake(f"{root}/year", MONTHS * MONTH)
    for month in range(1, MONTHS + 1):
        lake.pass_time(MONTH)
        _table(lake, month)
    _figures(lake, "year")


def _table(lake: AgedLake, month: int) -> None:
    """A month's row: what there is, and what `maintain` took."""
    began = time.perf_counter()
    done = lake.maintain()
    seconds = time.perf_counter() - began
    topics = [each for each in done if each.table.startswith("topics/")]
    own = [each for each in done if each not in topics]
    details = {
        "megabytes": round(sum(each.bytes_after for each in own) / 1e6, 1),
        "topics_megabytes": round(sum(each.bytes_after for each in topics) / 1e6, 1),
        "files": sum(each.files_after for each in own),
        "topics_files": sum(each.files_after for each in topics),
        "rows_removed": sum(each.expired_rows or 0 for each in done),
        "rows": {name: lake.rows(name) for name in ("half", "decisions", "batches", "topics/topic-0")},
    }
    say(f"month {month}: maintain {seconds:.1f} s, {details}")
    report(f"aged_month_{month}_maintain", seconds, "s", 1, **details)


def _figures(lake: AgedLake, age: str) -> None:
    lake.fill_logs()
    lake.pend(PENDING)
    for name in ("rebuild", "reconcile"):  # makes the checkpoint
        say(f"{age}: {name} {_seconds(_command(lake.root, name)):.1f} s")
    for name in MEASURED:
        _figure(f"aged_{age}_{name}", lambda name=name: _seconds(_command(lake.root, name)))  # type: ignore[misc]
    _figure(f"aged_{age}_gateway", lambda: _gateway(lake.root))
    _consumer(lake.root, "end", -(-lake.published // TOPICS))
    runs = [_consumer(lake.root, "end", 0) for _ in range(ROUNDS)]
    seconds = [run[0] for run in runs]
    report(f"aged_{age}_consumer", statistics.median(seconds), "s", ROUNDS, peak_mb=max(round(run[1]) for run in runs))


def _figure(name: str, timed: Callable[[], float]) -> None:
    seconds = [timed() for _ in range(ROUNDS)]
    say(f"{name}: {statistics.median(seconds):.2f} s")
    report(name, statistics.median(seconds), "s", ROUNDS, seconds=rounded(seconds))


def _command(root: str, name: str) -> list[str]:
    return [sys.executable, "-m", "checkback", *COMMANDS[name], "--set", f"storage.root={root}"]


def _seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def _gateway(root: str) -> float:
    began = time.perf_counter()
    with Gateway(root, "gateway.queues=[9]"):
        return time.perf_counter() - began


def _consumer(root: str, group: str, messages: int) -> list[float]:
    command = [sys.executable, "-c", _CONSUMER, root, group, str(messages)]
    found: list[float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


class AgedLake(AnswerTables):
    """Tables below a folder that end now, and began ``age`` seconds ago. Time passes, in it, by `pass_time`."""

    def __init__(self, root: str, age: int) -> None:
        self.batches = scaled(BATCHES, least=2_000)
        each = MONTH * 1_000_000 // self.batches
        super().__init__(
            root, transactions=1 << 40, pending=0, begin=time.time_ns() // 1000 - age * 1_000_000, each=each
        )
        self.create()
        self.done = self.published = self.passed = 0
        self._counts: dict[int, int] = {}

    def pass_time(self, seconds: int) -> None:
        """A time's transactions and batches; the files are as old as its end."""
        count = self.batches * seconds // MONTH
        transactions = scaled(TRANSACTIONS, least=1_000) * seconds // MONTH
        busy = np.linspace(self.done, self.done + count - 1, max(2, BUSY * seconds // MONTH), dtype=np.int64)
        numbers = np.arange(self.published, self.published + transactions)
        for batch, part in zip(busy.tolist(), np.array_split(numbers, len(busy)), strict=True):
            self.decided(batch, part)
        self.published += transactions
        end, each = self.done + count, scaled(FILE, least=500)
        for first in range(self.done, end, each):
            self._put("batches", self._rows(np.arange(first, min(first + each, end))))
        self.done, self._counts = end, {}
        self.passed += seconds
        self._date()

    def conclude(self, batch: int, **counts: int) -> None:
        """The batch's row comes with the others."""
        self._counts[batch] = counts["committed"]

    def maintain(self) -> list[TableReport]:
        """A run at the end of what has passed."""
        settings = Settings.model_validate({"storage": {"root": self.root}})
        now = (self.begin + self.passed * 1_000_000) // 1000
        return maintain(settings, Tables.of(settings.storage), False, ProgressBar(), now=now)

    def rows(self, name: str) -> int:
        """How many a table has."""
        return sum(file.rows or 0 for file in DeltaLog(name, f"{self.root}/{name}", sync=False).data_files())

    def fill_logs(self) -> None:
        """Empty commits up to those that `maintain` leaves of what `reconcile` and a gateway make all the time."""
        kept = Settings.model_validate({"storage": {"root": self.root}}).maintain.log_retention.total_seconds()
        seconds = min(self.passed, round(kept))
        for name, every in COMMITTED.items():
            _fill(f"{self.root}/{name}", scaled(round(min(seconds / every, most_commits(name) or math.inf)), least=10))
        self._date()

    def pend(self, number: int) -> None:
        """Half messages that have just landed."""
        self.half(np.arange(self.published, self.published + number), time.time_ns() // 1000 - 1_000_000)

    def _date(self) -> None:
        at = self.begin / 1e6 + self.passed
        for folder, _, files in os.walk(self.root):
            for file in files:
                path = f"{folder}/{file}"
                if os.stat(path).st_mtime > at:
                    os.utime(path, (at, at))

    def _put(self, name: str, rows: pa.Table) -> None:
        with FileWriter(self.root, sync=False) as writer:
            writer.write(name, rows)
            files = writer.close()
        DeltaLog(name, f"{self.root}/{name}", sync=False).commit(files)

    def _rows(self, ids: Numbers) -> pa.Table:
        """Batches with these ids, as `reconcile` writes them."""
        count, schema = len(ids), arrow_schema("batches")
        none = dict.fromkeys(("rolled_back", "discarded", "scheduled", "delivered", "checks", "rejected"), 0)
        rules = {"timeout_ms": 6000, "check_interval_ms": 6000, "check_max": 15, "max_age_ms": 259_200_000}
        same = (
            none | rules | {"application": "query", "check_jitter_ms": 0, "count_undelivered": True, "unpublished": 0}
        )
        columns = {name: pa.repeat(pa.scalar(value, schema.field(name).type), count) for name, value in same.items()}
        # A topic's version is not known: it may have rows of the batch.
        tables = ["decisions", "op", *(f"topics/topic-{number}" for number in range(TOPICS))]
        versions = np.full((count, len(tables)), -1)
        versions[:, :2] = ids[:, None]
        columns["table_versions"] = pa.MapArray.from_arrays(
            pa.array(np.arange(0, count * len(tables) + 1, len(tables)).astype(np.int32)),
            pa.array(tables * count),
            pa.array(versions.ravel()),
            type=schema.field("table_versions").type,
        )
        times = self.begin + ids * self.each
        columns |= {
            "batch_id": pa.array(ids),
            "batch_time": pa.array(times),
            "finished_at": pa.array(times + 500_000),
            "committed": pa.array([self._counts.get(each, 0) for each in ids.tolist()]),
        }
        nothing = {kind.name: pa.nulls(count, kind.type) for kind in schema}
        return pa.table({name: columns.get(name, nothing[name]) for name in schema.names}).cast(schema)


def _fill(place: str, commits: int) -> None:
    """Add empty commits, and a checkpoint after them."""
    table = DeltaTable(place)
    table.create_checkpoint()
    before, log = table.version(), f"{place}/_delta_log"
    last = before + commits
    for version in range(before + 1, last + 1):
        with open(f"{log}/{version:020}.json", "x") as file:
            file.write(json.dumps({"commitInfo": {"timestamp": time.time_ns() // 1_000_000, "operation": "WRITE"}}))
    os.rename(f"{log}/{before:020}.checkpoint.parquet", f"{log}/{last:020}.checkpoint.parquet")
    pointer = json.loads(Path(log, "_last_checkpoint").read_text())
    Path(log, "_last_checkpoint").write_text(json.dumps({**pointer, "version": last}))
