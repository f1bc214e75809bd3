"""The journal keeps what was appended, whole and in order, whatever becomes of its process, its disk or its files."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import time
from contextlib import contextmanager, suppress
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkback.errors import SettingsError, StorageError
from checkback.gateway.appender import OutcomeUnknownError
from checkback.gateway.journal import files
from checkback.gateway.journal.files import LARGE
from checkback.gateway.journal.journal import SCRUBBED_S, Journal
from checkback.gateway.journal.record import Kind, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_TABLES = ("half-id", "op-id")
_MOST = 1 << 20


def opened(folder: Path, tables: tuple[str, str] = _TABLES, most: int = _MOST) -> Journal:
    return Journal(str(folder), tables, most)


@contextmanager
def journal_in(folder: Path, most: int = _MOST) -> Iterator[Journal]:
    journal = opened(folder, most=most)
    try:
        yield journal
    finally:
        journal.close()


def crash(journal: Journal) -> None:
    """What kill -9 leaves: the files as they are, the lock released."""
    journal._writer.close()
    journal._reader.close()
    journal._segments.close()
    os.close(journal._lock)


def large(number: int) -> bytes:
    """A content that is kept in a file."""
    return b"%d " % number * (LARGE // 2)


def segments(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("journal-*.bin"))


def record(content: bytes, first: int = 0, kind: Kind = Kind.HALF) -> Record:
    if kind is Kind.OP:
        return Record(kind, 1, content, firsts={} if first < 0 else {0: first})
    return Record(kind, 1, content, queue_id=0, first=first)


def contents(journal: Journal) -> list[bytes]:
    return [bytes(found.content) for found in journal.read(1 << 40, 1 << 40)]


def test_what_was_appended_is_read_until_it_is_flushed(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        journal.append([record(b"a"), record(b"b", 1)], 0)
        journal.append([record(b"c", 5, Kind.OP), record(b"d", -1, Kind.OP)], 7)
        assert (contents(journal), journal.rows, journal.size) == ([b"a", b"b", b"c", b"d"], 4, 4)
        assert journal.unflushed_offsets() == {0: 0}
        assert [gone.at for gone in journal.flushed(2)] == [0, 0]
        assert (contents(journal), journal.rows, journal.size) == ([b"c", b"d"], 2, 2)
        assert (journal.unflushed_offsets(), journal.oldest.at if journal.oldest else None) == ({0: 5}, 7)
        assert [found.content for found in journal.read(0, 0)] == [b"c"]


def test_it_goes_on_after_a_crash_where_it_stopped(tmp_path: Path) -> None:
    """Positions are never given twice, also if everything is in the tables and deleted."""
    journal = opened(tmp_path)
    journal.append([record(b"a"), record(b"b")], 0)
    number = journal.id
    crash(journal)
    journal = opened(tmp_path)
    assert (journal.id, journal.position, contents(journal)) == (number, 2, [b"a", b"b"])
    journal.begin(half=2, op=0)
    journal.flushed(2)
    journal.close()
    journal = opened(tmp_path)
    journal.begin(half=2, op=0)
    journal.append([record(b"c")], 0)
    assert (journal.position, contents(journal)) == (3, [b"c"])
    journal.close()


def test_what_is_in_the_tables_is_deleted_by_and_by(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        for number in range(100):
            journal.append([record(b"x", number)], 0)
            journal.flushed(number + 1)
        left = journal._writer.execute("SELECT count(*) FROM record").fetchone()[0]
        assert left < 20


def test_a_torn_tail_loses_whole_groups_from_the_end_only(tmp_path: Path) -> None:
    """Cut at every byte, the write-ahead log yields the groups that were written before the cut."""
    journal = opened(tmp_path / "journal")
    groups = [[b"a" * 10], [b"b" * 3000, b"c"], [b"d" * 5000]]
    ends = []
    for group in groups:
        journal.append([record(content) for content in group], 0)
        ends.append(os.path.getsize(tmp_path / "journal/journal.db-wal"))
    wal = (tmp_path / "journal/journal.db-wal").read_bytes()
    database = (tmp_path / "journal/journal.db").read_bytes()
    crash(journal)
    # At every byte of the last group, and around the ends of the others.
    cuts = {*range(ends[1] - 2, len(wal) + 1, 1 if "CHECKBACK_ALL" in os.environ else 97), len(wal)}
    cuts |= {end + by for end in ends[:2] for by in (-1, 0, 1)}
    copy = tmp_path / "copy"
    for cut in sorted(cuts):
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        (copy / "journal.db").write_bytes(database)
        (copy / "journal.db-wal").write_bytes(wal[:cut])
        torn = opened(copy)
        whole = sum(end <= cut for end in ends)
        assert contents(torn) == [content for group in groups[:whole] for content in group], cut
        torn.append([record(b"next")], 0)
        assert contents(torn)[-1] == b"next"
        torn.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["append", "large", "flush", "crash", "close"]), max_size=25))
def test_nothing_is_lost_or_kept_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steps: list[str]) -> None:
    """Against a model: what was appended and not flushed, in order."""
    monkeypatch.setattr(files, "_MOST", 2 * LARGE)
    shutil.rmtree(tmp_path / "journal", ignore_errors=True)
    journal, left, in_tables, number = opened(tmp_path / "journal"), list[bytes](), 0, 0
    for step in steps:
        if step in ("append", "large"):
            number += 1
            content = large(number) if step == "large" else b"%d" % number
            journal.append([record(content, number)], 0)
            left.append(content)
        elif step == "flush":
            found = journal.read(1 << 40, 2)
            if found:
                in_tables = found[-1].position
                journal.flushed(in_tables)
                del left[: len(found)]
        else:
            if step == "crash":
                crash(journal)
            else:
                journal.close()
            journal = opened(tmp_path / "journal")
            journal.begin(in_tables, in_tables)
        assert contents(journal) == left
        assert (journal.rows, journal.size) == (len(left), sum(map(len, left)))
    journal.flushed(number)
    journal.close()
    assert segments(tmp_path / "journal") == []


def test_a_full_disk_adds_nothing_and_is_recovered_from(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        journal.append([record(b"a")], 0)
        pages = journal._writer.execute("PRAGMA page_count").fetchone()[0]
        journal._writer.execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(StorageError, match=r"full.*; make room on its disk"):
            journal.append([record(b"b"), record(b"x" * 50_000)], 0)
        assert (contents(journal), journal.position, journal.rows) == ([b"a"], 1, 1)
        journal._writer.execute(f"PRAGMA max_page_count = {pages + 1000}")
        journal.append([record(b"b")], 0)
        assert contents(journal) == [b"a", b"b"]


def test_it_says_when_it_is_full(tmp_path: Path) -> None:
    with journal_in(tmp_path, most=500) as journal:
        assert not journal.full(500)
        journal.append([record(b"a" * 6)], 0)
        assert (journal.full(94), journal.full(95)) == (False, True)
        journal.flushed(1)
        assert not journal.full(500)


def test_one_process_has_it_open(tmp_path: Path) -> None:
    with journal_in(tmp_path), pytest.raises(SettingsError, match="another gateway has this journal open; stop that"):
        opened(tmp_path)


def test_it_belongs_to_its_tables(tmp_path: Path) -> None:
    """Refused for others while it has messages; empty, it becomes another journal."""
    journal = opened(tmp_path)
    journal.append([record(b"a")], 0)
    number = journal.id
    crash(journal)
    with pytest.raises(SettingsError, match="messages for other tables"):
        opened(tmp_path, ("other", "op-id"))
    journal = opened(tmp_path)
    journal.flushed(1)
    journal.close()
    journal = opened(tmp_path, ("other", "op-id"))
    assert journal.id != number
    journal.close()


def killed(folder: Path, copy: Path) -> None:
    """A journal's files as kill -9 leaves them: a record that is in the database, and one that is in its WAL only."""
    journal = opened(folder)
    journal.append([record(b"a")], 0)
    journal._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    journal.append([record(b"b", 1)], 0)
    shutil.copytree(folder, copy)
    crash(journal)
    (copy / "journal.db-shm").unlink()


@pytest.mark.parametrize(
    ("gone", "told"),
    [
        (["journal.db-wal"], "the records up to 1, and had them up to 2"),
        (["journal.db"], "journal.db is not there, and journal.db-wal is"),
        (["journal.db-wal", "journal.lock"], "journal.lock is not there: journal.db may be a copy without"),
    ],
)
def test_files_without_the_others_are_refused_and_left_alone(tmp_path: Path, gone: list[str], told: str) -> None:
    """SQLite would delete a WAL without its database, and take a database without its WAL for whole."""
    killed(tmp_path / "journal", tmp_path / "copy")
    aside = tmp_path / "aside"
    aside.mkdir()
    for name in gone:
        (tmp_path / "copy" / name).rename(aside / name)
    for _ in range(2):
        with pytest.raises(StorageError, match=rf"the journal is not complete: .*{told}.*put them back together"):
            opened(tmp_path / "copy")
    for name in gone:
        (aside / name).rename(tmp_path / "copy" / name)
    journal = opened(tmp_path / "copy")
    assert contents(journal) == [b"a", b"b"]
    journal.flushed(2)
    journal.close()
    # Closed, the database is all there is of it.
    shutil.copytree(tmp_path / "copy", tmp_path / "closed")
    opened(tmp_path / "closed").close()


def test_a_disk_that_is_full_at_the_start_damages_nothing(tmp_path: Path) -> None:
    """Nobody is told to restore the journal, or to move it away."""
    killed(tmp_path / "journal", tmp_path / "copy")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(StorageError, match=r"cannot be used: .*; make room on its disk, .*do not move it away"):
            opened(tmp_path / "copy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with journal_in(tmp_path / "copy") as journal:
        assert contents(journal) == [b"a", b"b"]


def test_a_journal_that_was_moved_away_is_not_missed(tmp_path: Path) -> None:
    killed(tmp_path / "journal", tmp_path / "copy")
    for name in ("journal.db", "journal.db-wal"):
        (tmp_path / "copy" / name).unlink()
    with journal_in(tmp_path / "copy") as journal:
        assert contents(journal) == []


@pytest.mark.parametrize(
    ("statement", "told"),
    [("PRAGMA application_id = 7", "is no journal"), ("PRAGMA user_version = 99", "the journal's format is 99, not 1")],
)
def test_what_it_cannot_read_is_refused(tmp_path: Path, statement: str, told: str) -> None:
    opened(tmp_path).close()
    database = sqlite3.connect(tmp_path / "journal.db")
    database.execute(statement)
    database.close()
    with pytest.raises(StorageError, match=told):
        opened(tmp_path)


def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path) -> None:
    opened(tmp_path).close()
    (tmp_path / "journal.db").write_bytes(b"no database" * 1000)
    with pytest.raises(StorageError, match=r"cannot be read: .*; restore the file") as told:
        opened(tmp_path)
    assert "\n" not in str(told.value)
    # The lock is free again.
    (tmp_path / "journal.db").unlink()
    opened(tmp_path).close()


def test_damaged_bytes_are_one_line(tmp_path: Path) -> None:
    """Or they are not noticed. What SQLite reads then need not be what a column has: a null, a text for a number."""
    with journal_in(tmp_path / "journal") as journal:
        journal.append([record(b"a"), record(b"b")], 0)
    whole, random = (tmp_path / "journal/journal.db").read_bytes(), Random(1)
    used = [at for at, byte in enumerate(whole) if byte]
    shutil.copytree(tmp_path / "journal", copy := tmp_path / "copy")
    for _ in range(400):
        damaged = bytearray(whole)
        for at in random.sample(used, random.choice((1, 1, 2, 30))):
            damaged[at] = random.choice((0, 1, random.randrange(256)))
        (copy / "journal.db").write_bytes(damaged)
        with suppress(StorageError, SettingsError), journal_in(copy) as journal:
            assert journal.id


def test_value_of_another_type_is_one_line(tmp_path: Path) -> None:
    """One byte: the type of the column `queues`, before the id, the text of `tables` behind that."""
    with journal_in(tmp_path) as journal:
        journal._writer.execute("UPDATE journal SET id = ?, tables = 'a,b'", (1 << 61,))
    damaged = bytearray((tmp_path / "journal.db").read_bytes())
    at = damaged.rindex(b"a,b") - 9
    assert damaged[at] == 13, "an empty text"
    damaged[at] = 8  # the number 0
    (tmp_path / "journal.db").write_bytes(damaged)
    with pytest.raises(StorageError, match="the journal cannot be read: it has lost its id; restore the file"):
        opened(tmp_path)


def test_large_contents_are_in_files_until_they_are_in_the_tables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files, "_MOST", 3 * LARGE)
    with journal_in(tmp_path) as journal:
        every = [large(number) for number in range(6)]
        for number in range(0, 6, 2):
            journal.append([record(b"small"), record(every[number]), record(every[number + 1])], 0)
        assert contents(journal) == [b"small", *every[:2], b"small", *every[2:4], b"small", *every[4:]]
        assert journal._writer.execute("SELECT max(length(content)) FROM record").fetchone() == (5,)
        assert segments(tmp_path) == ["journal-1.bin", "journal-2.bin"]
        # Those of the first file are in the tables, but the rows that name them are deleted with the next append.
        journal.flushed(6)
        assert segments(tmp_path) == ["journal-1.bin", "journal-2.bin"]
        journal.append([record(b"next")], 0)
        assert segments(tmp_path) == ["journal-2.bin"]
        assert contents(journal) == [b"small", *every[4:], b"next"]
        journal.flushed(10)
    assert segments(tmp_path) == []


def test_large_contents_are_on_disk_before_their_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """File and name; a row without its content would have been acknowledged."""
    with journal_in(tmp_path) as journal:
        rows: list[int] = []
        count = "SELECT count(*) FROM record"
        for name in ("_flush", "flush_folder"):
            flush = getattr(files, name)

            def noted(what: object, flush: Callable[[object], None] = flush) -> None:
                flush(what)
                rows.append(journal._reader.execute(count).fetchone()[0])

            monkeypatch.setattr(files, name, noted)
        journal.append([record(large(1)), record(b"a"), record(large(2))], 0)
        assert rows == [0, 0]
        journal.append([record(large(3))], 0)
        assert rows == [0, 0, 3]


def test_what_the_database_does_not_name_is_not_there(tmp_path: Path) -> None:
    """However a crash has left the file: with a torn content at its end, or without the row of its contents."""
    journal = opened(tmp_path / "journal")
    journal.append([record(large(1))], 0)
    crash(journal)
    whole = (tmp_path / "journal/journal-1.bin").read_bytes()
    header = whole[: -len(large(1))]
    for more in (b"", b"torn", large(2)):
        (tmp_path / "journal/journal-1.bin").write_bytes(whole + more)
        for number, left in enumerate([b"", b"\0" * 9, b"\0" * 99, header[:7]], start=3):
            (tmp_path / f"journal/journal-{number}.bin").write_bytes(left)
        unnamed = header[:11] + b"\7" + header[12:]
        (tmp_path / "journal/journal-7.bin").write_bytes(unnamed)
        journal = opened(tmp_path / "journal")
        assert contents(journal) == [large(1)]
        assert segments(tmp_path / "journal") == ["journal-1.bin"]
        crash(journal)


def test_files_of_a_journal_that_was_moved_away_are_left_alone(tmp_path: Path) -> None:
    """It may be put back together."""
    journal = opened(tmp_path / "journal")
    journal.append([record(large(1))], 0)
    crash(journal)
    (tmp_path / "aside").mkdir()
    (tmp_path / "journal/journal.db").rename(tmp_path / "aside/journal.db")
    with journal_in(tmp_path / "journal") as journal:
        journal.append([record(large(2))], 0)
        assert segments(tmp_path / "journal") == ["journal-1.bin", "journal-2.bin"]
        journal.flushed(1)
    assert segments(tmp_path / "journal") == ["journal-1.bin"]
    (tmp_path / "aside/journal.db").replace(tmp_path / "journal/journal.db")
    with journal_in(tmp_path / "journal") as journal:
        assert contents(journal) == [large(1)]


@pytest.mark.parametrize("left", [None, b"", b"\0" * (2 * LARGE), b"short"])
def test_a_file_that_is_not_as_it_was_is_missed(tmp_path: Path, left: bytes | None) -> None:
    journal = opened(tmp_path)
    journal.append([record(large(1))], 0)
    crash(journal)
    file = tmp_path / "journal-1.bin"
    whole = file.read_bytes()
    file.unlink() if left is None else file.write_bytes(whole[:20] + left if left == b"short" else left)
    for _ in range(2):
        with pytest.raises(StorageError, match=r"journal-1.bin is not there, or not as it was; .* put them back"):
            opened(tmp_path)
    file.write_bytes(whole)
    with journal_in(tmp_path) as journal:
        assert contents(journal) == [large(1)]


def test_a_disk_that_is_full_for_a_large_content_adds_nothing(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        journal.append([record(large(1))], 0)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * LARGE, hard))
        try:
            with pytest.raises(StorageError, match=r"cannot be written: .*; make room on its disk"):
                journal.append([record(b"a"), record(large(2) * 2)], 0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (contents(journal), journal.position) == ([large(1)], 1)
        journal.append([record(large(3))], 0)
        assert contents(journal) == [large(1), large(3)]


def test_a_commit_that_fails_deletes_nothing(tmp_path: Path) -> None:
    """SQLite takes back the deletion of the rows with it: the files that they name must be there at the next start."""
    journal = opened(tmp_path)
    journal.append([record(large(1))], 0)
    journal.flushed(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(tmp_path / "journal.db-wal") + 100, hard))
    try:
        with pytest.raises(OutcomeUnknownError, match="I/O error"):
            journal.append([record(b"a")], 0)
        journal.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with journal_in(tmp_path) as journal:
        assert contents(journal) == [large(1)]
        journal.begin(1, 1)
        assert contents(journal) == []
    assert segments(tmp_path) == []


def test_what_a_full_disk_has_refused_leaves_no_file(tmp_path: Path) -> None:
    """Whichever of both had no room: the file, or the database."""
    with journal_in(tmp_path) as journal:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * LARGE, hard))
        try:
            with pytest.raises(StorageError):
                journal.append([record(large(1) * 2)], 0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert segments(tmp_path) == []
        pages = journal._writer.execute("PRAGMA page_count").fetchone()[0]
        journal._writer.execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(StorageError):
            journal.append([record(large(1)), record(b"x" * 50_000)], 0)
        assert segments(tmp_path) == []
        journal.append([record(large(2))], 0)
        assert contents(journal) == [large(2)]


def small_disk(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A disk that has room for a journal of some KiB as long as its contents and its log take less than one content."""

    def usage(_: str) -> SimpleNamespace:
        used = sum(path.stat().st_size for path in folder.iterdir() if path.suffix in (".bin", ".db-wal"))
        return SimpleNamespace(f_bavail=(64 << 20) + LARGE - used, f_frsize=1, f_files=0, f_favail=0, f_flag=0)

    monkeypatch.setattr(os, "statvfs", usage)


def test_what_is_in_the_tables_makes_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without it nothing would be appended, and no append would delete it. After a crash nothing is missed."""
    journal = opened(tmp_path)
    journal.append([record(large(1))], 0)
    journal.append([record(b"a")], 0)
    small_disk(monkeypatch, tmp_path)
    journal.flushed(1)
    journal.make_room(0.0)
    assert (contents(journal), journal.room()) == ([b"a"], True)
    journal.append([record(large(2)), record(b"b")], 0)
    journal.flushed(4)
    assert not journal.room()
    journal.make_room(0.0)
    assert (journal.room(), segments(tmp_path)) == (True, [])
    crash(journal)
    with journal_in(tmp_path) as journal:
        journal.begin(4, 4)
        journal.append([record(b"c")], 0)
        assert (journal.position, contents(journal)) == (5, [b"c"])


def test_without_flushes_contents_stay_in_the_database(tmp_path: Path) -> None:
    """A power cut might leave their rows without them."""
    journal = Journal(str(tmp_path), _TABLES, _MOST, sync=False)
    journal.append([record(large(1))], 0)
    assert (contents(journal), segments(tmp_path)) == ([large(1)], [])
    journal.close()


def test_what_is_in_the_tables_leaves_no_trace_after_a_while(tmp_path: Path) -> None:
    """Nor in free pages: it may be erased there."""
    with journal_in(tmp_path) as journal:
        later = time.monotonic() + 2 * SCRUBBED_S
        journal.append([record(b"secret" * 99), record(large(7))], 0)
        journal.append([record(b"waits")], 0)
        journal.flushed(2)
        assert (journal.due(0.0), journal.due(later)) == (False, True)
        journal.make_room(later)
        left = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert (b"secret" in left, large(7) in left, b"waits" in left) == (False, False, True)
        assert contents(journal) == [b"waits"]
        assert not journal.due(later)
        journal.append([record(b"secret" * 99)], 0)
        journal.flushed(4)
    assert b"secret" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
