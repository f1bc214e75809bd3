"""Writing one commit file of a Delta table's log, if that version does not exist yet (LogStore.write of Delta).

In a local folder by a hard link, which fails if the name exists; in an object store by a conditional PUT
(If-None-Match). Of processes that write the same version one succeeds.
"""

from __future__ import annotations

import json
import os
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from checkback.errors import NO_SPACE, NO_SPACE_FIX, StorageError
from checkback.storage.files import table_files
from checkback.storage.files.fsync import flush_file, flush_folder
from checkback.storage.files.log_files import commit_file
from checkback.storage.files.object_store import create, is_registered

if TYPE_CHECKING:
    from collections.abc import Sequence

Action = dict[str, Any]
#: key in a commit's commitInfo: unique for each attempt at a commit
COMMIT_ID = "checkback.commit"


def write_commit(place: str, version: int, actions: Sequence[Action], sync: bool) -> bool:
    """Commit these actions as ``version`` of the table in ``place``; False if another process has written it.

    The first action is a commitInfo. ``sync``: flushed to disk when this returns (local folders). The caller must have
    read the log up to ``version - 1`` recently: log cleanup may have removed a version that existed. Raises
    StorageError.
    """
    path = commit_file(place, version)
    attempt = uuid.uuid4().hex
    info = {**actions[0]["commitInfo"], COMMIT_ID: attempt}
    content = "".join(f"{json.dumps(action)}\n" for action in [{"commitInfo": info}, *actions[1:]]).encode()
    try:
        if is_registered(place):
            return _put(path, content, attempt)
        return _link(path, content, sync)
    except OSError as error:
        fix = NO_SPACE_FIX if NO_SPACE in str(error) else ""
        raise StorageError(f"the commit failed: {error.strerror or error}", path, fix) from error


def _link(path: str, content: bytes, sync: bool) -> bool:
    new = os.path.join(os.path.dirname(path), f".{uuid.uuid4().hex}.tmp")
    try:
        with open(new, "wb") as file:
            file.write(content)
        if sync:
            flush_file(new)
        os.link(new, path)
    except FileExistsError:
        return False
    finally:
        with suppress(FileNotFoundError):
            os.remove(new)
    if sync:
        flush_folder(os.path.dirname(path))
    return True


def _put(path: str, content: bytes, attempt: str) -> bool:
    try:
        create(path, content)
    except OSError as error:
        # A request that was done and answered with an error is repeated, and meets its own object; or is not repeated.
        try:
            first = table_files.lines(path)[0]
        except (OSError, IndexError):
            raise error from None
        return bool(json.loads(first).get("commitInfo", {}).get(COMMIT_ID) == attempt)
    return True
