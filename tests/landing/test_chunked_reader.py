"""Whatever is in a file: its lines, each once, in bounded memory; and its fault, if it has one."""

from __future__ import annotations

import bz2
import errno
import fcntl
import gzip
import os
import signal
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkback.landing import chunked_reader, opening
from checkback.landing.chunked_reader import OPEN_COST, File, FileChunk, fault_of, reader, shared
from checkback.landing.opening import _real_path, opened
from checkback.messages.limits import LINE_MAX

MIB = 1 << 20
texts = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\x00", b"\xff", b"long" * 5]), max_size=60).map(b"".join)


def file_of(path: Path, data: bytes, time: int = 0) -> File:
    path.write_bytes(data)
    return File(f"file:{path}", time, len(data))


def read(lists: list[list[FileChunk]], inside: str | None = None) -> list[dict[str, Any]]:
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(lists)))})
    rows = [row for batch in reader(lists, 7, inside)(iter([numbers])) for row in batch.to_pylist()]
    assert all(row["store_timestamp"].microsecond == 7 for row in rows)
    return rows


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(data)
    return bytes(sink.getvalue())


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstd,
    ".deflate": zlib.compress,
}


#: two megabytes that no packer makes much smaller
LINES = [os.urandom(500).hex().encode() for _ in range(2_000)]


@cache
def packed_lines(end: str) -> bytes:
    return PACKERS[end](b"\n".join([*LINES, b""]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=texts,
    block=st.integers(1, 40),
    chunk=st.integers(1, 9),
    longest=st.integers(1, 12),
    end=st.sampled_from(["", *PACKERS]),
)
def test_each_line_comes_once_however_the_file_is_cut(
    data: bytes, block: int, chunk: int, longest: int, end: str, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chunked_reader, "CHUNK", min(chunk, longest))
        patched.setattr(chunked_reader, "LINE_MAX", longest)
        patched.setattr(chunked_reader, "OPEN_COST", 1)
        file = file_of(tmp_path / f"a{end}", PACKERS[end](data) if end else data)
        rows = read(shared([file], 3, block, lambda _: None))
    lines = data.split(b"\n")
    expected = [line[: longest + 1] for line in lines if line]
    assert [row["line"] for row in sorted(rows, key=lambda row: row["file_block"])] == expected
    assert {row["fault"] for row in rows} <= {None}
    assert not end or {row["file_block"] for row in rows} <= {0}


@given(
    sizes=st.lists(st.integers(0, 40 * MIB), max_size=30), tasks=st.integers(1, 8), largest=st.integers(MIB, 128 * MIB)
)
def test_pieces_cover_each_file_once_and_lists_are_of_one_size(sizes: list[int], tasks: int, largest: int) -> None:
    files = [File(f"file:/{number}{'.gz' if number % 3 == 0 else ''}", 0, size) for number, size in enumerate(sizes)]
    lists = shared(files, tasks, largest, lambda _: None)
    assert all(lists)
    for file in files:
        own = [piece for pieces in lists for piece in pieces if piece.uri == file.uri]
        assert [piece.start for piece in own] == [0, *(piece.end for piece in own[:-1])]
        assert own[-1].end == file.size
        assert len(own) == 1 or not file.uri.endswith(".gz")
    for few in lists:
        packed = [piece for piece in few if piece.uri.endswith(".gz")]
        assert sum(piece.end - piece.start + OPEN_COST for piece in few if piece not in packed) <= largest + OPEN_COST


@pytest.mark.parametrize("left", [0, 7, 8, 20, 79])
@pytest.mark.parametrize("block", [1, 30, 1000])
def test_file_cut_short_since_it_was_listed_is_a_fault_after_its_lines(
    left: int, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked_reader, "OPEN_COST", 1)
    data = b"".join(b"line %02d\n" % number for number in range(10))
    file = file_of(tmp_path / "a", data)
    os.truncate(tmp_path / "a", left)
    rows = read(shared([file], 1, block, lambda _: None))
    lines = [row["line"] for row in sorted(rows, key=lambda row: row["file_block"]) if row["line"] is not None]
    assert lines == [line for line in data[:left].split(b"\n") if line]
    faults = {row["fault"] for row in rows if row["fault"] is not None}
    assert len(faults) == 1
    assert "it is shorter than when it was listed" in faults.pop()


@pytest.mark.parametrize("end", PACKERS)
@pytest.mark.parametrize("damage", ["cut short", "changed"])
def test_damaged_archive_is_a_fault_after_its_lines(end: str, damage: str, tmp_path: Path) -> None:
    packed = bytearray(packed_lines(end))
    if damage == "cut short":
        del packed[-len(packed) // 3 :]
    else:
        middle = len(packed) // 2
        packed[middle : middle + 1000] = bytes(1000)
    file = file_of(tmp_path / f"a{end}", bytes(packed))
    *good, last = read(shared([file], 1, MIB, fault_of))
    assert last["line"] is None
    assert last["fault"].startswith("file: its compressed data ")
    assert last["fault"].endswith("; its lines before that are taken, the whole file must come under another name")
    whole = [row["line"] for row in good]
    # What a damaged block unpacks to may be noise, up to where the damage is noticed.
    assert whole[:500] == LINES[: min(500, len(whole))]
    assert all(row["fault"] is None for row in good)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(texts, min_size=1, max_size=5),
    padding=st.sampled_from([0, 1, 600, 20_000]),
    end=st.sampled_from(sorted(PACKERS)),
)
def test_streams_one_after_another_are_all_read(parts: list[bytes], padding: int, end: str, tmp_path: Path) -> None:
    """As `cat a.bz2 b.bz2` gives them, and packers that use many threads; to gzip zeros fill a block up."""
    packed = bytes(padding if end == ".gz" else 0).join([*map(PACKERS[end], parts), b""])
    rows = read(shared([file_of(tmp_path / f"a{end}", packed)], 1, MIB, fault_of))
    assert [row["line"] for row in rows] == [line for line in b"".join(parts).split(b"\n") if line]
    assert {row["fault"] for row in rows} <= {None}


@pytest.mark.parametrize("end", PACKERS)
def test_packed_file_of_many_blocks_is_whole(end: str, tmp_path: Path) -> None:
    lines = [*LINES, b"a" * 2_000_000, *[b" "] * 10_000, b"b"]
    found = read(shared([file_of(tmp_path / f"a{end}", PACKERS[end](b"\n".join(lines)))], 1, MIB, fault_of))
    assert [row["line"] for row in found] == lines


@pytest.mark.parametrize("end", PACKERS)
@pytest.mark.parametrize("rest", [b"junk line\n", "begun"], ids=["junk", "begun"])
def test_what_follows_a_stream_and_is_none_is_a_fault_after_its_lines(
    end: str, rest: bytes | str, tmp_path: Path
) -> None:
    more = PACKERS[end](b"more\n")[:5] if isinstance(rest, str) else rest
    *good, last = read(shared([file_of(tmp_path / f"a{end}", packed_lines(end) + more)], 1, MIB, fault_of))
    whole = [row["line"] for row in good]
    # Where Arrow reads, not the last reads before it.
    assert whole == LINES if end in (".gz", ".bz2") else whole[:1_500] == LINES[:1_500]
    assert last["fault"].startswith("file: its compressed data ")


@pytest.mark.parametrize("end", [".bz2", ".deflate"])
def test_many_empty_streams_take_no_long_time(end: str, tmp_path: Path) -> None:
    packed = PACKERS[end](b"") * 20_000
    assert read(shared([file_of(tmp_path / f"a{end}", packed)], 1, MIB, fault_of)) == []


class Endless:
    """A stream of one byte, again and again."""

    def __init__(self, size: int, line: bytes = b"a") -> None:
        self.left = size
        self.chunk = line * MIB

    def read(self, size: int) -> bytes:
        assert size <= len(self.chunk)
        given, self.left = self.chunk[: min(size, self.left)], max(0, self.left - size)
        return given


def test_endless_line_is_cut_and_takes_no_memory() -> None:
    stream = Endless(256 * MIB)
    tracemalloc.start()
    try:
        (line,) = [line for lines in chunked_reader._lines(stream.read, None, None) for line in lines]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert line == b"a" * (LINE_MAX + 1)
    assert peak < 4 * LINE_MAX
    assert stream.left == 0


def test_archive_that_unpacks_to_far_more_than_lines_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked_reader, "UNPACKED_MIN", 4 * MIB)
    monkeypatch.setattr(chunked_reader, "UNPACKED_TIMES", 2)
    small, bomb = (b"x" * 1023 + b"\n") * 1024, b"first\n" + (b" " * 1023 + b"\n") * (8 * 1024)
    files = [file_of(tmp_path / "small.gz", gzip.compress(small)), file_of(tmp_path / "bomb.gz", gzip.compress(bomb))]
    rows = read(shared(files, 2, MIB, fault_of))
    of_bomb = [row for row in rows if row["file"].endswith("bomb.gz")]
    assert len(rows) - len(of_bomb) == 1024
    assert of_bomb[0]["line"] == b"first"
    (fault,) = [row["fault"] for row in rows if row["fault"]]
    assert fault.startswith("file: it decompresses to over 2 times its size; its lines before that are taken, ")
    assert len(of_bomb) < 5 * 1024


@pytest.mark.parametrize(("line", "rows"), [(b"", 0), (b"x", 4 * MIB), (b"x" * 100, MIB // 8)])
def test_small_lines_are_handed_on_by_what_their_rows_take(line: bytes, rows: int, tmp_path: Path) -> None:
    """A packed file of a few KB has millions of them, and each of their rows names the file."""
    path = tmp_path / ("f" * 200) / "a.gz"
    path.parent.mkdir()
    number = rows or 4 * MIB
    (piece,) = shared([file_of(path, gzip.compress((line + b"\n") * number, 1))], 1, MIB, fault_of)
    numbers = pa.RecordBatch.from_pydict({"id": [0]})
    batches = [(batch.num_rows, batch.nbytes) for batch in reader([piece], 7)(iter([numbers]))]
    assert sum(count for count, _ in batches) == rows
    assert all(size < 2 * chunked_reader._TOGETHER for _, size in batches)


def test_what_is_no_readable_file_is_a_fault_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "zero").symlink_to("/dev/zero")
    good = file_of(tmp_path / "a%20b.jsonl", b"line")
    good = good._replace(uri=good.uri.replace("%", "%25"))
    names = ("pipe", "folder", "loop", "zero", "gone", "a.lz4")
    found = [good, *(File(f"file:{tmp_path}/{name}", 0, 5) for name in names)]
    faults = {row["file"].rpartition("/")[2]: row["fault"] for row in read(shared(found, 1, MIB, fault_of))}
    assert faults == {
        "a%2520b.jsonl": None,
        "pipe": "file: is no regular file",
        "folder": "file: is no regular file",
        "zero": "file: is no regular file",
        "loop": f"file: cannot be read: {os.strerror(errno.ELOOP).lower()}",
        "gone": "file: cannot be read: no such file or directory",
        "a.lz4": "file: unsupported compression; give it as .gz, .bz2 or .zst",
    }


def test_file_that_its_owner_has_leased_is_a_fault_of_its_own(tmp_path: Path) -> None:
    """As Samba does for its clients: the others are read, and nobody waits for the lease to be broken."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # that the lease is to be broken
    good, leased = file_of(tmp_path / "a", b"line"), file_of(tmp_path / "b", b"line")
    try:
        with (tmp_path / "b").open("r+b") as owner:
            fcntl.fcntl(owner, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            faults = [row["fault"] for row in read(shared([good, leased], 1, MIB, fault_of))]
    finally:
        signal.signal(signal.SIGIO, before)
    assert faults == [None, f"file: cannot be read: {os.strerror(errno.EAGAIN).lower()}"]


OUTSIDE = "file: is a link that leads out of the folder that is landed; put the file itself there"


@pytest.mark.parametrize("gone", [False, True])
def test_name_that_ends_like_that_of_a_deleted_file(gone: bool, tmp_path: Path) -> None:
    """It is inside of what is landed, also if it is that file alone; one that is removed meanwhile is, too."""
    path = tmp_path / "orders (deleted)"
    path.write_bytes(b"line")
    descriptor = os.open(path, os.O_RDONLY)
    if gone:
        path.unlink()
    try:
        assert _real_path(descriptor, str(path)) == str(path.resolve())
    finally:
        os.close(descriptor)
    if not gone:
        os.close(opened(str(path), str(path.resolve())))


def test_link_out_of_the_folder_is_not_read_even_if_it_became_one_later(tmp_path: Path) -> None:
    inbox, inside = tmp_path / "in", str((tmp_path / "in").resolve())
    (inbox / "sub").mkdir(parents=True)
    (tmp_path / "in-another").mkdir()
    for path in ("secret", "in-another/secret", "in/sub/own"):
        (tmp_path / path).write_text("password")
    for name, target in (("out", "../secret"), ("beside", "../in-another/secret"), ("own", "sub/own")):
        (inbox / name).symlink_to(target)
    (inbox / "sub2").symlink_to("..")
    names = ["own", "sub/own", "out", "beside", "sub2/secret"]
    found = [File(f"file:{inbox}/{name}", 0, 8) for name in names]
    assert [fault_of(file, inside) for file in found] == [None, None, OUTSIDE, OUTSIDE, OUTSIDE]
    assert fault_of(found[2], str(tmp_path / "secret")) is None

    judged = shared(found[1:2], 1, MIB, lambda file: fault_of(file, inside))
    (inbox / "sub" / "own").unlink()
    (inbox / "sub" / "own").symlink_to("../../secret")
    (row,) = read(judged, inside)
    assert (row["line"], row["fault"]) == (None, OUTSIDE)


def test_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    judged = shared([file_of(tmp_path / "a", b"line")], 1, MIB, fault_of)
    (tmp_path / "a").unlink()
    os.mkfifo(tmp_path / "a")
    rows: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: rows.extend(read(judged)), daemon=True)
    thread.start()
    thread.join(30)
    assert [row["fault"] for row in rows] == ["file: is no regular file"]


def test_file_of_holes_costs_no_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sparse(name: str, size: int) -> File:
        file = file_of(tmp_path / name, b"line\n")
        os.truncate(tmp_path / name, size)
        return file._replace(size=size)

    monkeypatch.setattr(opening, "HOLES_MAX", 4 * MIB)
    assert (fault_of(sparse("holes", 15 << 30)) or "").startswith("file: is over 4 MiB and has holes")
    assert (fault_of(sparse("large", (1 << 40) + 1)) or "").startswith("file: is over 1 TiB")
    assert fault_of(file_of(tmp_path / "full", b"0" * 5 * MIB)) is None
    # A small one is read, and a line no further than its limit.
    file = sparse("small", 3 * MIB)
    assert fault_of(file) is None
    assert next(row["line"] for row in read(shared([file], 1, MIB, fault_of))) == b"line"


def test_line_that_is_too_long_is_read_no_further() -> None:
    stream = Endless(1 << 31)
    (line,) = [line for lines in chunked_reader._lines(stream.read, 10, None) for line in lines]
    assert len(line) == LINE_MAX + 1
    assert stream.left > (1 << 31) - 2 * LINE_MAX


def test_trouble_of_the_system_is_no_fault_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk, or the network before it, may be back at the next start: nothing is rejected for that."""
    file = file_of(tmp_path / "a.gz", b"x")

    class Broken:
        """A disk."""

        def read(self, size: int) -> bytes:  # noqa: ARG002
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        chunked_reader.Decompressed(Broken(), 10).read(1)

    def fails(*_: object) -> int:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(os, "open", fails)
    with pytest.raises(OSError, match="Stale"):
        fault_of(file)
