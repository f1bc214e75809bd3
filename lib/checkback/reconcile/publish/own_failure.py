"""Whether an error is the fault of one table, which then does not stop the others. Pure; imports no Spark."""

from __future__ import annotations

import re

from checkback.errors import CheckbackError, FencedError, StateError, all_lines, of_machine, said_by_machine
from checkback.reconcile.publish.unpublished import as_reason

#: matched against class names, which no topic name can equal: a second application writes the same batches, and a call
#: after Spark has died
_OTHERS = re.compile(r"io\.delta\.exceptions\.ConcurrentTransactionException|py4j\.protocol\.Py4JNetworkError")
#: lines of Spark's that precede a task's real error
_SAYS_LITTLE = re.compile(r"\[TASK_WRITE_FAILED\]|Job aborted|Exception thrown in awaitResult")


def own_failure(error: BaseException) -> str:
    """Why a table could not be created, written or read, in one line; re-raises errors that are not the table's own."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error
    if isinstance(error, (FencedError, StateError, ConnectionError)) or of_machine(error):
        raise error
    lines = list(all_lines(error))
    if any(said_by_machine(line) for line in lines) or _OTHERS.search(_classes(error)):
        raise error
    if isinstance(error, CheckbackError):
        return as_reason(str(error))
    telling = (line for line in lines if line and not _SAYS_LITTLE.match(line))
    return as_reason(next(telling, type(error).__name__))


def _classes(error: BaseException) -> str:
    """Class names of the error, and of its Java causes."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    names = [f"{type(error).__module__}.{type(error).__name__}"]
    while java is not None:
        names.append(str(java.getClass().getName()))
        java = java.getCause()
    return " ".join(names)
