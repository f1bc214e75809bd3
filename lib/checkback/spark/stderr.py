"""What a child process says: held back while it starts, passed on afterwards."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

#: Enough of a failed start to find its reason in.
_HELD = 500


class HeldStderr:
    """A pipe for ``Popen(stdout=..., stderr=...)``.

    Inside the ``with`` block lines are kept (the last 500), after it they go to this process's stderr as they come:
    a start that works is silent, one that fails can be explained, and later errors are seen. Lines that begin as
    ``chatter`` says, and an empty line after one, are never passed on.
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
        """The end that the child writes to."""
        return self._sink

    @property
    def held(self) -> int:
        """How many lines are held."""
        return len(self._lines)

    def join(self) -> None:
        """Waits until a child that has ended was heard out."""
        self._close()
        self._reader.join(timeout=5)

    def lines(self) -> list[str]:
        """The lines of a child that has ended."""
        self.join()
        return [line.decode("utf-8", "replace").strip() for line in self._lines]

    def _close(self) -> None:
        # Our copy of the child's end: the reader would never see the end of it.
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
                    # Read on, whatever becomes of our stderr: the child would block on a full pipe.
                    with contextlib.suppress(OSError):
                        os.write(2, line)
