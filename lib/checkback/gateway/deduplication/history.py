"""Lookups of half messages that are not cached, in the tables, with data skipping. Blocking; for one thread."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from heapq import nlargest
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from checkback.errors import StorageError
from checkback.gateway.deduplication.recent_halves import FirstOps, entries_of, last_of, rows_by_queue
from checkback.gateway.deduplication.remembered_half import STATE_OF, RememberedHalf, name_of, short, whose
from checkback.messages.half import Half
from checkback.messages.limits import LONG_MAX
from checkback.storage import first_op, rejected_ops
from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.files.object_store import concurrently
from checkback.storage.horizon import HORIZON, floors_of
from checkback.storage.log.delta_errors import unreadable
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.log.log_tail import LogTail
from checkback.storage.log.snapshot_files import DataFile
from checkback.storage.log.torn_commits import recover_log
from checkback.storage.parquet.parquet_reader import read_rows, row_batches
from checkback.storage.queue_owners import QueueOwner, owners_of, versions_of
from checkback.storage.rejected_ops import RejectedOps
from checkback.storage.timestamps import EPOCH, ms_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from checkback.gateway.deduplication.remembered_half import RememberedColumns

_logger = logging.getLogger("checkback.gateway")
_T = TypeVar("_T")
Place = tuple[int, int]
_END = datetime.max.replace(tzinfo=timezone.utc)
_KEY = ("queue_id", "queue_offset")
_IDENTITY = ("producer_group", "transaction_id")
_ABOUT = (*_KEY, *_IDENTITY, "real_topic", "born_timestamp", "store_timestamp", "committed")
_WHOLE = tuple(dict.fromkeys((*Half._fields, "store_timestamp", "erased_at")))
_OP = (*_KEY, *first_op.COLUMNS)
_DECISION = (*_KEY, *_IDENTITY, "state", "reason", "check_times", "decided_at", "deliver_at")
#: the tables that a start reads
_TABLES = ("half", "op", "decisions", "check_requests")
#: Offsets that a queue must have left when a gateway starts: more than a process ever uses.
LEFT = 2**32
#: A file whose queue_id range is at most this wide is not read: all queues in the range are candidates.
_CLOSE = 1000
#: half messages of one name that a query looks at
_OF_ONE_NAME = 100


@dataclass(frozen=True)
class TransactionEnd:
    """How a transaction ended: ``state`` and, once `reconcile` has decided, when (ms), why, after how many checks.

    ``deliver_at``: of a COMMIT that has scheduled the message (ms). ``op_states``: of its own ops, if it is decided.
    """

    state: str
    reason: str | None = None
    check_times: int = 0
    decided_at: int | None = None
    deliver_at: int | None = None
    op_states: frozenset[str] = frozenset()


def reread(look: Callable[[], _T]) -> _T:
    """What ``look`` finds in the tables; if a file is gone meanwhile, as with `erase --now`, in those that replace it.

    Raises what ``look`` raises.
    """
    try:
        return look()
    except StorageError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        return look()


class DeduplicationHistory:
    """The gateway's lookups in the tables. Bodies are read only where needed, in batches."""

    def __init__(self, root: str, sync: bool = True) -> None:
        """``root``: the tables' folder. Tables that do not exist yet are empty.

        ``sync``: fsync what the answer to an op relies on.
        """
        self._root = root
        self._sync = sync
        self._logs: dict[str, DeltaLog] = {}
        self._last: dict[int, int] = {}
        #: of `decisions`, up to which `decided` has read it
        self._decided: LogTail | None = None
        #: set by another thread: the result of the running lookup is no longer needed
        self.closed = False

    def open(self) -> None:
        """Open the tables' logs, in an object store side by side: each takes some dozen requests."""

        def opened(table: str) -> None:
            log = self._log(table)
            if log is not None and table == "half":
                log.versions(())  # who owns which queue takes some more

        deque(concurrently(self._root, opened, _TABLES), maxlen=0)

    def next_offset(self, queue_id: int) -> int:
        """The first offset of the queue beyond all those in `half`, `decisions` and `check_requests`.

        `half` may have been restored from a backup: decisions at the lost offsets stand, and checks there belong to
        other transactions. Raises StorageError if fewer than LEFT remain.
        """
        last = -1
        for table in ("half", "decisions", "check_requests"):
            last = self._last_offset(table, queue_id, last)
        last = max(last, self._floor(queue_id) - 1)  # the last of all: retention may have removed rows meanwhile
        if last > LONG_MAX - LEFT:
            what = f"a half message of the queue {queue_id} has the offset {last}: too few can come after it"
            raise StorageError(what, f"{self._root}/half", "give the gateway other gateway.queues")
        return last + 1

    def others(self, own: Collection[int]) -> list[int]:
        """Other queues that a gateway has ever owned and that have half messages."""
        found: set[int] = set()
        for file in self._files("half"):
            least, most = file.spans.get("queue_id", (0, LONG_MAX))
            if most - least <= _CLOSE:
                found.update(range(least, most + 1))
            else:
                rows = read_rows(file.path, "half", _KEY[:1], pc.field("queue_id").is_valid())
                found.update(pc.unique(rows.column(0)).to_pylist())
        return self._of_gateways(found.difference(own))

    def last_offsets(self, queues: Collection[int]) -> dict[int, int]:
        """Those of the queues that a gateway has ever owned, each with its last offset in `half`; -1 = none.

        A queue's half messages land in the order of their offsets, except those of a journal that has lost the queue.
        Raises StorageError.
        """
        for queue_id in self._of_gateways(queues):
            last = self._last.get(queue_id, self._floor(queue_id) - 1)
            self._last[queue_id] = self._last_offset("half", queue_id, last)
        return {queue_id: self._last[queue_id] for queue_id in queues if queue_id in self._last}

    def _of_gateways(self, queues: Collection[int]) -> list[int]:
        owners = owners_of(versions_of(self._log("half"), queues)) if queues else {}
        return sorted(queue for queue, owner in owners.items() if owner is QueueOwner.GATEWAY)

    def last_stored(self, queues: Collection[int]) -> int | None:
        """When the last half message of these queues, by offset, landed (ms).

        None: they have none. Raises StorageError.
        """
        last = ((queue_id, self._last_offset("half", queue_id, -1)) for queue_id in queues)
        halves = self._first_at([place for place in last if place[1] >= 0])
        return max((half.stored for half in halves.values()), default=None)

    def _floor(self, queue_id: int) -> int:
        """Up to this offset, half messages may have been removed by retention."""
        log = self._log("half")
        return 0 if log is None else floors_of(log, [queue_id]).get(queue_id, 0)

    def _last_offset(self, table: str, queue_id: int, last: int) -> int:
        """The greatest offset of the queue in the table, or ``last`` if none is greater."""
        offsets = (min(last + 1, LONG_MAX), LONG_MAX)
        files = self._files(table, {"queue_id": (queue_id, queue_id), "queue_offset": offsets})
        for file in sorted(files, key=_greatest, reverse=True):
            if _greatest(file) <= last:
                break
            if file.spans.get("queue_id") == (queue_id, queue_id) and "queue_offset" in file.spans:
                found = file.spans["queue_offset"][1]
            else:
                rows = read_rows(file.path, table, _KEY, pc.field("queue_id") == queue_id)
                found = pc.max(rows.column("queue_offset")).as_py()
            last = max(last, -1 if found is None else found)
        return last

    def recent(self, queues: Collection[int], since: datetime, most: int) -> RememberedColumns:
        """The last ``most`` half messages stored since then, in the order of landing, with their first op."""
        wanted = (pc.field("store_timestamp") >= since) & pc.field("queue_id").isin(list(queues))
        within = {"queue_id": (min(queues), max(queues)), "store_timestamp": (since, _END)}
        files = self._files("half", within)
        files.sort(key=lambda file: file.spans.get("store_timestamp", (since, since))[1], reverse=True)
        newest: list[RememberedColumns] = []
        count = 0
        wanted_halves = wanted & pc.field("queue_offset").is_valid()
        for file, source in _opened(files):
            if count >= most:
                break
            older: list[RememberedColumns] = []
            for rows in _read_ahead(row_batches(file.path, "half", _WHOLE, wanted_halves, source)):
                older.append(entries_of(rows))
                count += len(rows)
                if count > 2 * most:
                    older, newest = [last_of([*older, *newest], most)], []
                    count = most
            newest = older + newest
        found = last_of(newest, most)
        if found.names:
            ops = FirstOps(found, self._rejected(found.offsets))
            for file, source in _opened(self._files("op", within)):
                for rows in _read_ahead(row_batches(file.path, "op", _OP, wanted, source)):
                    ops.add(rows)
            found = ops.ended()
        self._flush()
        return found

    def find(self, places: Collection[Place]) -> dict[Place, RememberedHalf]:
        """The half messages at these positions, with their state but no fingerprint. Raises StorageError."""
        found = self._first_at(places)
        ended = self.ended(found.values())
        self._flush()
        for place, end in ended.items():
            found[place] = replace(
                found[place],
                state=end.state,
                reason=end.reason,
                decided_at=end.decided_at,
                op_states=end.op_states,
            )
        return found

    def ended(self, halves: Collection[RememberedHalf]) -> dict[Place, TransactionEnd]:
        """How these ended, by `decisions`, else by the first op that fits and was not rejected. Raises StorageError."""
        by_place = {(half.queue_id, half.queue_offset): half for half in halves}
        ops = [row for rows in self._rows_at("op", _KEY, _OP, by_place) for row in rows.to_pylist()]
        ended: dict[Place, TransactionEnd] = {}
        cancelled: dict[Place, int] = {}
        for rows in self._rows_at("decisions", _KEY, _DECISION, by_place):
            for row in rows.to_pylist():
                place = (row["queue_id"], row["queue_offset"])
                if (
                    first_op.misfit(row["producer_group"], short(row["transaction_id"]), *whose(by_place[place]))
                    is None
                ):
                    decided_at = ms_of(row["decided_at"] or EPOCH)
                    if row["state"] == "CANCEL":  # after the COMMIT
                        cancelled[place] = decided_at
                        continue
                    deliver_at = None if row["deliver_at"] is None else ms_of(row["deliver_at"])
                    ended[place] = TransactionEnd(
                        row["state"], row["reason"], row["check_times"] or 0, decided_at, deliver_at
                    )
        for place in cancelled.keys() & ended:
            ended[place] = dataclasses.replace(ended[place], state="CANCEL", decided_at=cancelled[place])
        for op in ops:
            place, who = (op["queue_id"], op["queue_offset"]), (op["producer_group"], short(op["transaction_id"]))
            if place in ended and first_op.misfit(*who, *whose(by_place[place])) is None:
                ended[place] = dataclasses.replace(ended[place], op_states=ended[place].op_states | {op["state"]})
        # `rejected` cannot skip files: it is read only where an op has not decided yet.
        ops = [op for op in ops if (op["queue_id"], op["queue_offset"]) not in ended]
        rejected = self._rejected([op["queue_offset"] for op in ops]) if ops else RejectedOps(())
        states = _first_ops(ops, halves, rejected)
        states |= {place: half.state for place, half in by_place.items() if half.state is not None}
        return {place: TransactionEnd(state) for place, state in states.items()} | ended

    def _rejected(self, offsets: Sequence[int] | NDArray[np.int64]) -> RejectedOps:
        """The ops at these offsets that `reconcile` has rejected.

        None if that cannot be told: only what is answered to their repetition depends on it.
        """
        wanted = (pc.field("source") == "op") & pc.field("file").is_null()
        try:
            return RejectedOps(
                row
                for file, source in _opened(self._files("rejected"))
                for rows in row_batches(file.path, "rejected", rejected_ops.COLUMNS, wanted, source)
                for row in rejected_ops.about(rows, offsets)
            )
        except StorageError as error:
            _logger.warning("which ops were rejected is not known: %s", error)
            return RejectedOps(())

    def decided(self, least: Mapping[int, int]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.uint8]]]:
        """The decisions since the last call, at first those from the offset ``least`` of each of these queues on.

        In pieces: queue_id, offsets, and codes of their states (`remembered_half`); in a piece a CANCEL is the last.
        Raises StorageError; the next call starts over.
        """
        tail, self._decided = self._decided, None
        log = self._log("decisions")
        if log is None:
            return
        commits = None if tail is None else tail.read()
        if tail is None or tail.gone or tail.replaced:
            tail = LogTail(f"{self._root}/decisions", log.version())
            offsets = (min(least.values()), LONG_MAX)
            files = log.data_files({"queue_id": (min(least), max(least)), "queue_offset": offsets})
        else:
            files = _added(f"{self._root}/decisions", tail.read_on() if commits is None else commits)
        wanted = pc.field("queue_id").isin(list(least)) & pc.field("queue_offset").is_valid()
        wanted &= pc.field("state").isin(STATE_OF[1:])
        for file, source in _opened(files):
            for rows in row_batches(file.path, "decisions", (*_KEY, "state"), wanted, source):
                codes = pc.index_in(rows.column("state"), pa.array(STATE_OF[1:])).to_numpy() + 1
                order = np.argsort(codes, kind="stable")
                queue_ids, offsets = (rows.column(name).to_numpy()[order] for name in _KEY)
                states = codes[order].astype(np.uint8)
                for queue_id, at in rows_by_queue(queue_ids):
                    yield queue_id, offsets[at], states[at]
        self._decided = tail

    def delivered(self, half: RememberedHalf) -> int | None:
        """When the message, having been scheduled, was published (ms). Raises StorageError."""
        columns, place = (*_KEY, *_IDENTITY, "delivered_at"), (half.queue_id, half.queue_offset)
        times = [
            ms_of(row["delivered_at"] or EPOCH)
            for rows in self._rows_at("deliveries", _KEY, columns, [place])
            for row in rows.to_pylist()
            if (row["producer_group"], short(row["transaction_id"])) == whose(half)
        ]
        return min(times, default=None)

    def check_times(self, half: RememberedHalf) -> int:
        """How often the transaction was checked. Raises StorageError."""
        place, whose_ = (half.queue_id, half.queue_offset), whose(half)
        times = [
            row["check_times"] or 0
            for rows in self._rows_at("check_requests", _KEY, (*_KEY, *_IDENTITY, "check_times"), [place])
            for row in rows.to_pylist()
            if (row["producer_group"], short(row["transaction_id"])) == whose_
        ]
        return max(times, default=0)

    def named(
        self, producer_group: str, transaction_id: str, since: float = float("-inf")
    ) -> Iterator[list[RememberedHalf]]:
        """The half messages of a transaction, some hundred at most: those of a list landed after those of the next.

        Searches `half` from its end, no further than it is asked for, nor in files of which all landed before ``since``
        (ms). Raises StorageError.
        """
        wanted = (pc.field("transaction_id") == transaction_id) & (pc.field("producer_group") == producer_group)
        files = [file for file in self._files("half") if _last_landed(file) >= since]
        files.sort(key=_last_landed, reverse=True)
        older = chain(map(_last_landed, files[1:]), [float("-inf")])
        last: list[RememberedHalf] = []
        count = 0
        for (file, source), before in zip(_opened(files), older, strict=False):
            if self.closed or count >= _OF_ONE_NAME:
                break
            rows = read_rows(file.path, "half", _ABOUT, wanted & pc.field("queue_offset").is_valid(), source)
            last = nlargest(_OF_ONE_NAME, [*last, *map(_kept, rows.to_pylist())], key=_landing)
            if last and before < last[-1].stored:
                # One whose offset was seen before is rejected: another transaction is at that offset.
                taken = self._first_at({(half.queue_id, half.queue_offset) for half in last}).values()
                yield [half for half in taken if half.name == name_of(producer_group, transaction_id)]
                count += len(last)
                last = []

    def at(self, place: Place, producer_group: str, transaction_id: str) -> list[RememberedHalf]:
        """The half message at a position, if it is of this transaction. Raises StorageError."""
        name = name_of(producer_group, transaction_id)
        return [half for half in self._first_at([place]).values() if half.name == name]

    def horizon(self) -> int | None:
        """Half messages of transactions that ended before it may be gone (ms); None = of none. Raises StorageError."""
        log = self._log("half")
        return None if log is None else log.versions([HORIZON])[HORIZON]

    def _flush(self) -> None:
        """Fsync what was read, even if another process wrote it: answers to producers rely on it."""
        for log in self._logs.values():
            log.flush()

    def _first_at(self, places: Collection[Place]) -> dict[Place, RememberedHalf]:
        """The half messages at these positions; of several at one the first that landed."""
        first: dict[Place, dict[str, Any]] = {}
        for rows in self._rows_at("half", _KEY, _ABOUT, places):
            for row in rows.to_pylist():
                before = first.setdefault((row["queue_id"], row["queue_offset"]), row)
                if (row["store_timestamp"] or EPOCH) < (before["store_timestamp"] or EPOCH):
                    first[row["queue_id"], row["queue_offset"]] = row
        return {place: _kept(row) for place, row in first.items()}

    def _rows_at(
        self, table: str, key: Sequence[str], columns: Sequence[str], places: Collection[Place]
    ) -> Iterator[pa.Table]:
        """The rows of the table at these positions."""
        queue, offset = key
        by_queue: dict[int, list[int]] = {}
        for queue_id, queue_offset in places:
            by_queue.setdefault(queue_id, []).append(queue_offset)
        for queue_id, offsets in by_queue.items():
            files = self._files(table, {queue: (queue_id, queue_id), offset: (min(offsets), max(offsets))})
            wanted = (pc.field(queue) == queue_id) & pc.field(offset).isin(offsets)
            for file, source in _opened([file for file in files if _covers(file, offset, offsets)]):
                rows = read_rows(file.path, table, columns, wanted, source)
                if rows.num_rows:
                    yield rows

    def _files(self, table: str, within: Mapping[str, tuple[Any, Any]] | None = None) -> list[DataFile]:
        log = self._log(table)
        return [] if log is None else log.data_files(within)

    def _log(self, table: str) -> DeltaLog | None:
        """The table's log; None = it does not exist yet."""
        place = f"{self._root}/{table}"
        if table not in self._logs:
            if self._sync:
                recover_log(place)  # other processes write these tables: a power cut may have torn their logs, too
            if not DeltaLog.exists(place):
                return None
            log = DeltaLog(table, place, self._sync)
            if not log.readable():
                raise StorageError("its rows are not simply those of its Parquet files", place, "rewrite the table")
            self._logs[table] = log
        return self._logs[table]


def _added(place: str, commits: Iterable[Sequence[Mapping[str, Any]]]) -> list[DataFile]:
    """The files of new rows that these commits have added to the table in ``place``."""
    with reading(place, unreadable):
        return [
            DataFile(f"{place}/{unquote(add['path'])}", int(add["size"]), {})
            for commit in commits
            for action in commit
            if (add := action.get("add")) is not None and add.get("dataChange", True)
        ]


def _read_ahead(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same, each read while the caller has the one before: Arrow reads without Python's lock."""
    with ThreadPoolExecutor(1, "read-ahead") as thread:
        following = thread.submit(next, pieces, None)
        while (piece := following.result()) is not None:
            following = thread.submit(next, pieces, None)
            yield piece


def _opened(files: Sequence[DataFile]) -> Iterator[tuple[DataFile, Any]]:
    """The files with their sources, which raise StorageError if they cannot be read."""
    sources = table_files.sources([(file.path, file.size) for file in files])
    try:
        yield from zip(files, sources, strict=True)
    except OSError as error:
        raise StorageError(f"cannot be read: {error}", os.path.dirname(files[0].path)) from error


def _covers(file: DataFile, column: str, values: Collection[int]) -> bool:
    span = file.spans.get(column)
    return span is None or any(span[0] <= value <= span[1] for value in values)


def _greatest(file: DataFile) -> float:
    span = file.spans.get("queue_offset")
    return float("inf") if span is None else span[1]


def _last_landed(file: DataFile) -> float:
    """When the last half message of the file landed (ms)."""
    span = file.spans.get("store_timestamp")
    return float("inf") if span is None else ms_of(span[1])


def _kept(row: Mapping[str, Any]) -> RememberedHalf:
    """The cache entry of a row of `half`. Unexpected nulls: empty text, and times as in `event_columns.half_events`."""
    stored = row["store_timestamp"] or EPOCH
    return RememberedHalf(
        queue_id=row["queue_id"],
        queue_offset=row["queue_offset"],
        name=name_of(row["producer_group"] or "", row["transaction_id"] or ""),
        fingerprint=0,
        real_topic=row["real_topic"] or "",
        born_timestamp=ms_of(row["born_timestamp"] or stored),
        stored=ms_of(stored),
        state="COMMIT" if row["committed"] else None,
    )


def _landing(half: RememberedHalf) -> tuple[int, int]:
    return half.stored, half.queue_offset


def _first_ops(
    ops: Iterable[dict[str, Any]], halves: Iterable[RememberedHalf], rejected: RejectedOps
) -> dict[Place, str]:
    """The state of the first op that fits each half message and was not rejected."""
    by_place = {(half.queue_id, half.queue_offset): half for half in halves}
    first: dict[Place, tuple[Any, str]] = {}
    for op in ops:
        place = (op["queue_id"], op["queue_offset"])
        half = by_place.get(place)
        if half is None or op in rejected:
            continue
        op["transaction_id"] = short(op["transaction_id"])
        if first_op.is_own(op, *whose(half)):
            mine = (first_op.turn(op), op["state"])
            first[place] = min(first.get(place, mine), mine)
    return {place: state for place, (_, state) in first.items()}
