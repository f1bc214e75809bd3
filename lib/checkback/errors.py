"""Errors: every one says what, where and what to do; the CLI prints it as one line.

Exit codes: 0 done, 1 failed while running, 2 wrong usage or settings.
"""

from __future__ import annotations

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
