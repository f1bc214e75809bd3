"""A child process's output: buffered while it starts, forwarded afterwards; and how a line of text is one of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections import deque
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

#: Lines buffered: enough to find the cause of a failed start.
_HELD = 500


def json_line(text: str, logger: str) -> str:
    """A line of text as an event `message` with level warning (docs/runbook.md); a JSON object stays as it is."""
    with contextlib.suppress(ValueError):
        if isinstance(json.loads(text), dict):
            return text
    return json.dumps(json_head("warning") | {"event": "message", "logger": logger, "message": text})


def json_head(level: str, at_s: float | None = None) -> dict[str, object]:
    """What each line of JSON begins with: time (UTC, ISO 8601; ``at_s`` since 1970, None: now), level."""
    at = datetime.now(timezone.utc) if at_s is None else datetime.fromtimestamp(at_s, timezone.utc)
    return {"time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"), "level": level}


class HeldStderr:
    """A pipe for ``Popen(stdout=..., stderr=...)``.

    Inside the ``with`` block lines are buffered (the last 500), after it they are forwarded to this process's stderr:
    a successful start is silent, a failed one can be explained, and later errors are visible. Lines that match
    ``chatter`` at their beginning, and empty lines after them, are never forwarded. ``as_json``: each is forwarded as
    an event of the logger `spark`.
    """

    def __init__(self, chatter: str = "(?!)", as_json: bool = False) -> None:
        self._chatter = re.compile(chatter.encode())
        self._as_json = as_json
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
                        os.write(2, self._shown(line))

    def _shown(self, line: bytes) -> bytes:
        text = line.decode("utf-8", "replace").rstrip() if self._as_json else ""
        return f"{json_line(text, 'spark')}\n".encode() if text else b"" if self._as_json else line
