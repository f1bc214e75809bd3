"""Whether an error is the fault of one table or file, which then does not stop the others. Pure; imports no Spark."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from checkback.errors import (
    CheckbackError,
    FencedError,
    StateError,
    StorageError,
    all_lines,
    of_machine,
    said_by_machine,
)
from checkback.errors import reason as first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: matched against class names, which no topic name can equal: a second application writes the same batches, and a call
#: after Spark has died
_OTHERS = re.compile(r"io\.delta\.exceptions\.ConcurrentTransactionException|py4j\.protocol\.Py4JNetworkError")
#: lines of Spark's that precede a task's real error
_SAYS_LITTLE = re.compile(r"\[TASK_WRITE_FAILED\]|Job aborted|Exception thrown in awaitResult")
#: a message's value in a line of Spark's: [CAST_INVALID_INPUT] and the like quote it
_VALUE = re.compile(r"\b(value|[Tt]ext|input) '(?:.*'(?= (?:of the type|could not|cannot))|.*$)")
_LONGEST_REASON = 400


def own_failure(error: BaseException) -> str:
    """Why a table could not be created, written or read, in one line; re-raises errors that are not the table's own."""
    if not _is_own(error):
        raise error
    if isinstance(error, CheckbackError):
        return as_reason(str(error))
    telling = (line for line in all_lines(error) if line and not _SAYS_LITTLE.match(line))
    return as_reason(_VALUE.sub(r"\1 ...", next(telling, type(error).__name__)))


def is_error(error: BaseException) -> bool:
    """False for what ends the process, as Ctrl-C. A panic of delta-rs is an error, though no Exception."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def is_damage(error: BaseException) -> bool:
    """True if an error in reading a file is due to its content, which may make a reader raise anything.

    Not if the file is missing or closed to this process, or the machine fails.
    """
    return not (isinstance(error, OSError) and error.errno is not None) and _is_own(error)


@contextmanager
def reading(
    place: str, told: Callable[[str, BaseException], StorageError] | None = None, but: tuple[type[OSError], ...] = ()
) -> Iterator[None]:
    """Context in which files of the table or file ``place`` are read: what that raises becomes a StorageError.

    That is errors of the OS except ``but``, and whatever damaged content makes a reader raise. No memory concerns the
    machine, and Checkback's errors say what they are; both are raised as they are. ``told`` makes the StorageError.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, (CheckbackError, MemoryError, *but)) or not is_error(error):
            raise
        raise (told or file_unreadable)(place, error) from error


def file_unreadable(path: str, error: BaseException) -> StorageError:
    """The error for a data file that cannot be read."""
    return StorageError(f"cannot be read: {first_line(error)}", path)


def as_reason(line: str) -> str:
    """An error's line for the column `reason`: printable, truncated."""
    text = "".join(char if char.isprintable() else " " for char in line)
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 3]}..."


def _is_own(error: BaseException) -> bool:
    if not is_error(error) or isinstance(error, (FencedError, StateError, ConnectionError)) or of_machine(error):
        return False
    return not any(map(said_by_machine, all_lines(error))) and not _OTHERS.search(_classes(error))


def _classes(error: BaseException) -> str:
    """Class names of the error, and of its Java causes."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    names = [f"{type(error).__module__}.{type(error).__name__}"]
    while java is not None:
        names.append(str(java.getClass().getName()))
        java = java.getCause()
    return " ".join(names)
