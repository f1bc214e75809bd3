"""A child process's output: buffered while it starts, forwarded afterwards."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

#: Lines buffered: enough to find the cause of a failed start.
_HELD = 500


class HeldStderr:
    """A pipe for ``Popen(stdout=..., stderr=...)``.

    Inside the ``with`` block lines are buffered (the last 500), after it they are forwarded to this process's stderr:
    a successful start is silent, a failed one can be explained, and later errors are visible. Lines that match
    ``chatter`` at their beginning, and empty lines after them, are never forwarded.
    """

    def __init__(self, chatter: str = "(?!)") -> None:
        self._chatter = re.compile(chatter.encode())
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
        """The write end, for the child."""
        return self._sink

    @property
    def held(self) -> int:
        """Number of buffered lines."""
        return len(self._lines)

    def join(self) -> None:
        """Wait until all output of an ended child was read."""
        self._close()
        self._reader.join(timeout=5)

    def lines(self) -> list[str]:
        """The buffered lines of an ended child."""
        self.join()
        return [line.decode("utf-8", "replace").strip() for line in self._lines]

    def _close(self) -> None:
        # Close our copy of the write end, else the reader never sees end of file.
        if self._sink >= 0:
            os.close(self._sink)
            self._sink = -1

    def _read(self) -> None:
        chatter = False
        with os.fdopen(self._source, "rb") as source:
            for line in source:
                chatter = bool(self._chatter.match(line)) or (chatter and not line.strip())
                if self._hold:
                    self._lines.append(line)
                elif not chatter:
                    # Keep reading even if our stderr fails: the child would block on a full pipe.
                    with contextlib.suppress(OSError):
                        os.write(2, line)
