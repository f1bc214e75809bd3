"""Half messages of check requests that wait on disk until their check is sent."""

from __future__ import annotations

import os
import pickle
import tempfile
from functools import partial
from typing import IO, TYPE_CHECKING

from checkback.check.wire import Message

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class SpilledMessages:
    """A temporary file of messages, gone with the process whatever becomes of it. Use as a context.

    Made with the first message: most tasks have none to spill.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._end = 0

    def __enter__(self) -> SpilledMessages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, message: Message) -> Callable[[], Message]:
        """Write the message. Returns what reads it again. Raises OSError if the disk is full."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="checkback-check-")  # noqa: SIM115 - closed by __exit__
        written = pickle.dumps((message.body, message.tags, message.keys, message.properties))
        at, self._end = self._end, self._end + len(written)
        self._file.write(written)
        return partial(_read, self._file, at, len(written))


def _read(file: IO[bytes], at: int, size: int) -> Message:
    file.flush()
    return Message(*pickle.loads(os.pread(file.fileno(), size, at)))  # noqa: S301 - its own, see add
