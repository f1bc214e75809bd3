"""Reads the tables without Spark: some hundred thousand offsets at a time, so that memory stays bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_reader import read_rows
from checkback.storage.schemas import arrow_schema
from checkback.what_if import batch_history, rows
from checkback.what_if.batch_history import BatchHistory
from checkback.what_if.origins import origins
from checkback.what_if.parts import Part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from checkback.storage.log.snapshot_files import DataFile
    from checkback.storage.tables import Tables
    from checkback.what_if.origins import Origins
    from checkback.what_if.parts import Question

#: offsets of a half queue that are read together, about
_TOGETHER = 131_072


class TableFiles:
    """The tables at the versions that were newest when it was made; the batches first."""

    def __init__(self, tables: Tables, segment_size: int) -> None:
        """Raises StorageError, SettingsError if no batch has recorded its rules."""
        self._size = max(1, _TOGETHER // segment_size) * segment_size
        self._tables = tables
        self._versions: dict[str, int] = {}
        self._origins: dict[str, Origins] = {}
        batches = self._read(self._listed("batches"), "batches", batch_history.COLUMNS)
        self.history = BatchHistory.of(batches, tables.location("batches"))
        self._files = {name: self._listed(name) for name in rows.COLUMNS}

    def parts(self, question: Question) -> Iterator[Part]:
        """All parts that have half messages to be replayed, by queue and offset."""
        since = max(question.since, question.history.begin)
        if not self._origins:
            first = int(self.history.timeline.first_turns(np.array([since]))[0])
            self._origins = {
                name: origins(name, self._tables.location(name), read, first, self._versions[name])
                for name, read in self.history.read.items()
                if name in self._versions
            }
        landed = pa.scalar(since * 1000, pa.int64()).cast(pa.timestamp("us", "UTC"))
        places = set[tuple[int, int]]()
        for file in self._files["half"]:
            wanted = (pc.field("queue_id") >= 0) & (pc.field("queue_offset") >= 0)
            if since > 0:
                wanted &= pc.field("store_timestamp") >= landed
            found = read_rows(file.path, "half", ["queue_id", "queue_offset"], wanted)
            queues, offsets = found.column("queue_id").to_numpy(), found.column("queue_offset").to_numpy()
            pairs = np.unique(np.stack([queues.astype(np.int64), offsets // self._size]), axis=1)
            places |= set(zip(*pairs.tolist(), strict=True))
        for queue_id, number in sorted(places):
            yield self._part(queue_id, number * self._size, question)

    def _part(self, queue_id: int, first: int, question: Question) -> Part:
        found = {}
        for name, columns in rows.COLUMNS.items():
            offset, last = columns[1], first + self._size - 1
            files = [
                file
                for file in self._files[name]
                if _may_hold(file, "queue_id", queue_id, queue_id) and _may_hold(file, offset, first, last)
            ]
            wanted = (pc.field("queue_id") == queue_id) & (pc.field(offset) >= first) & (pc.field(offset) <= last)
            found[name] = self._read(files, name, columns, wanted)
        return Part(queue_id, found, question)

    def _read(
        self, files: Sequence[DataFile], name: str, columns: Sequence[str], wanted: pc.Expression | None = None
    ) -> pa.Table:
        schema = pa.schema([arrow_schema(name).field(column) for column in columns])
        wanted = pc.scalar(True) if wanted is None else wanted
        origin, read = self._origins.get(name), []
        for file in files:
            found = read_rows(file.path, name, columns, wanted)
            if origin is not None:
                codes = origin.codes(file.path.rpartition("/")[2], found)
                found = found.append_column(rows.READ_BY, pa.array(codes, pa.int64()))
            read.append(found)
        if origin is not None:
            schema = schema.append(pa.field(rows.READ_BY, pa.int64()))
        return pa.concat_tables([schema.empty_table(), *read])

    def _listed(self, name: str) -> list[DataFile]:
        """The table's files; none if there is no such table: releases before have fewer."""
        place = self._tables.location(name)
        if not DeltaLog.exists(place):
            return []
        log = DeltaLog(name, place, self._tables.sync)
        files = log.data_files()
        self._versions[name] = log.seen_version
        return files


def readable(tables: Tables) -> bool:
    """Can the tables be read without Spark: no catalog, and nobody has altered them?"""
    if not tables.readable:
        return False
    names = [name for name in ("batches", *rows.COLUMNS) if DeltaLog.exists(tables.location(name))]
    return all(DeltaLog(name, tables.location(name), tables.sync).readable() for name in names)


def _may_hold(file: DataFile, name: str, least: int, most: int) -> bool:
    span: tuple[Any, Any] | None = file.spans.get(name)
    return span is None or (span[0] <= most and span[1] >= least)
