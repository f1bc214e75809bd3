"""What a child process writes to stderr: held back while it starts, passed on afterwards."""

from __future__ import annotations

import os
import threading
from collections import deque
from types import TracebackType

#: Enough of a failed start to find its reason in.
_HELD = 500


class HeldStderr:
    """A pipe for ``Popen(stderr=...)``.

    Inside the ``with`` block lines are kept (the last 500), after it they go to this process's stderr as they come:
    a start that works is silent, one that fails can be explained, and later errors are seen.
    """

    def __init__(self) -> None:
        self._source, self._sink = os.pipe()
        self._lines: deque[bytes] = deque(maxlen=_HELD)
        self._hold = True
        self._reader = threading.Thread(target=self._read, name="held-stderr", daemon=True)

    def __enter__(self) -> HeldStderr:
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hold = False
        self._close()

    def fileno(self) -> int:
        """The end that the child writes to."""
        return self._sink

    def lines(self) -> list[str]:
        """The lines of a child that has ended."""
        self._close()
        self._reader.join(timeout=5)
        return [line.decode("utf-8", "replace").strip() for line in self._lines]

    def _close(self) -> None:
        # Our copy of the child's end: the reader would never see the end of it.
        if self._sink >= 0:
            os.close(self._sink)
            self._sink = -1

    def _read(self) -> None:
        with os.fdopen(self._source, "rb") as source:
            for line in source:
                if self._hold:
                    self._lines.append(line)
                else:
                    os.write(2, line)
