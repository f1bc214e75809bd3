"""Whether a scheduled run of `land --table` has anything to do, determined from files: if not, Spark is not started."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from checkback.errors import StorageError
from checkback.storage.checkpoints.checkpoint import last_done, read_checkpoint
from checkback.storage.checkpoints.seen_commits import replaced
from checkback.storage.files.object_store import canonical, is_registered, options_of
from checkback.storage.files.paths import local_path
from checkback.storage.log.snapshot_files import open_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from checkback.storage.tables import Tables

#: of a source table's query and checkpoint; Delta's id of the table follows
QUERY = "land-table-"


def all_landed(tables: Tables, sources: Iterable[str]) -> bool:
    """True if each source is a Delta table with no version after the last that has landed.

    False if that cannot be read without Spark: in another place than a local folder or the tables' object store.
    """
    try:
        return tables.readable and all(_has_landed(tables, source) for source in sources)
    except (StorageError, DeltaError, OSError):
        return False


def _has_landed(tables: Tables, source: str) -> bool:
    table = _opened(tables, source)
    if table is None:
        return False
    query = QUERY + str(table.metadata().id)
    place = tables.checkpoint(query)
    found = read_checkpoint(None, place) if is_registered(place) or local_path(place) is not None else None
    if found is None or found.newest is None or last_done(None, place) != found.newest.batch_id:
        return False
    position = found.newest.position(0)
    if position is None or position.starting or position.index >= 0:
        return False
    return table.version() == position.version - 1 and replaced(None, tables, query) is None


def _opened(tables: Tables, source: str) -> DeltaTable | None:
    folder = local_path(source)
    if folder is not None:
        return open_table(folder) if os.path.isdir(f"{folder}/_delta_log") else None
    place = canonical(source)
    if place is None or not is_registered(tables.root) or place.split(":")[0] != tables.root.split(":")[0]:
        return None
    return DeltaTable(place, storage_options=options_of(tables.root) or None)
