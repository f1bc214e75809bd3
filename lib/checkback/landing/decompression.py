"""Decompresses files up to where they are corrupt, and no further than a limit."""

from __future__ import annotations

import bz2
import gzip
import os
import zlib
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Limit on decompression: a multiple of the compressed file's size, and at least UNPACKED_MIN bytes.
UNPACKED_TIMES = 1000
UNPACKED_MIN = 256 << 20
#: Bytes of one read of compressed data. The rest after the end of a stream is copied: kept small for many small
#: concatenated streams.
_PACKED = 8 << 10
#: bytes of one read of data decompressed before
_CHUNK = 1 << 20


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
            data: bytes = self._read(size)
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
        for start in range(0, self._given, _CHUNK):
            stream.read(min(_CHUNK, self._given - start))
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
_DECOMPRESSORS: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file, mode="rb"),
    ".bz2": lambda file: _Streams(file, bz2.BZ2Decompressor),
    ".zst": _Zstd,
    ".deflate": lambda file: _Streams(file, zlib.decompressobj),
}
#: Hadoop-specific framings, which are not supported.
UNSUPPORTED = (".snappy", ".lz4")


def decompressor(path: str) -> Callable[[Any], Any] | None:
    """What makes a stream of decompressed bytes from a file with this name; None if it is not compressed."""
    return next((found for end, found in _DECOMPRESSORS.items() if path.endswith(end)), None)
