"""Reads files of lines in chunks, compressed or not: no line takes more memory than its limit.

Hadoop's reader, which Spark uses, buffers a whole line of any length. A file that cannot be read to its end yields the
lines before that, and its fault.
"""

from __future__ import annotations

import bz2
import gzip
import os
import zlib
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from checkback.landing.opening import UnfitFileError, opened
from checkback.messages import LINE_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

#: bytes of one read, and of the rows of one record batch
CHUNK = 1 << 20
_TOGETHER = 4 << 20
#: Overhead of a row in bytes, besides its line and its file's name: a small file can have millions of lines.
_ROW = 64
#: Bytes of one read of compressed data. The rest after the end of a stream is copied: kept small for many small
#: concatenated streams.
_PACKED = 8 << 10
#: Cost of opening a file in bytes, for bin-packing files into tasks: Spark's spark.sql.files.openCostInBytes.
OPEN_COST = 4 << 20
#: Limit on decompression: a multiple of the compressed file's size, and at least UNPACKED_MIN bytes.
UNPACKED_TIMES = 1000
UNPACKED_MIN = 256 << 20
#: Prefix of the reason in `rejected` why a file was not read, or not to its end.
FAULT = "file: "

LINES_SCHEMA = (
    "line BINARY, fault STRING, file STRING, file_time TIMESTAMP, file_block BIGINT, store_timestamp TIMESTAMP"
)
_TIME = pa.timestamp("us", tz="UTC")


class FileChunk(NamedTuple):
    """The lines of a file that begin in bytes ``start`` .. ``end`` - 1; of a compressed file ``end`` is its whole size.

    ``uri`` and ``time`` (us) are the file's in the rows. ``fault``: why it is not read at all.
    """

    uri: str
    time: int
    start: int
    end: int
    fault: str | None = None


class File(NamedTuple):
    """A file as listed: ``time`` of its last change (us), ``size`` in bytes."""

    uri: str
    time: int
    size: int


class CutShortError(Exception):
    """A file can only be read up to some point; the message says why."""


def plain_path(uri: str) -> str:
    """The plain path of a file's URI: Spark reports ``file:/a%20b`` for ``/a b``."""
    path = unquote(uri)
    if path.startswith("file:/"):
        return "/" + path.removeprefix("file:").lstrip("/")
    return path


def shared(
    files: Sequence[File], tasks: int, largest: int, fault: Callable[[File], str | None]
) -> list[list[FileChunk]]:
    """The files' chunks, bin-packed into lists of about the same size, one per task, as in Spark's FilePartition.

    ``largest``: bytes of a chunk. Compressed files are not splittable.
    """
    total = sum(file.size + OPEN_COST for file in files)
    block = max(1, min(largest, max(OPEN_COST, total // max(1, tasks))))
    lists: list[list[FileChunk]] = []
    room = 0
    for piece in (piece for file in files for piece in _pieces(file, block, fault(file))):
        size = piece.end - piece.start
        if not lists or size > room:
            lists.append([])
            room = block
        lists[-1].append(piece)
        room -= size + OPEN_COST
    return lists


def _pieces(file: File, block: int, fault: str | None) -> list[FileChunk]:
    step = max(1, file.size) if fault or _unpacker(file.uri) is not None else block
    starts = range(0, max(1, file.size), step)
    return [FileChunk(file.uri, file.time, start, min(start + step, file.size), fault) for start in starts]


def fault_of(file: File, inside: str | None = None) -> str | None:
    """Why a file cannot be read at all; None = it can. ``inside``: see `opening.opened`.

    Raises OSError if the cause is not the file, so that it is retried later.
    """
    if file.uri.endswith(_FOREIGN):
        return f"{FAULT}packed in a way that is not read; give it as .gz, .bz2 or .zst"
    try:
        os.close(opened(plain_path(file.uri), inside))
    except UnfitFileError as error:
        return f"{FAULT}{error}"
    return None


def reader(
    lists: Sequence[Sequence[FileChunk]], store_timestamp: int, inside: str | None = None
) -> Callable[[Any], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow: numbers of the lists -> LINES_SCHEMA. ``store_timestamp`` in us.

    ``inside``: see `opening.opened`.
    """

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in (piece for batch in numbers for number in batch.column(0).to_pylist() for piece in lists[number]):
            for lines, fault in _read(piece, inside):
                yield _rows(lines, fault, piece, store_timestamp)

    return read


def _rows(lines: Sequence[bytes | None], fault: str | None, piece: FileChunk, store_timestamp: int) -> pa.RecordBatch:
    number = len(lines)

    def same(value: Any, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), number)

    columns = {
        "line": pa.array(lines, pa.binary()),
        "fault": same(fault, pa.string()),
        "file": same(piece.uri, pa.string()),
        "file_time": same(piece.time, pa.int64()).cast(_TIME),
        "file_block": same(piece.start, pa.int64()),
        "store_timestamp": same(store_timestamp, pa.int64()).cast(_TIME),
    }
    return pa.RecordBatch.from_pydict(columns)


def _read(piece: FileChunk, inside: str | None) -> Iterator[tuple[list[bytes | None], str | None]]:
    """Groups of lines without a fault; last, if the file has a fault, that without a line.

    Empty lines are dropped: a compressed file of a few KB can have a hundred million.
    """
    fault = piece.fault
    gathered: list[bytes | None] = []
    size, of_row = 0, len(piece.uri) + _ROW
    together = _TOGETHER // of_row + 1
    try:
        for lines in lines_of(piece, inside) if fault is None else ():
            found = [line for line in lines if line]
            for start in range(0, len(found), together):
                some = found[start : start + together]
                gathered += some
                size += sum(map(len, some)) + of_row * len(some)
                if size >= _TOGETHER:
                    yield gathered, None
                    gathered, size = [], 0
    except UnfitFileError as error:
        fault = f"{FAULT}{error}"
    except CutShortError as error:
        fault = f"{FAULT}{error}; its lines before that are taken, the whole file must come under another name"
    if gathered:
        yield gathered, None
    if fault is not None:
        yield [None], fault


def lines_of(piece: FileChunk, inside: str | None = None) -> Iterator[list[bytes]]:
    r"""Groups of lines without their ``\n``. Lines longer than LINE_MAX are truncated to LINE_MAX + 1 bytes.

    Raises UnfitFileError if it is not a file to land (any more); CutShortError if a compressed file is corrupt, or
    decompresses to far more than a file of lines would; OSError if the system cannot read it.
    """
    path = plain_path(piece.uri)
    unpacker = _unpacker(path)
    with open(opened(path, inside), "rb", buffering=0) as file:
        if unpacker is None:
            yield from _lines(file.read, piece.end, skip=_seek(file, piece.start))
        else:
            most = max(UNPACKED_MIN, UNPACKED_TIMES * piece.end)
            yield from _lines(_Unpacked(unpacker(file), most).read, None, skip=None)


def _seek(file: IO[bytes], start: int) -> int | None:
    """Seek to the last byte before ``start``: a line belongs to this chunk only if it begins after a line end."""
    if start == 0:
        return None
    return file.seek(start - 1)


def _lines(read: Callable[[int], bytes], end: int | None, skip: int | None) -> Iterator[list[bytes]]:
    """The lines that begin before ``end`` (None: all). ``skip``: the stream's position, inside a line to skip."""
    position, skipping, rest = skip or 0, skip is not None, b""
    while end is None or position < end:
        chunk = read(CHUNK if end is None else min(CHUNK, end - position))
        if not chunk:
            break
        position += len(chunk)
        if skipping:
            _, ended, chunk = chunk.partition(b"\n")
            if not ended:
                continue
            skipping = False
        lines = chunk.split(b"\n")
        lines[0] = _joined(rest, lines[0])
        rest = lines.pop()
        if lines:
            yield lines
    while end is not None and 0 < len(rest) <= LINE_MAX and (chunk := read(CHUNK)):
        # The last line began before the end: complete it, unless it is too long already.
        line, ended, _ = chunk.partition(b"\n")
        rest = _joined(rest, line)
        if ended:
            break
    if rest:
        yield [rest]


def _joined(begun: bytes, more: bytes) -> bytes:
    return begun if len(begun) > LINE_MAX else (begun + more)[: LINE_MAX + 1]


class _Unpacked:
    """The decompressed content of a file, at most ``most`` bytes."""

    def __init__(self, stream: Any, most: int) -> None:
        # `read` buffers until it has the requested size: data before a corruption would be lost.
        self._read = getattr(stream, "read1", stream.read)
        self._left = most

    def read(self, size: int) -> bytes:
        try:
            data: bytes = self._read(size)
        except (EOFError, zlib.error) as error:
            raise CutShortError("its packed data end too early, or are corrupt") from error
        except OSError as error:
            if error.errno is not None:
                raise
            raise CutShortError("its packed data are corrupt") from error
        self._left -= len(data)
        if self._left < 0:
            raise CutShortError(f"it unpacks to over {UNPACKED_TIMES} times its size")
        return data


def _unpacker(path: str) -> Callable[[Any], Any] | None:
    return next((unpacker for end, unpacker in _UNPACKERS.items() if path.endswith(end)), None)


class _Zstd:
    """zstd streams, up to the last byte before a corruption: Arrow's reader returns nothing if a read hits it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._given = 0
        self._damage: OSError | None = None
        self._stream = self._begun()

    def _begun(self) -> Any:
        self._file.seek(0)
        # Arrow closes what it has read.
        own = open(os.dup(self._file.fileno()), "rb", buffering=0)  # noqa: SIM115
        return pa.CompressedInputStream(pa.PythonFile(own, "r"), "zstd")

    def read(self, size: int) -> bytes:
        if self._damage is not None:
            raise self._damage
        try:
            data: bytes = self._stream.read(size)
        except OSError as error:
            if error.errno is not None:
                raise
            self._damage = error
            more = b"".join(part for step in (1 << 10, 1) for part in self._before_damage(step))
            if not more:
                raise
            return more
        self._given += len(data)
        return data

    def _before_damage(self, step: int) -> Iterator[bytes]:
        """The data after that already returned, up to the corruption, in reads of ``step`` bytes."""
        stream = self._begun()
        for start in range(0, self._given, CHUNK):
            stream.read(min(CHUNK, self._given - start))
        with suppress(OSError):
            while data := stream.read(step):
                self._given += len(data)
                yield data


class _Streams:
    """Concatenated compressed streams, as gzip allows; zero padding after one is skipped, as gzip does.

    ``new``: makes a decompressor of zlib or bz2. Trailing garbage raises zlib.error, OSError or EOFError.
    """

    def __init__(self, file: IO[bytes], new: Callable[[], Any]) -> None:
        self._file = file
        self._new = new
        self._stream = new()
        self._rest = b""

    def read(self, size: int) -> bytes:
        while True:
            if self._stream.eof:
                self._rest = self._stream.unused_data.lstrip(b"\0")
                while not self._rest:
                    packed = self._file.read(_PACKED)
                    if not packed:
                        return b""
                    self._rest = packed.lstrip(b"\0")
                self._stream = self._new()
            # bz2 buffers unused input, and accepts no more until it is consumed; zlib returns it (unconsumed_tail).
            packed, ended = self._rest, False
            if not packed and getattr(self._stream, "needs_input", True):
                packed = self._file.read(_PACKED)
                ended = not packed
            data: bytes = self._stream.decompress(packed, size)
            self._rest = getattr(self._stream, "unconsumed_tail", b"")
            if data:
                return data
            if ended and not self._stream.eof:
                raise EOFError


#: By file extension, as for Hadoop's codecs.
_UNPACKERS: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file, mode="rb"),
    ".bz2": lambda file: _Streams(file, bz2.BZ2Decompressor),
    ".zst": _Zstd,
    ".deflate": lambda file: _Streams(file, zlib.decompressobj),
}
#: Hadoop-specific framings, which are not supported.
_FOREIGN = (".snappy", ".lz4")
