"""Tables that `checkback restore` has not brought back completely."""

from __future__ import annotations

from checkback.errors import StateError
from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.log.delta_errors import unreadable

#: in the tables' place while they are brought back; its content is the backup's place
RESTORING = "_restoring"


def refuse_half_restored(root: str) -> None:
    """Raise StateError if a restore to this place has been interrupted, or is not done yet; StorageError."""
    mark = f"{root}/{RESTORING}"
    with reading(root, unreadable):
        there = table_files.read(mark).decode() if table_files.exists(mark) else None
    if there is not None:
        fix = f"wait for it, or run it again: checkback restore {there}"
        raise StateError("a restore of these tables is not done", root, fix)
