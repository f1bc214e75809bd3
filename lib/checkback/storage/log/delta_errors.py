"""delta-rs's errors as StorageErrors of one line."""

from __future__ import annotations

import re

from deltalake.exceptions import DeltaError

from checkback.errors import NO_SPACE, NO_SPACE_FIX, StorageError

#: table property: retention of transaction identifiers (PROTOCOL.md of delta-io/delta)
FORGETS = "delta.setTransactionRetentionDuration"
#: what delta-rs raises
DELTA_ERRORS = (DeltaError, OSError)
#: A request that the object store did not answer, or refused (as delta-rs and obstore say it).
_REQUEST = re.compile(r"Error performing [A-Z]+ |HTTP error|Error getting list")
#: A table that delta-rs does not know to read, as deletion vectors make it: the log is as it should be.
_FEATURE = re.compile(r"(?:reader|writer) features: \{([^}]*)\}")
_STORE_FIX = "repair the access to the object store (address, network, credentials), then run again; nothing is damaged"
#: delta-rs in a process that was forked from one that had used it
_FORKED = "Forked process detected"
_FORKED_FIX = (
    "nothing is damaged, but its parent had read Delta tables before the fork: fork before that, or start the process "
    "by spawn (multiprocessing.get_context('spawn'))"
)
_ARROW, _COLOUR = "\u21b3", re.compile("\x1b\\[[0-9;]*m")


def storage_error(what: str, place: str, error: BaseException) -> StorageError:
    """``what`` failed in the table's folder ``place``."""
    return StorageError(f"{what}: {_cause(error)}", place, NO_SPACE_FIX if NO_SPACE in str(error) else "")


def commit_unreadable(file: str, error: BaseException) -> StorageError:
    """The error for a commit file that cannot be read."""
    return StorageError("a commit of the table's log cannot be read", file, read_fix(error, "restore it from a backup"))


def unreadable(place: str, error: BaseException) -> StorageError:
    """The log of the table in ``place`` cannot be read."""
    fix = read_fix(error, "restore the folder _delta_log")
    return StorageError(f"the table's log cannot be read: {_cause(error)}", place, fix)


def forgotten(place: str, table: str) -> StorageError:
    """The error for a table that may have dropped what an application has committed. ``table``: its name in SQL."""
    fix = f"ALTER TABLE {table} UNSET TBLPROPERTIES ('{FORGETS}')"
    return StorageError(f"{FORGETS} is set: nobody can tell what was committed", place.removeprefix("file://"), fix)


def read_fix(error: BaseException, damaged: str) -> str:
    """The fix for a failed read: ``damaged``, unless the fault is not the table's.

    That is: the object store did not answer, or refused; only Spark reads the table; the process was forked. A restore
    would then put back what is older.
    """
    if _FORKED in str(error):
        return _FORKED_FIX
    if found := _FEATURE.search(str(error)):
        features = found[1].replace("'", "")
        return (
            "nothing is damaged, but only Spark reads it: ask in a notebook, or take back what made it so "
            f"(ALTER TABLE ... DROP FEATURE {features})"
        )
    failed = _REQUEST.search(str(error)) and not isinstance(error, FileNotFoundError)
    return _STORE_FIX if failed else damaged


def _cause(error: BaseException) -> str:
    """The root cause of a chain of errors (delta-rs colours it, with an arrow before each cause)."""
    lines = [_COLOUR.sub("", line).strip() for line in str(error).splitlines()]
    causes = [line.removeprefix(_ARROW).strip() for line in lines if line.startswith(_ARROW)]
    return next((line for line in [*causes[-1:], *lines] if line), type(error).__name__)
