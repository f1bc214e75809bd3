"""Crash recovery of local tables and of their queries' checkpoints, before anything reads them."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from checkback.storage.checkpoints.torn_checkpoint import remove_unfinished
from checkback.storage.files import filesystem, table_files
from checkback.storage.files.paths import local_path
from checkback.storage.log.torn_commits import recover_log
from checkback.storage.own_failure import own_failure
from checkback.storage.schemas import TOPIC_PREFIX

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
            torn = recover_log(tables.location(name), force)
        except Exception as error:
            if not name.startswith(TOPIC_PREFIX):
                raise
            # A topic table does not block the others: its messages go to `unpublished`.
            _log.warning("%s", own_failure(error))
            continue
        if torn is not None:
            found.append(f"{name}: {torn.said}; moved aside: {', '.join(torn.names)}")
    return found


def recover_query(tables: Tables, query: str, *sources: str) -> None:
    """Remove from a query's checkpoint the torn files of a batch that no table has committed yet.

    ``sources``: the query's source tables, in its order. The query must not be running. Raises StorageError.
    """

    def has_batch(query_id: str, batch_id: int) -> bool:
        """True if any table has a commit of the query's batch; an unreadable topic table is assumed to have one."""

        def has(name: str) -> bool:
            apps = (f"{who}{query_id}/{name}" for who in ("", "check/", "land/"))
            try:
                return any(tables.log(name).has(app, batch_id) for app in apps)
            except Exception as error:
                if not name.startswith(TOPIC_PREFIX):
                    raise
                own_failure(error)
                return True

        return any(map(has, _folders(tables)))

    place = local_path(tables.checkpoint(query))
    if place is not None and tables.by_files:
        remove_unfinished(place, [tables.location(name) for name in sources], has_batch)


def _folders(tables: Tables) -> list[str]:
    """Names of the local tables that have a log folder, readable or not."""
    if not tables.local:
        return []
    names = [name for name in filesystem.names(None, tables.root) if not name.startswith(("_", "."))]
    place = f"{tables.root}/{TOPIC_PREFIX}"
    topics = [TOPIC_PREFIX + name for name in table_files.names(place)]
    return sorted(name for name in names + topics if os.path.exists(f"{tables.location(name)}/_delta_log"))
