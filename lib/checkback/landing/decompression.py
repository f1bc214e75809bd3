"""Decompresses files up to about where they are corrupt, and no further than a limit."""

from __future__ import annotations

import bz2
import gzip
import os
import zlib
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

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
