"""delta-rs's errors as StorageErrors of one line."""

from __future__ import annotations

import re

from deltalake.exceptions import DeltaError

from checkback.errors import NO_SPACE, NO_SPACE_FIX, StorageError

#: what delta-rs raises
DELTA_ERRORS = (DeltaError, OSError)
_ARROW, _COLOUR = "\u21b3", re.compile("\x1b\\[[0-9;]*m")


def storage_error(what: str, place: str, error: Exception) -> StorageError:
    """``what`` failed in the table's folder ``place``."""
    return StorageError(f"{what}: {_cause(error)}", place, NO_SPACE_FIX if NO_SPACE in str(error) else "")


def unreadable(place: str, error: Exception) -> StorageError:
    """The log of the table in ``place`` cannot be read."""
    return StorageError(f"the table's log cannot be read: {_cause(error)}", place, "restore the folder _delta_log")


def _cause(error: Exception) -> str:
    """The root cause of a chain of errors (delta-rs colours it, with an arrow before each cause)."""
    lines = [_COLOUR.sub("", line).strip() for line in str(error).splitlines()]
    causes = [line.removeprefix(_ARROW).strip() for line in lines if line.startswith(_ARROW)]
    return next((line for line in [*causes[-1:], *lines] if line), type(error).__name__)
