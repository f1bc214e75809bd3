"""Crash recovery of local tables and of their queries' checkpoints, before anything reads them."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from checkback.storage.checkpoints.torn_checkpoint import remove_unfinished, torn
from checkback.storage.files import filesystem, table_files
from checkback.storage.files.paths import local_path
from checkback.storage.log.torn_commits import recover_log
from checkback.storage.own_failure import own_failure
from checkback.storage.schemas import SOURCES, TOPIC_PREFIX

if TYPE_CHECKING:
    from checkback.storage.tables import Tables

_log = logging.getLogger(__name__)


def recover_tables(tables: Tables, force: bool = False) -> list[str]:
    """Move torn commits (after a power cut) of local tables aside; returns one line for each table affected.

    ``force``: see `torn_commits`. Raises StorageError.
    """
    found = []
    for name in _folders(tables):
        try:
            moved = recover_log(tables.location(name), force)
        except Exception as error:
            if not name.startswith(TOPIC_PREFIX):
                raise
            # A topic table does not block the others: its messages go to `unpublished`.
            _log.warning("%s", own_failure(error))
            continue
        if moved is not None:
            found.append(f"{name}: {moved.said}; moved aside: {', '.join(moved.names)}")
    return found


def torn_query(tables: Tables, query: str) -> str | None:
    """How a power cut has torn a query's checkpoint in a local folder; None if it has not.

    Then what an unfinished batch has left there is removed. The query must not be running. Raises StorageError.
    """
    place = local_path(tables.checkpoint(query))
    if place is None or not tables.by_files or not os.path.isdir(place):
        return None
    why = torn(place, len(SOURCES.get(query, (query,))))
    if why is None:
        remove_unfinished(place)
    return why


def _folders(tables: Tables) -> list[str]:
    """Names of the local tables that have a log folder, readable or not."""
    if not tables.local:
        return []
    names = [name for name in filesystem.names(None, tables.root) if not name.startswith(("_", "."))]
    place = f"{tables.root}/{TOPIC_PREFIX}"
    topics = [TOPIC_PREFIX + name for name in table_files.names(place)]
    return sorted(name for name in names + topics if os.path.exists(f"{tables.location(name)}/_delta_log"))
