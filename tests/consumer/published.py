"""Topic tables and `batches` as `reconcile` leaves them, written without Spark by the same writers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.reconcile.publish.batch_row import batch_row
from checkback.settings import Storage
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import TOPIC_PREFIX, arrow_schema
from checkback.storage.tables import Tables
from checkback.storage.timestamps import time_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

START = 1_700_000_000_000


def new_lake(root: Path) -> Published:
    """An empty one, as `reconcile` leaves it when it starts."""
    lake = Published(Tables.of(Storage(root=str(root), sync=False)))
    lake.log("batches")
    return lake


@dataclass
class Published:
    """A lake that batches are published to. ``application``: the query's id; a rebuild takes another."""

    tables: Tables
    application: str = "a"
    batch_id: int = -1
    time: int = START
    offset: int = 0
    _logs: dict[str, DeltaLog] = field(default_factory=dict)

    def messages(self, count: int, queues: Sequence[int] = (0,), **columns: Any) -> list[dict[str, Any]]:
        """New messages: consecutive offsets of half queue 0, queue ids in turn."""
        made = []
        for number in range(self.offset, self.offset + count):
            row = {
                "half_queue_id": 0,
                "half_queue_offset": number,
                "queue_id": queues[number % len(queues)],
                "transaction_id": f"tx-{number}",
                "producer_group": "orders",
                "tags": None,
                "keys": f"key-{number}",
                "properties": [("number", str(number))],
                "body": f"body-{number}".encode(),
            }
            made.append(row | columns)
        self.offset += count
        return made

    def publish(self, files: Mapping[str, Iterable[Sequence[dict[str, Any]]]], concluded: bool = True) -> int:
        """A batch; ``files``: by topic the rows of each of its files. Returns its id."""
        self.batch_id += 1
        self.time += 1000
        versions = {}
        for topic, parts in files.items():
            name = TOPIC_PREFIX + topic
            for part in parts:
                self.append(name, part)
            versions[name] = self.log(name).version()
        if concluded:
            self.conclude(versions)
        return self.batch_id

    def conclude(self, versions: Mapping[str, int]) -> None:
        """The row of the batch in `batches`."""
        row = batch_row(self.application, self.batch_id, self.time, self.time + 5, versions=versions)
        self.write("batches", row)

    def rebuild(self) -> None:
        """A new application, whose batch ids begin anew."""
        self.application += "'"
        self.batch_id = -1

    def append(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        """Rows of this batch, as one file."""
        stamp = {"published_at": time_of(self.time), "batch_id": self.batch_id}
        stamp |= {"born_timestamp": time_of(self.time - 100), "half_store_timestamp": time_of(self.time - 50)}
        self.write(name, pa.Table.from_pylist([row | stamp for row in rows], arrow_schema(name)))

    def write(self, name: str, rows: pa.Table) -> None:
        """Append rows as they are."""
        log = self.log(name)
        with FileWriter(self.tables.root, sync=False) as writer:
            writer.write(name, rows)
            log.commit(writer.close())

    def log(self, name: str) -> DeltaLog:
        """The table's log; created if it does not exist."""
        if name not in self._logs:
            place = self.tables.location(name)
            if not place.startswith("s3"):
                os.makedirs(place, exist_ok=True)
            DeltaLog.create(name, place, False)
            self._logs[name] = DeltaLog(name, place, False)
        return self._logs[name]

    def compact(self, name: str) -> None:
        """OPTIMIZE, and delete the old files as VACUUM does, as well as all old commits."""
        from deltalake import DeltaTable

        table = DeltaTable(self.tables.location(name))
        table.optimize.compact()
        table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        table.create_checkpoint()
        newest = table.version()
        log = f"{self.tables.location(name)}/_delta_log"
        for version in range(newest):
            if os.path.exists(f"{log}/{version:020}.json"):
                os.remove(f"{log}/{version:020}.json")
