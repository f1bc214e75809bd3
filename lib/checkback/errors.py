"""Errors: every one says what, where and what to do; the CLI prints it as one line.

Exit codes: 0 done, 1 failed while running, 2 wrong usage or settings.
"""

from __future__ import annotations

import errno
import os
import re

#: what the system says of a full disk, and what to do
NO_SPACE = "No space left on device"
NO_SPACE_FIX = "make room on the disk, then run again: nothing is lost"


class CheckbackError(Exception):
    """Root of Checkback's own errors.

    Attributes: ``what`` went wrong, ``where`` (a setting, file, table; may be empty),
    ``fix`` (what to do; may be empty), ``exit_code`` of the command that meets it.
    """

    exit_code = 1

    def __init__(self, what: str, where: str = "", fix: str = "") -> None:
        # All three go to Exception.args, so that the error survives pickling (executor -> driver).
        super().__init__(what, where, fix)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        line = f"{head}; {self.fix}" if self.fix else head
        return " ".join(line.split())


class SettingsError(CheckbackError):
    """A setting, an option or the machine itself is not fit to start with."""

    exit_code = 2


class StorageError(CheckbackError):
    """A table or checkpoint cannot be read or written."""


class FencedError(CheckbackError):
    """Another process has taken over what this one was writing: it must stop."""


class StateError(CheckbackError):
    """The bytes of a segment's state are not what this version can read."""


def reason(error: BaseException) -> str:
    """The one line of an error that tells most; of an error from Java the Java exception."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        return lines[1].removeprefix(": ")
    return lines[0] if lines else type(error).__name__


_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
#: As delta-rs and pyarrow say it, as the system does, and what a run says that is being stopped: in words that are no
#: topic's name, and so in no table's path.
_SAID_BY_MACHINE = re.compile(
    "|".join(
        [
            rf"(?:os error|[Ee]rrno) (?:{'|'.join(map(str, _MACHINE))})\b",
            *(re.escape(os.strerror(number)) for number in _MACHINE),
            r"java\.lang\.(?:OutOfMemoryError|InterruptedException)|java\.io\.InterruptedIOException",
            r"Job \d+ cancelled|SparkContext was shut down|stopped SparkContext|Python worker ",
        ]
    )
)


def of_machine(error: BaseException) -> bool:
    """Is the error the machine's, or the whole run's, and not of the one table or file that met it?

    No space, no memory, too many open files, a failing disk, a lost connection, a run that is being stopped.
    """
    if isinstance(error, MemoryError | ConnectionError):
        return True
    # Its first line: below it an error may quote what somebody has sent.
    return (isinstance(error, OSError) and error.errno in _MACHINE) or said_by_machine(reason(error))


def said_by_machine(line: str) -> bool:
    """Does a line of an error say so? See `of_machine`."""
    return _SAID_BY_MACHINE.search(line) is not None
