"""Tables with many small files, as the gateway and batches leave them, and their rows."""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from checkback.gateway.appender import Appender, half_rows
from checkback.maintain.maintenance import maintain
from checkback.messages.half import Half
from checkback.settings import Settings
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pathlib import Path

    from checkback.maintain.report import TableReport

DAY_MS = 24 * 3_600_000
QUEUES = (0, 1)


class Quiet:
    """Progress that nobody sees."""

    def begin(self, table: str, steps: int) -> None: ...

    def step(self) -> None: ...

    def end(self, done: TableReport) -> None: ...


def settings_of(root: Path | str, **maintain: object) -> Settings:
    """The tables in a folder; any two small files are worth it, and become files of 1 MB."""
    return Settings.model_validate(
        {"storage": {"root": str(root)}, "maintain": {"min_files": 2, "target_file_size": "1MiB", **maintain}}
    )


def maintained(settings: Settings, now: int | None = None, dry_run: bool = False) -> dict[str, TableReport]:
    """A run; what it did, by table."""
    done = maintain(settings, Tables.of(settings.storage), dry_run, Quiet(), now=now)
    return {one.table: one for one in done}


class Sender:
    """Half messages of two queues as the gateway commits them: one file a commit."""

    def __init__(self, root: Path | str, epoch: int = 1, seed: int = 1) -> None:
        self.appender = Appender(str(root), "half", QUEUES)
        self.appender.claim(epoch)
        self.sent = 0
        self._born = round(time.time() * 1000)  # not so long ago that messages expire
        self._next = dict.fromkeys(QUEUES, 0)
        self._random = Random(seed)

    def commit(self, most: int = 5) -> pa.Table:
        """A commit with rows of some queues, which it returns."""
        queues = self._random.sample(QUEUES, self._random.randint(1, len(QUEUES)))
        rows = pa.concat_tables([self.rows(queue, self._random.randint(1, most)) for queue in queues])
        self.appender.append(rows)
        return rows

    def rows(self, queue: int, count: int) -> pa.Table:
        """The next rows of a queue."""
        first = self._next[queue]
        self._next[queue] += count
        self.sent += count
        bodies = [self._random.randbytes(self._random.randrange(40)) for _ in range(count)]
        halves = [
            Half(-1, -1, f"t{queue}-{first + n}", "ga", "orders", 0, None, None, {"a": "b"}, body, self._born, None)
            for n, body in enumerate(bodies)
        ]
        return half_rows(halves, queue, first, self._born)


def append(root: Path | str, name: str, rows: pa.Table) -> None:
    """A commit of one file to any table."""
    DeltaLog.create(name, f"{root}/{name}")
    with FileWriter(str(root)) as writer:
        writer.write(name, rows)
        files = writer.close()
    DeltaLog(name, f"{root}/{name}").commit(files)


def rows_of(root: Path | str, name: str, version: int | None = None) -> list[dict[str, object]]:
    """All rows of a table, in no order that means anything."""
    table = DeltaTable(f"{root}/{name}", version=version)
    found: list[dict[str, object]] = []
    for uri in table.file_uris():
        found += pq.read_table(uri, partitioning=None).to_pylist()
    return sorted(found, key=repr)


def files_of(root: Path | str, name: str) -> set[str]:
    """Names of the files that the table consists of."""
    return DeltaLog(name, f"{root}/{name}").paths()
