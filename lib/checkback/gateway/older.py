"""Half messages that are in the tables and not in memory: found by the files' statistics. Blocks; for one thread."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from checkback.deltalog import DeltaLog
from checkback.errors import StorageError
from checkback.files import read_rows
from checkback.gateway.ledger import Kept, fingerprint, name_of
from checkback.messages import STATES, Half

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from checkback.deltalog import DataFile

Place = tuple[int, int]
_END = datetime.max.replace(tzinfo=timezone.utc)
_KEY = ("queue_id", "queue_offset")
_OP_KEY = ("queue_id", "half_offset")


@dataclass(frozen=True)
class Ended:
    """How a transaction ended: ``state`` and, once `reconcile` has decided, when (ms), why, after how many checks."""

    state: str
    reason: str | None = None
    check_times: int = 0
    decided_at: int | None = None


class Older:
    """The tables as the gateway looks things up in them."""

    def __init__(self, root: str, sync: bool = True) -> None:
        """``root``: the tables' folder. Those that are not there yet are empty.

        ``sync``: is what an op is answered by flushed to the disk?
        """
        self._root = root
        self._sync = sync
        self._logs: dict[str, DeltaLog] = {}
        #: set from another thread: nobody waits any more for what is being read
        self.closed = False

    def next_offset(self, queue_id: int) -> int:
        """The first offset of the queue that no row of `half` has. Raises StorageError."""
        last = -1
        files = self._files("half", {"queue_id": (queue_id, queue_id)})
        for file in sorted(files, key=lambda file: _greatest(file, "queue_offset"), reverse=True):
            if _greatest(file, "queue_offset") <= last:
                break
            if file.spans.get("queue_id") == (queue_id, queue_id) and "queue_offset" in file.spans:
                found = file.spans["queue_offset"][1]
            else:
                rows = read_rows(file.path, "half", _KEY, pc.field("queue_id") == queue_id)
                found = pc.max(rows.column("queue_offset")).as_py()
            last = max(last, -1 if found is None else found)
        return last + 1

    def recent(self, queues: Collection[int], since: datetime, most: int) -> list[Kept]:
        """The last ``most`` half messages stored since then, in the order of landing, with their first op."""
        wanted = (pc.field("store_timestamp") >= since) & pc.field("queue_id").isin(list(queues))
        within = {"queue_id": (min(queues), max(queues)), "store_timestamp": (since, _END)}
        files = self._files("half", within)
        files.sort(key=lambda file: file.spans.get("store_timestamp", (since, since))[1], reverse=True)
        parts: list[pa.Table] = []
        rows = 0
        for file in files:
            if rows >= most:
                break
            parts.append(read_rows(file.path, "half", None, wanted))
            rows += parts[-1].num_rows
        kept = sorted(
            (half for part in parts for half in _kept(part)), key=lambda half: (half.stored, half.queue_offset)
        )[-most:]
        if not kept:
            return []
        states = _first_ops([read_rows(file.path, "op", None, wanted) for file in self._files("op", within)])
        self._flush()
        return [replace(half, state=states.get((half.queue_id, half.queue_offset))) for half in kept]

    def find(self, places: Collection[Place]) -> dict[Place, Kept]:
        """The half messages at these places, each with how it ended. Raises StorageError."""
        found: dict[Place, Kept] = {}
        for rows in self._rows_at("half", _KEY, places):
            found |= {(half.queue_id, half.queue_offset): half for half in _kept(rows)}
        ended = self.ended(found)
        self._flush()
        return {
            place: replace(half, state=ended[place].state) if place in ended else half for place, half in found.items()
        }

    def ended(self, places: Collection[Place]) -> dict[Place, Ended]:
        """How transactions ended, by `decisions`, else by the first op. Raises StorageError."""
        ended = {place: Ended(state) for place, state in _first_ops(list(self._rows_at("op", _OP_KEY, places))).items()}
        for rows in self._rows_at("decisions", _KEY, places):
            for row in rows.to_pylist():
                ended[row["queue_id"], row["queue_offset"]] = Ended(
                    row["state"], row["reason"], row["check_times"] or 0, _ms(row["decided_at"])
                )
        return ended

    def check_times(self, place: Place) -> int:
        """How often the transaction was checked. Raises StorageError."""
        times = [
            row["check_times"] or 0
            for rows in self._rows_at("check_requests", _KEY, [place])
            for row in rows.to_pylist()
        ]
        return max(times, default=0)

    def named(self, producer_group: str, transaction_id: str) -> Kept | None:
        """The first half message of a transaction: all of `half` is read for it. Raises StorageError."""
        wanted = (pc.field("transaction_id") == transaction_id) & (pc.field("producer_group") == producer_group)
        found: list[Kept] = []
        for file in self._files("half"):
            if self.closed:
                break
            # Bodies are read only where there is one to be kept.
            if read_rows(file.path, "half", _KEY, wanted).num_rows:
                found += _kept(read_rows(file.path, "half", None, wanted))
        return min(found, key=lambda half: (half.stored, half.queue_offset), default=None)

    def _flush(self) -> None:
        """Flush what has been read, whoever has written it: producers are answered by it."""
        for log in self._logs.values():
            log.flush()

    def _rows_at(self, table: str, key: Sequence[str], places: Collection[Place]) -> Iterator[pa.Table]:
        """The rows of the table at these places."""
        queue, offset = key
        by_queue: dict[int, list[int]] = {}
        for queue_id, queue_offset in places:
            by_queue.setdefault(queue_id, []).append(queue_offset)
        for queue_id, offsets in by_queue.items():
            files = self._files(table, {queue: (queue_id, queue_id), offset: (min(offsets), max(offsets))})
            wanted = (pc.field(queue) == queue_id) & pc.field(offset).isin(offsets)
            for file in files:
                if _covers(file, offset, offsets):
                    rows = read_rows(file.path, table, None, wanted)
                    if rows.num_rows:
                        yield rows

    def _files(self, table: str, within: Mapping[str, tuple[Any, Any]] | None = None) -> list[DataFile]:
        place = f"{self._root}/{table}"
        if table not in self._logs:
            if not DeltaLog.exists(place):
                return []
            log = DeltaLog(table, place, self._sync)
            if not log.readable():
                raise StorageError("its rows are not simply those of its Parquet files", place, "rewrite the table")
            self._logs[table] = log
        return self._logs[table].data_files(within)


def _covers(file: DataFile, column: str, values: Collection[int]) -> bool:
    span = file.spans.get(column)
    return span is None or any(span[0] <= value <= span[1] for value in values)


def _greatest(file: DataFile, column: str) -> float:
    span = file.spans.get(column)
    return float("inf") if span is None else span[1]


def _kept(rows: pa.Table) -> Iterator[Kept]:
    for row in rows.to_pylist():
        half = Half(
            **{name: row[name] for name in Half._fields if name not in ("properties", "born_timestamp")},
            properties=dict(row["properties"] or ()),
            born_timestamp=_ms(row["born_timestamp"]),
        )
        yield Kept(
            queue_id=half.queue_id,
            queue_offset=half.queue_offset,
            name=name_of(half.producer_group, half.transaction_id),
            fingerprint=fingerprint(half),
            real_topic=half.real_topic,
            born_timestamp=half.born_timestamp,
            stored=_ms(row["store_timestamp"]),
        )


def _first_ops(tables: Sequence[pa.Table]) -> dict[Place, str]:
    """The state of each place's first op, as segment.py orders them."""
    rows: list[Mapping[str, Any]] = [row for table in tables for row in table.to_pylist() if row["state"] in STATES]
    rows.sort(key=lambda row: (row["store_timestamp"], row["born_timestamp"], row["state"] != "ROLLBACK"))
    first: dict[Place, str] = {}
    for row in rows:
        first.setdefault((row["queue_id"], row["half_offset"]), row["state"])
    return first


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)
