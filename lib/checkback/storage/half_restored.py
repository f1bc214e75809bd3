"""Tables that `checkback restore` has not brought back completely."""

from __future__ import annotations

from checkback.errors import StateError
from checkback.storage.files import table_files

#: in the tables' place while they are brought back; its content is the backup's place
RESTORING = "_restoring"


def refuse_half_restored(root: str) -> None:
    """Raise StateError if a restore to this place has been interrupted, or is not done yet."""
    mark = f"{root}/{RESTORING}"
    if table_files.exists(mark):
        fix = f"wait for it, or run it again: checkback restore {table_files.read(mark).decode()}"
        raise StateError("a restore of these tables is not done", root, fix)
