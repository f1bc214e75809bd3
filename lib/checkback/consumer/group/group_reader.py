"""Consumer groups, read only: nothing is created or written, so any process may look at any time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import TableNotFoundError

from checkback.consumer.group.group_rows import from_rows
from checkback.consumer.group.group_state import GroupState
from checkback.errors import SettingsError, StorageError
from checkback.messages.names import is_consumer_group
from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.log.delta_errors import storage_error
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.log.snapshot_files import open_table
from checkback.storage.schemas import GROUP_PREFIX

if TYPE_CHECKING:
    from checkback.storage.tables import Tables


@dataclass(frozen=True)
class StoredGroup:
    """A group's state, and when it was last written (ms): its members write some times in each session."""

    state: GroupState
    written_at: int


def group_names(tables: Tables) -> list[str]:
    """The names of the consumer groups, sorted. Raises StorageError."""
    place = f"{tables.root}/{GROUP_PREFIX.rstrip('/')}"
    try:
        found = [name for name in table_files.folders(place) if is_consumer_group(name)]
    except OSError as error:
        raise StorageError(f"cannot be listed: {error}", place) from error
    with ThreadPoolExecutor(max_workers=16) as pool:
        there = pool.map(lambda name: DeltaLog.exists(tables.location(GROUP_PREFIX + name)), found)
        return sorted(name for name, exists in zip(found, there, strict=True) if exists)


def chosen_groups(tables: Tables, group: str | None) -> list[str]:
    """All groups, or this one. Raises SettingsError if there is no such group, StorageError."""
    if group is None:
        return group_names(tables)
    if not is_consumer_group(group) or not DeltaLog.exists(tables.location(GROUP_PREFIX + group)):
        raise no_such_group(tables, group)
    return [group]


def no_such_group(tables: Tables, group: str) -> SettingsError:
    """The error for a group that is not there, or was removed."""
    names = [name for name in group_names(tables) if name != group]
    known = f"there are {', '.join(names[:10])}" if names else "a PushConsumer makes one when it starts"
    return SettingsError("there is no such consumer group", group, known)


def read_group(tables: Tables, group: str) -> StoredGroup:
    """A group's newest state. Raises StorageError, also if there is no such group."""
    place = tables.location(GROUP_PREFIX + group)
    with reading(place, group_unreadable):
        table = open_table(place)
        paths = pa.table(table.get_add_actions()).column("path").to_pylist()
        written = next((int(commit["timestamp"]) for commit in table.history(1) if "timestamp" in commit), 0)
    return StoredGroup(state_in(place, paths), written)


def state_in(place: str, paths: list[str]) -> GroupState:
    """The state that the file of a group's table has; without one nobody has joined. Raises StorageError."""
    if len(paths) > 1:
        raise StorageError("somebody else has written into the group's table", place, "restore it (RESTORE)")
    with reading(place, _state_unreadable):
        found = [pq.read_table(table_files.source(f"{place}/{path}"), partitioning=None) for path in paths]
        return from_rows(found[0]) if found else GroupState()


def group_unreadable(place: str, error: BaseException) -> StorageError:
    """The error for a group's table that cannot be opened."""
    if isinstance(error, TableNotFoundError):
        return StorageError("there is no such consumer group", place)
    return storage_error("the group's table cannot be read", place, error)


def _state_unreadable(place: str, error: BaseException) -> StorageError:
    """The error for a group's file that cannot be read; an error may quote what is in it."""
    return StorageError(f"the group's state cannot be read: {type(error).__name__}", place)
