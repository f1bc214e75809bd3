"""Errors: each says what, where and what to do; the CLI prints it as one line.

Exit codes: 0 success, 1 runtime failure, 2 wrong usage or settings.
"""

from __future__ import annotations

import errno
import os
import re
import sysconfig
import traceback
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: the OS's message for a full disk, and the fix
NO_SPACE = "No space left on device"
NO_SPACE_FIX = "make room on the disk, then run again: nothing is lost"
#: a line of a JVM's output that names an error, not one of a stack's frames
_NAMES_ERROR = re.compile(r"^(?!\s*at ).*(Error|Exception)\b")
#: modules that the extra `spark` brings
_OF_SPARK = {"delta", "pandas", "py4j", "pyspark"}


class CheckbackError(Exception):
    """Base class of Checkback's errors.

    Attributes: ``what`` went wrong, ``where`` (a setting, file, table; may be empty),
    ``fix`` (what to do; may be empty), ``exit_code`` of the command that fails with it.
    """

    exit_code = 1

    def __init__(self, what: str, where: str = "", fix: str = "") -> None:
        # All three in Exception.args, so that the error survives pickling (executor -> driver).
        super().__init__(what, where, fix)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        line = f"{head}; {self.fix}" if self.fix else head
        return " ".join(line.split())


class SettingsError(CheckbackError):
    """A setting or option is invalid, or the machine lacks a prerequisite."""

    exit_code = 2


def missing_module(error: ImportError, extra: str = "", where: str = "") -> ImportError | SettingsError:
    """The error of a package that is not installed, and that ``extra`` brings; of a module of Checkback: ``error``."""
    module = (error.name or "").partition(".")[0]
    if module == __package__:
        return error
    extra = extra or ("spark" if module in _OF_SPARK else "")
    fix = f"install checkback[{extra}]" if extra else "install Checkback with its dependencies"
    return SettingsError(f"the Python module {module} is missing", where, fix)


_CHECKBACK, _PYTHON = "checkback", "python"
_OWN_FOLDER = os.path.dirname(os.path.abspath(__file__)).replace("\\", "/") + "/"
_STDLIB = tuple(f"{sysconfig.get_path(name)}/".replace("\\", "/") for name in ("stdlib", "platstdlib"))
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/[^/]+")


def error_summary(error: BaseException) -> str:
    """A listener's error: its type and the line of the listener's own code, as ``ValueError at credits.py:12``.

    That is the innermost line outside of Checkback, Python's own library and installed packages: a library's line does
    not tell which statement of the listener failed. For a listener that is in an installed package, the innermost line
    of that package. Without either, the innermost line. Without the error's text, which may quote a message. Printable:
    a file's name need not be UTF-8.
    """
    frames = [
        (frame.f_code.co_filename.replace("\\", "/"), line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    packages = [_package(file) for file, _ in frames]
    called = next((package for package in packages if package != _CHECKBACK), None)
    own = next((package for package in ("", called) if package in packages), None)
    place = [frame for frame, package in zip(frames, packages, strict=True) if own in (None, package)][-1:]
    at = "".join(f" at {file.rpartition('/')[2]}:{line}" for file, line in place)
    return printable(type(error).__name__ + at)


def _package(file: str) -> str:
    """What a file of code belongs to: Checkback, Python, the folder of an installed package; "" = the service."""
    if file.startswith(_OWN_FOLDER):
        return _CHECKBACK
    if installed := _INSTALLED.match(file):
        return installed[0]
    return _PYTHON if file.startswith((*_STDLIB, "<frozen ")) else ""


class SelectorError(CheckbackError):
    """A message selector that RocketMQ refuses, or that cannot be translated.

    Attributes: ``text`` of the selector, ``position`` in it (the error's character, counted from 1; 0: none).
    """

    exit_code = 2

    def __init__(self, what: str, where: str = "", fix: str = "", *, text: str = "", position: int = 0) -> None:
        super().__init__(what, where, fix)
        self.text = text
        self.position = position


class StorageError(CheckbackError):
    """A table or checkpoint cannot be read or written."""


class FencedError(CheckbackError):
    """This process is fenced: another one has taken over what it writes, and it must stop."""


class StateError(CheckbackError):
    """State that this version cannot read or resume from."""


def reason(error: BaseException) -> str:
    """The most informative line of an error; for an error from Java, the Java exception."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        return lines[1].removeprefix(": ")
    return lines[0] if lines else type(error).__name__


def root_cause(lines: Iterable[str]) -> str | None:
    """The last cause in Java's stack traces, else the first line that names an error; None if no line does."""
    found = [line.strip() for line in lines if _NAMES_ERROR.search(line)]
    causes = [line for line in found if line.startswith("Caused by: ")]
    return re.sub('^Caused by: |^Exception in thread "[^"]*" ', "", (causes[-1:] or found[:1])[0]) if found else None


#: errors of the operating system that concern the machine
MACHINE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
#: Texts of delta-rs, pyarrow and the OS, and of a run that is being stopped. None can match a topic's name, and so a
#: table's path.
_SAID_BY_MACHINE = re.compile(
    "|".join(
        [
            rf"(?:os error|[Ee]rrno) (?:{'|'.join(map(str, MACHINE))})\b",
            *(re.escape(os.strerror(number)) for number in MACHINE),
            r"java\.lang\.(?:OutOfMemoryError|InterruptedException)|java\.io\.InterruptedIOException",
            r"Job \d+ cancelled|SparkContext was shut down|stopped SparkContext|Python worker ",
        ]
    )
)


def of_machine(error: BaseException) -> bool:
    """True if the error concerns the machine or the whole run, not a single table or file.

    No space, no memory, too many open files, a failing disk, a lost connection, a run that is being stopped.
    """
    if isinstance(error, MemoryError | ConnectionError) or server_lost(error):
        return True
    # Only the first line: the others may quote user data.
    return (isinstance(error, OSError) and error.errno in MACHINE) or said_by_machine(reason(error))


def said_by_machine(line: str) -> bool:
    """True if a line of an error matches an error of the machine, see `of_machine`."""
    return _SAID_BY_MACHINE.search(line) is not None


#: PySpark's errors of a session that the server has ended, or that a restarted server does not know
_SESSION_LOST = re.compile(
    r"(\([\w.]+\) )?\[(INVALID_HANDLE\.SESSION\w*|NO_ACTIVE_SESSION|RESPONSE_ALREADY_RECEIVED)\]"
)
#: what gRPC says of a call, among much else
_DETAILS = re.compile(r'details = "(.+)"')


def server_lost(error: BaseException) -> bool:
    """True if a Spark Connect client's error says that the server is gone, or does not know the session any more."""
    if not type(error).__module__.startswith("pyspark.errors.exceptions."):
        return False
    code = getattr(error, "getGrpcStatusCode", None)
    return (code is not None and code().name == "UNAVAILABLE") or _SESSION_LOST.match(str(error)) is not None


def lost_connection(error: BaseException) -> CheckbackError:
    """The error for a call after Spark has died, or after its server has lost the session."""
    what, fix = "lost the connection to Spark", "see what Spark says, then run again"
    if server_lost(error):
        details = _DETAILS.search(str(error))
        what += f": {_telling_line(str(error)) if details is None else details[1]}"
    return CheckbackError(what, fix=fix)


_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+;?$")
#: Wrapper messages, without information of their own.
_SAYS_NOTHING = re.compile(
    r"Exception thrown in awaitResult|Boxed Exception|java\.util\.concurrent\.ExecutionException"
)
_TRACEBACK = "Traceback (most recent call last):"


def one_line(error: BaseException) -> str:
    """The message of a Spark, Java or Python error, without its stack trace."""
    text = next((text for text in causes(error) if not _SAYS_NOTHING.match(text)), str(error))
    return _telling_line(text) or type(error).__name__


def all_lines(error: BaseException) -> Iterator[str]:
    """The messages of an error and its causes, one line each, without stack traces."""
    for text in causes(error):
        first = text.strip().partition("\n")[0]
        # The other lines may quote user data, such as a row that a table refuses.
        yield _telling_line(text) if _TRACEBACK in first else first


def _telling_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    if any(_TRACEBACK in line for line in lines):
        # A Python worker's error: Python and Java frames are indented, the error itself is not.
        after = lines[max(number for number, line in enumerate(lines) if _TRACEBACK in line) + 1 :]
        lines = [line for line in after if not line[0].isspace()] or lines
    return _SQLSTATE.sub("", lines[0])


def causes(error: BaseException | None) -> Iterator[str]:
    """The error's message, then those of its causes."""
    while error is not None:
        java = getattr(error, "java_exception", None)  # a Py4JJavaError's own text is only "an error occurred"
        if java is None:
            yield str(error)
        while java is not None:
            yield str(java.getMessage() or java.toString())
            java = java.getCause()
        error = getattr(error, "_cause", None)  # of an exception that PySpark converted from Java


def printable(text: str) -> str:
    r"""The text with unprintable characters escaped as in JSON: ``\u001b``, ``\n``.

    These are control characters (C0 and C1, which begin ANSI escapes), Unicode's format characters (such as U+202E,
    which reorder or hide text), line ends, and lone surrogates. JSON stays equivalent JSON.
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
