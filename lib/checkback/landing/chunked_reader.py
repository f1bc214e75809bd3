"""Reads files of lines in chunks, compressed or not: no line takes more memory than its limit.

Hadoop's reader, which Spark uses, buffers a whole line of any length. A file that cannot be read to its end yields the
lines before that, and its fault.
"""

from __future__ import annotations

import bz2
import gzip
import os
import zlib
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from checkback.landing.opening import UnfitFileError, opened
from checkback.messages.limits import LINE_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


#: Limit on decompression: a multiple of the compressed file's size, and at least UNPACKED_MIN bytes.
UNPACKED_TIMES = 1000
UNPACKED_MIN = 256 << 20
#: Bytes of one read of decompressed data: about as many are lost before a corruption.
_UNPACKED = 64 << 10
#: Bytes of one read of compressed data: what follows the end of a stream is copied.
_PACKED = 8 << 10


class CutShortError(Exception):
    """A file can only be read up to some point; the message says why."""


class Decompressed:
    """The decompressed content of a file of ``size`` bytes, at most UNPACKED_TIMES as many."""

    def __init__(self, stream: Any, size: int) -> None:
        # `read` buffers until it has the requested size: data before a corruption would be lost.
        self._read = getattr(stream, "read1", stream.read)
        self._left = max(UNPACKED_MIN, UNPACKED_TIMES * size)

    def read(self, size: int) -> bytes:
        """The next bytes, at most ``size``; none at the end. Raises CutShortError."""
        try:
            data: bytes = self._read(min(size, _UNPACKED))
        except (EOFError, zlib.error) as error:
            raise CutShortError("its compressed data end too early or are corrupt") from error
        except OSError as error:
            if error.errno is not None:
                raise
            raise CutShortError("its compressed data are corrupt") from error
        self._left -= len(data)
        if self._left < 0:
            raise CutShortError(f"it decompresses to over {UNPACKED_TIMES} times its size")
        return data


def _arrow(codec: str) -> Callable[[IO[bytes]], Any]:
    """Concatenated streams, by Arrow; a read that comes to a corruption returns nothing."""

    def stream(file: IO[bytes]) -> Any:
        # Arrow closes what it has read.
        own = open(os.dup(file.fileno()), "rb", buffering=0)  # noqa: SIM115
        return pa.CompressedInputStream(pa.PythonFile(own, "r"), codec)

    return stream


class _Bz2:
    """Concatenated streams; what follows and is none raises OSError or EOFError, which bz2.BZ2File ignores."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stream = bz2.BZ2Decompressor()

    def read(self, size: int) -> bytes:
        packed = b""
        while True:
            if self._stream.eof:
                packed = self._stream.unused_data or self._file.read(_PACKED)
                if not packed:
                    return b""
                self._stream = bz2.BZ2Decompressor()
            if not packed and self._stream.needs_input:
                packed = self._file.read(_PACKED)
                if not packed:
                    raise EOFError
            data = self._stream.decompress(packed, size)
            packed = b""
            if data:
                return data


#: By file extension, as for Hadoop's codecs.
_DECOMPRESSORS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file, mode="rb"),
    ".bz2": _Bz2,
    ".zst": _arrow("zstd"),
    ".deflate": _arrow("gzip"),  # which knows zlib's header, too
}
#: Hadoop-specific framings, which are not supported.
UNSUPPORTED = (".snappy", ".lz4")


def decompressor(path: str) -> Callable[[Any], Any] | None:
    """What makes a stream of decompressed bytes from a file with this name; None if it is not compressed."""
    return next((found for end, found in _DECOMPRESSORS.items() if path.endswith(end)), None)


#: bytes of one read, and of the rows of one record batch
CHUNK = 1 << 20
_TOGETHER = 4 << 20
#: Overhead of a row in bytes, besides its line and its file's name: a small file can have millions of lines.
_ROW = 64
#: Cost of opening a file in bytes, for bin-packing files into tasks: Spark's spark.sql.files.openCostInBytes.
OPEN_COST = 4 << 20
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
    step = max(1, file.size) if fault or decompressor(file.uri) is not None else block
    starts = range(0, max(1, file.size), step)
    return [FileChunk(file.uri, file.time, start, min(start + step, file.size), fault) for start in starts]


def fault_of(file: File, inside: str | None = None) -> str | None:
    """Why a file cannot be read at all; None = it can. ``inside``: see `opening.opened`.

    Raises OSError if the cause is not the file, so that it is retried later.
    """
    if file.uri.endswith(UNSUPPORTED):
        return f"{FAULT}unsupported compression; give it as .gz, .bz2 or .zst"
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

    Raises UnfitFileError if it is not a file to land (any more); CutShortError if it is shorter than when it was
    listed, is compressed and corrupt, or decompresses to far more than a file of lines would; OSError if the system
    cannot read it.
    """
    path = plain_path(piece.uri)
    unpacker = decompressor(path)
    with open(opened(path, inside), "rb", buffering=0) as file:
        if unpacker is None:
            yield from _lines(file.read, piece.end, skip=_seek(file, piece.start))
        else:
            yield from _lines(Decompressed(unpacker(file), piece.end).read, None, skip=None)


def _seek(file: IO[bytes], start: int) -> int | None:
    """Seek to the last byte before ``start``: a line belongs to this chunk only if it begins after a line end."""
    if start == 0:
        return None
    return file.seek(start - 1)


def _lines(read: Callable[[int], bytes], end: int | None, skip: int | None) -> Iterator[list[bytes]]:
    """The lines that begin before ``end`` (None: all). ``skip``: the stream's position, inside a line to skip.

    Raises CutShortError, after the lines that are there, if the stream ends before ``end``.
    """
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
    if end is not None and position < end:
        raise CutShortError("it is shorter than when it was listed")


def _joined(begun: bytes, more: bytes) -> bytes:
    return begun if len(begun) > LINE_MAX else (begun + more)[: LINE_MAX + 1]
