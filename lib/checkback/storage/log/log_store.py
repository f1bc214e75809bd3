"""Writing one commit file of a Delta table's log, if that version does not exist yet (LogStore.write of Delta).

In a local folder by a hard link, which fails if the name exists; in an object store by a conditional PUT
(If-None-Match). Of processes that write the same version one succeeds.

A commit file never changes: one that has another mark than it had is another table's, or was put back.
"""

from __future__ import annotations

import json
import os
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from checkback.errors import NO_SPACE, NO_SPACE_FIX, StorageError
from checkback.storage.files import table_files
from checkback.storage.files.fsync import flush_file, flush_folder
from checkback.storage.files.object_store import create, is_registered
from checkback.storage.files.paths import NO_LINKS, NO_LINKS_FIX, lacks_links
from checkback.storage.files.table_files import commit_file
from checkback.storage.log.delta_errors import unreadable

if TYPE_CHECKING:
    from collections.abc import Sequence

Action = dict[str, Any]
#: what tells a commit's file from another one in its place: its ETag, or what the file system says of it
Mark: TypeAlias = "tuple[int | str | None, ...]"
#: key in a commit's commitInfo: unique for each attempt at a commit
COMMIT_ID = "checkback.commit"


def commit_mark(place: str, version: int) -> Mark | None:
    """The mark of a version's commit file; None if it is not there. Raises StorageError."""
    path = commit_file(place, version)
    try:
        return (table_files.etag(path),) if is_registered(path) else _mark(os.stat(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(place, error) from error


def is_commit(place: str, version: int, mark: Mark | None) -> bool:
    """True if the version's commit file is the one with this mark; False without a mark, for it was gone already.

    Raises StorageError.
    """
    return mark is not None and mark == commit_mark(place, version)


def _mark(about: os.stat_result) -> Mark:
    return about.st_ino, about.st_mtime_ns, about.st_size


def write_commit(place: str, version: int, actions: Sequence[Action], sync: bool) -> Mark | None:
    """Commit these actions as ``version`` of the table in ``place``; None if another process has written it.

    Returns the file's mark.

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
        why, fix = error.strerror or str(error), NO_SPACE_FIX if NO_SPACE in str(error) else ""
        if lacks_links(error):
            why, fix = NO_LINKS, NO_LINKS_FIX
        raise StorageError(f"the commit failed: {why}", path, fix) from error


def _link(path: str, content: bytes, sync: bool) -> Mark | None:
    new = os.path.join(os.path.dirname(path), f".{uuid.uuid4().hex}.tmp")
    try:
        with open(new, "wb") as file:
            file.write(content)
        if sync:
            flush_file(new)
        os.link(new, path)
        mark = _mark(os.stat(new))
    except FileExistsError:
        return None
    finally:
        with suppress(FileNotFoundError):
            os.remove(new)
    if sync:
        flush_folder(os.path.dirname(path))
    return mark


def _put(path: str, content: bytes, attempt: str) -> Mark | None:
    try:
        return (create(path, content),)
    except OSError as error:
        # A request that was done and answered with an error is repeated, and meets its own object; or is not repeated.
        try:
            first = table_files.lines(path)[0]
        except (OSError, IndexError):
            raise error from None
        mine = json.loads(first).get("commitInfo", {}).get(COMMIT_ID) == attempt
        return (table_files.etag(path),) if mine else None
