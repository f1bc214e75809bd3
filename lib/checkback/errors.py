"""Errors: every one says what, where and what to do; the CLI prints it as one line.

Exit codes: 0 done, 1 failed while running, 2 wrong usage or settings.
"""

from __future__ import annotations

import errno
import os
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

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


_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+;?$")
#: Messages that only point to the cause.
_SAYS_NOTHING = re.compile(
    r"Exception thrown in awaitResult|Boxed Exception|java\.util\.concurrent\.ExecutionException"
)
_TRACEBACK = "Traceback (most recent call last):"


def one_line(error: BaseException) -> str:
    """What an error of Spark, Java or Python says, without its stack."""
    text = next((text for text in causes(error) if not _SAYS_NOTHING.match(text)), str(error))
    return _telling_line(text) or type(error).__name__


def all_lines(error: BaseException) -> Iterator[str]:
    """What an error says and what each of its causes says, a line each, without their stacks."""
    for text in causes(error):
        first = text.strip().partition("\n")[0]
        # Below it may be what somebody has sent, as in a row that a table refuses.
        yield _telling_line(text) if _TRACEBACK in first else first


def _telling_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    if any(_TRACEBACK in line for line in lines):
        # A Python worker's error: frames are indented, Java's too, and what comes between them is the error itself.
        after = lines[max(number for number, line in enumerate(lines) if _TRACEBACK in line) + 1 :]
        lines = [line for line in after if not line[0].isspace()] or lines
    return _SQLSTATE.sub("", lines[0])


def causes(error: BaseException | None) -> Iterator[str]:
    """What an error says, then its causes."""
    while error is not None:
        java = getattr(error, "java_exception", None)  # a Py4JJavaError, which itself says only "an error occurred"
        if java is None:
            yield str(error)
        while java is not None:
            yield str(java.getMessage() or java.toString())
            java = java.getCause()
        error = getattr(error, "_cause", None)  # of an exception that PySpark made of one from Java


def printable(text: str) -> str:
    r"""The text with all that is no letter, mark, sign or space written as JSON writes it: ``\u001b``, ``\n``.

    That is what terminals obey (C0, C1, ANSI escapes begin with them), what turns or hides text (Unicode's format
    characters, as U+202E), line ends, and halves of surrogate pairs, which cannot be printed. JSON stays the same JSON.
    """
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(char: str) -> str:
    if char.isprintable() or unicodedata.category(char) == "Zs":
        return char
    if char in _SHORT:
        return _SHORT[char]
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in zip(units[::2], units[1::2], strict=True))


_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
