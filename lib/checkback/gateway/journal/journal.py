"""The gateway's journal: what was acknowledged, flushed to disk, until it is in the tables (docs/gateway.md).

An SQLite database in WAL mode with synchronous=FULL: a transaction that has returned survives a power cut, and one that
was torn is not there after it (https://sqlite.org/wal.html). A record is what one group commit had for one table.
The content of a large one is in a file beside the database (`segments`).
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
import time
from collections import deque
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING

from checkback.errors import SettingsError, StorageError
from checkback.gateway.appender import OutcomeUnknownError
from checkback.gateway.journal.files import (
    LARGE,
    Identity,
    Segments,
    exclusive,
    exists,
    incomplete,
    note,
    noted,
    refuse_parts,
)
from checkback.gateway.journal.record import Kind, Record, Unflushed
from checkback.storage.files.fsync import flush_parents

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

#: application_id and user_version of the database: "cbJ1", and the version of its format
_APPLICATION, _FORMAT = 0x63624A31, 1
#: pages of the WAL after which it is copied into the database: 16 MiB
_WAL_PAGES = 4000
#: records that are in the tables which an append deletes: more than it adds, and few enough not to delay it
_DELETED = 16
#: free space that is left on the journal's disk, besides room for the journal's content in the tables
_SPARE = 64 << 20
#: files that it must be possible to make there: SQLite's, those of large contents, those of the tables
_FILES = 16
_BUSY_S = 10.0
#: longest time that the disk keeps records that are in the tables, as free pages, too: they may be erased there (s)
SCRUBBED_S = 600.0
#: the files that rows name: their numbers, where they end at least, the last row
_NAMED = "SELECT segment, max(place + size), max(position) FROM record WHERE segment > 0 GROUP BY segment"
#: bytes that a message or an op takes in memory until it is in the tables, besides its content: cached, and noted here
_ROW = 400


class Journal:
    """An open journal, exclusive to this process. ``append`` belongs to one thread, ``read``, ``make_room`` to another.

    ``id`` identifies the journal, from 1 on. Two tables at different places never share a journal.
    """

    def __init__(
        self,
        folder: str,
        tables: Sequence[str],
        most: int,
        sync: bool = True,
        in_tables: Callable[[int], tuple[int, int]] = lambda _: (0, 0),
    ) -> None:
        """Open the journal in this folder, or create it. Blocks.

        ``tables``: the Delta ids of the tables that its records belong to; ``most``: bytes above which `full`;
        ``sync``: flush each append to disk; ``in_tables``: the positions that the tables have of the journal of this
        id, as in `begin`.

        Raises SettingsError if another process has it open, if it belongs to other tables, or cannot be created;
        StorageError if it cannot be read.
        """
        self.path = os.path.join(folder, "journal.db")
        self._most = most
        self._pending: deque[Unflushed] = deque()
        self._size = self._rows = 0
        self._counting = threading.Lock()
        self._writing = threading.Lock()
        self._flushed = self._deleted = 0
        #: up to which position the file has no trace of the records left, and when it was looked at
        self._scrubbed = -1
        self._scrubbed_at = time.monotonic()
        self._sync = sync
        refuse_parts(folder, self.path)
        self._lock = exclusive(folder)
        with ExitStack() as undo:
            undo.callback(os.close, self._lock)
            if not exists(self.path):
                note(self._lock)  # a new journal: the one before was moved away
            try:
                self._writer = undo.enter_context(closing(_connect(self.path, sync)))
                self._reader = undo.enter_context(closing(_connect(self.path, sync)))
                self._prepare(",".join(tables))
                named = self._writer.execute(_NAMED)
                self._segments = Segments(folder, self.id, named, lambda: self._landed(*in_tables(self.id)))
                flush_parents(self.path)
                self._files = Identity(self.path)
            except (sqlite3.Error, OSError, ValueError, TypeError) as error:  # also of values that SQLite reads
                raise _damaged(self.path, error) from error
            undo.pop_all()

    def _prepare(self, tables: str) -> None:
        db = self._writer
        db.execute("BEGIN IMMEDIATE")
        application, version = _pragma(db, "application_id"), _pragma(db, "user_version")
        if (application, version) == (0, 0) and not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            db.execute(f"PRAGMA application_id = {_APPLICATION}")
            db.execute("CREATE TABLE journal (id INTEGER NOT NULL, tables TEXT NOT NULL, queues TEXT NOT NULL)")
            # segment, place, size: of a content that is in a file, else 0
            db.execute(
                "CREATE TABLE record (position INTEGER PRIMARY KEY, kind INTEGER NOT NULL, rows INTEGER NOT NULL,"
                " queue_id INTEGER NOT NULL, first INTEGER NOT NULL, content BLOB NOT NULL,"
                " segment INTEGER NOT NULL, place INTEGER NOT NULL, size INTEGER NOT NULL)"
            )
            db.execute("CREATE TABLE start (last INTEGER NOT NULL, next INTEGER NOT NULL)")
            db.execute(f"PRAGMA user_version = {_FORMAT}")
            db.execute("INSERT INTO journal VALUES (?, ?, '')", (1 + secrets.randbits(62), tables))
        elif application != _APPLICATION:
            raise StorageError("is no journal of a gateway", self.path, "name another gateway.journal")
        elif version != _FORMAT:
            fix = "start the release that wrote it"
            raise StorageError(f"the journal's format is {version}, not {_FORMAT}", self.path, fix)
        self.id, owner, self.queues = self._identity()
        if owner != tables:
            if db.execute("SELECT count(*) FROM record").fetchone()[0]:
                what = "the journal has messages for other tables than those in storage.root"
                raise SettingsError(
                    what, self.path, "start the gateway of those tables, or name another gateway.journal"
                )
            db.execute("UPDATE journal SET id = ?, tables = ?, queues = ''", (1 + secrets.randbits(62), tables))
            self.id, _, self.queues = self._identity()
        self.starts: tuple[int, int] = db.execute("SELECT last, next FROM start").fetchone() or (0, 0)
        db.execute("COMMIT")
        for position, kind, rows, size, queue_id, first in db.execute(
            "SELECT position, kind, rows, length(content) + size, queue_id, first FROM record ORDER BY position"
        ):
            self._count(Unflushed(position, Kind(kind), rows, size, queue_id, first, 0))
        self.position = self._pending[-1].position if self._pending else 0
        number, last = noted(self._lock)
        if number == self.id and last > self.position:
            raise incomplete(self.path, f"it has the records up to {self.position}, and had them up to {last}")
        if not self._sync:
            note(self._lock)

    def _identity(self) -> tuple[int, str, frozenset[int]]:
        row = self._writer.execute("SELECT id, tables, queues FROM journal").fetchone()
        # In a damaged file a value may be of any type, whatever its column's is.
        if row is None or [*map(type, row)] != [int, str, str] or not row[0]:
            raise sqlite3.DatabaseError("it has lost its id")
        number, tables, queues = row
        return number, tables, frozenset(map(int, filter(None, queues.split(","))))

    def own(self, queues: Collection[int]) -> None:
        """Note the queues that belong to this journal. Raises StorageError."""
        try:
            self._writer.execute("UPDATE journal SET queues = ?", (",".join(map(str, sorted(queues))),))
        except sqlite3.Error as error:
            raise _damaged(self.path, error) from error
        self.queues = frozenset(queues)

    def note_starts(self, last: int, following: int) -> None:
        """Note the last start with this journal, and the one that is to be its next. Raises StorageError."""
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            self._writer.execute("DELETE FROM start")
            self._writer.execute("INSERT INTO start VALUES (?, ?)", (last, following))
            self._writer.execute("COMMIT")
        except sqlite3.Error as error:
            raise _damaged(self.path, error) from error
        self.starts = last, following

    def begin(self, half: int, op: int) -> None:
        """The tables have the half messages up to the position ``half``, the ops up to ``op``."""
        self.position = max(self.position, half, op)
        self.flushed(self._landed(half, op))

    def _landed(self, half: int, op: int) -> int:
        """Up to which position all records are in their tables, which have them up to these."""
        landed = min(half, op)
        for record in self._pending:
            if record.position > (half if record.kind is Kind.HALF else op):
                break
            landed = max(landed, record.position)
        return landed

    def append(self, records: Sequence[Record], now: int) -> None:
        """Add the records and flush them to disk. ``now``: steady ms.

        Raises StorageError if nothing was added, also FencedError if nothing can be any more, OutcomeUnknownError if
        that is not known.
        """
        with self._writing:
            self._files.confirm()
            self._append(records, now)

    def _append(self, records: Sequence[Record], now: int) -> None:
        db, position = self._writer, self.position
        try:
            places = self._placed(records)
        except OSError as error:
            what = f"the journal cannot be written: {error.strerror or error}"
            raise StorageError(what, self.path, "make room on its disk") from error
        try:
            db.execute("BEGIN IMMEDIATE")
            for number, record in enumerate(records):
                position += 1
                segment, place = places.get(number, (0, 0))
                content, size = (b"", len(record.content)) if segment else (record.content, 0)
                db.execute(
                    "INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (position, record.kind, record.rows, record.queue_id, record.first, content, segment, place, size),
                )
            deleted = self._delete(_DELETED + 2 * len(records))
        except sqlite3.Error as error:
            self._undo(places)
            raise StorageError(f"the journal cannot be written: {error}", self.path, "make room on its disk") from error
        try:
            db.execute("COMMIT")
        except sqlite3.Error as error:
            # Only of a full disk it is known that SQLite has rolled back; a failed flush may be on disk or not.
            full = _full(error)
            if self._undo(places if full else {}) and full:
                raise StorageError("no space is left for the journal", self.path, "make room on its disk") from error
            what = f"whether the journal was written is not known: {error}"
            raise OutcomeUnknownError(what, self.path, "check the disk, then start again") from error
        with self._counting:
            for number, record in enumerate(records, start=self.position + 1):
                size, queue_id, first = len(record.content), record.queue_id, record.first
                self._count(
                    Unflushed(
                        number, record.kind, record.rows, size, queue_id, first, now, record.places, record.firsts
                    )
                )
        self.position = position
        self._gone(deleted)
        if self._sync:
            note(self._lock, self.id, position)

    def _placed(self, records: Sequence[Record]) -> dict[int, tuple[int, int]]:
        """The places of those whose content is in a file, by number. Unflushed, the rows might be there without them.

        Raises OSError.
        """
        large = [number for number, record in enumerate(records) if self._sync and len(record.content) >= LARGE]
        if not large:
            return {}
        contents = [records[number].content for number in large]
        return dict(zip(large, self._segments.write(contents, self.position + len(records)), strict=True))

    def _count(self, record: Unflushed) -> None:
        self._pending.append(record)
        self._size += record.size
        self._rows += record.rows

    def _undo(self, places: Mapping[int, tuple[int, int]]) -> bool:
        """Roll back what an error has left open; False if that fails. ``places``: which no row names then."""
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        except sqlite3.Error:
            return False
        if places:
            self._segments.undo()
        return True

    def _delete(self, most: int) -> int:
        """Delete so many of the records that are in the tables. Returns up to where all are, for `_gone`."""
        flushed = self._flushed
        if flushed == self._deleted:
            return flushed
        gone = self._writer.execute(
            "DELETE FROM record WHERE position IN"
            " (SELECT position FROM record WHERE position <= ? ORDER BY position LIMIT ?)",
            (flushed, most),
        )
        return flushed if gone.rowcount < most else self._deleted

    def _gone(self, deleted: int, current: bool = False) -> None:
        """Rows up to here are deleted for good: no row that comes back with a rollback names the files."""
        self._deleted = deleted
        self._segments.remove(deleted, current)

    def read(self, size: int, rows: int) -> list[Record]:
        """The oldest records that are not in the tables: up to these bytes and rows, one at least if there is one.

        Raises StorageError.
        """
        after, found = self._flushed, list[Record]()
        try:
            for position, kind, count, queue_id, first, content, *at in self._reader.execute(
                "SELECT position, kind, rows, queue_id, first, content, segment, place, size FROM record"
                " WHERE position > ? ORDER BY position",
                (after,),
            ):
                segment, _, outside = at
                size -= len(content) + outside
                rows -= count
                if found and (size < 0 or rows < 0):
                    break
                whole = self._segments.read(*at) if segment else content
                found.append(Record(Kind(kind), count, whole, queue_id, first, position))
        except (sqlite3.Error, OSError, ValueError, TypeError) as error:
            raise _damaged(self.path, error) from error
        return found

    def flushed(self, position: int) -> list[Unflushed]:
        """The records up to this position are in the tables: a later append deletes them. Returns what they were."""
        gone = []
        with self._counting:
            while self._pending and self._pending[0].position <= position:
                record = self._pending.popleft()
                self._size -= record.size
                self._rows -= record.rows
                gone.append(record)
        self._flushed = max(self._flushed, position)
        return gone

    @property
    def oldest(self) -> Unflushed | None:
        """The oldest record that is not in the tables."""
        with self._counting:
            return self._pending[0] if self._pending else None

    @property
    def rows(self) -> int:
        """Messages and ops that are not in the tables."""
        return self._rows

    @property
    def size(self) -> int:
        """Bytes of them."""
        return self._size

    def unflushed(self) -> list[Unflushed]:
        """What is not in the tables, oldest first."""
        with self._counting:
            return list(self._pending)

    def unflushed_offsets(self) -> dict[int, int]:
        """By queue, the first offset that is not in the tables, or whose op is not."""
        found: dict[int, int] = {}
        with self._counting:
            for record in self._pending:
                firsts = record.firsts if record.kind is Kind.OP else {record.queue_id: record.first}
                for queue_id, first in firsts.items():
                    found[queue_id] = min(first, found.get(queue_id, first))
        return found

    def full(self, more: int) -> bool:
        """Would this many bytes exceed the limit? Messages and ops count as the memory that they need until flushed."""
        return self._size + _ROW * self._rows + more > self._most

    @property
    def half_full(self) -> bool:
        """Is half of the limit exceeded?"""
        return self.full(self._most // 2)

    def room(self) -> bool:
        """Has the disk room for this journal and for what it has in the tables, too?"""
        return self.shortage() is None

    def shortage(self) -> str | None:
        """Why there is no `room`: it takes no messages then."""
        try:
            disk = os.statvfs(os.path.dirname(self.path))
        except OSError:
            return None
        if disk.f_flag & os.ST_RDONLY:
            return "its disk is mounted read-only"
        if disk.f_files and disk.f_favail < _FILES:  # without f_files it has no limit
            return f"on its disk {disk.f_favail} files can be made, {_FILES} are needed (inodes)"
        free, needed = disk.f_bavail * disk.f_frsize, _SPARE + self._size
        return None if free > needed else f"on its disk {free >> 20} MiB are free, {-(-needed >> 20)} MiB are needed"

    def due(self, now: float) -> bool:
        """Is there something for `make_room` to do? ``now``: monotonic s."""
        return self._stale(now) or not self.room()

    def _stale(self, now: float) -> bool:
        return self._flushed > self._scrubbed and now - self._scrubbed_at > SCRUBBED_S

    def make_room(self, now: float) -> None:
        """If there is none, delete what is in the tables now, and not with later appends: they may be refused.

        Now and then so that nothing of it is left in the file. ``now``: monotonic s.
        """
        stale = self._stale(now)
        if not stale and (self._flushed == self._deleted or self.room()):
            return
        with self._writing, suppress(sqlite3.Error):
            if self._flushed == self.position:
                note(self._lock)  # no record is left whose position the next start could find
            self._clear()
            if stale:
                self._scrubbed_at = now
                self._scrub()

    def _clear(self) -> None:
        self._gone(self._delete(1 << 62), current=True)
        self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _scrub(self) -> None:
        """Write the file anew, without free pages."""
        position = self._flushed
        self._writer.execute("VACUUM")
        self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._scrubbed = position

    def close(self) -> None:
        """Delete what is in the tables, and release the journal."""
        note(self._lock)
        with suppress(sqlite3.Error):
            self._clear()
            self._scrub()
        for db in (self._reader, self._writer):
            with suppress(sqlite3.Error):
                db.close()
        self._segments.close()
        os.close(self._lock)


def _connect(path: str, sync: bool) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
    db.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
    return db


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def _full(error: sqlite3.Error) -> bool:
    return "disk is full" in str(error)


def _damaged(path: str, error: Exception) -> StorageError:
    if isinstance(error, sqlite3.OperationalError):  # a full disk, no permission: its content is as it was
        fix = "make room on its disk, or see that it can be written; do not move it away"
        return StorageError(f"the journal cannot be used: {error}", path, fix)
    fix = "restore the file; moved away, what it has acknowledged and not yet committed to the tables is lost"
    return StorageError(f"the journal cannot be read: {error}", path, fix)
