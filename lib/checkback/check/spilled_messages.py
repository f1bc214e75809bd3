"""Half messages of check requests that wait on disk until their check is sent."""

from __future__ import annotations

import os
import pickle
import tempfile
from functools import partial
from typing import TYPE_CHECKING

from checkback.check.wire import Message

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class SpilledMessages:
    """A temporary file of messages, gone with the process whatever becomes of it. Use as a context. Thread-safe."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="checkback-check-")  # noqa: SIM115 - closed by __exit__
        self._end = 0

    def __enter__(self) -> SpilledMessages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, message: Message) -> Callable[[], Message]:
        """Write the message. Returns what reads it again. Raises OSError if the disk is full."""
        written = pickle.dumps((message.body, message.tags, message.keys, message.properties))
        at, self._end = self._end, self._end + len(written)
        self._file.write(written)
        return partial(self._read, at, len(written))

    def _read(self, at: int, size: int) -> Message:
        self._file.flush()
        return Message(*pickle.loads(os.pread(self._file.fileno(), size, at)))  # noqa: S301 - its own, see add
