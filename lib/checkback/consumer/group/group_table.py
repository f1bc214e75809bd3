"""The table of a consumer group, ``consumer_groups/<group>``: its state, replaced by each commit.

A commit adds one file with all rows and removes the one before, as the version after the one that was read: a member
that has read an older state cannot write (optimistic concurrency, PROTOCOL.md of delta-io/delta).
"""

from __future__ import annotations

import random
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.consumer.group.group_reader import group_unreadable, state_in
from checkback.consumer.group.group_rows import to_rows
from checkback.consumer.group.group_state import GroupState
from checkback.errors import StorageError
from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.files.lease import boot_time
from checkback.storage.files.table_files import commit_file
from checkback.storage.log.commit_reader import read_actions
from checkback.storage.log.delta_errors import DELTA_ERRORS
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.log.log_store import commit_mark, is_commit, write_commit
from checkback.storage.log.snapshot_files import open_table
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import GROUP_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkback.storage.log.log_store import Mark
    from checkback.storage.tables import Tables

#: attempts at a commit while other members' commits come first
_ATTEMPTS = 200
#: versions between checkpoints, after which older commits and files may go
_CHECKPOINT = 100
#: Age of what is deleted (ms): nobody reads a state for as long.
_KEPT_MS = 3_600_000
#: Time since the log was last read (s) after which it is listed: commits may have been cleaned up meanwhile.
_LIST_S = 60.0
_STATE = re.compile(r"part-[0-9a-f-]{36}\..*\.parquet")


class GroupTable:
    """The state of one group. Not thread-safe."""

    def __init__(self, tables: Tables, group: str) -> None:
        """Create the table if it does not exist. Raises StorageError."""
        self._name = GROUP_PREFIX + group
        self._root = tables.root
        self._sync = tables.sync
        self._place = tables.location(self._name)
        #: the table's id: another one if it was recreated
        self.table_id = DeltaLog.created(self._name, self._place, self._sync).table_id()
        self._version = -1
        self._file: str | None = None
        self._state = GroupState()
        self._read_at = 0.0
        self._mark: Mark | None = None
        self._list()

    @property
    def state(self) -> GroupState:
        """The state as last read or written."""
        return self._state

    def written_at(self) -> int:
        """When the state was written that was last read (ms). Raises StorageError."""
        return max((each["timestamp"] for each in read_actions(self._place, self._version, "commitInfo")), default=0)

    def refresh(self) -> bool:
        """Read the newest state; True if it is new. Raises StorageError."""
        before = self._version
        if boot_time() > self._read_at + _LIST_S or not is_commit(self._place, self._version, self._mark):
            self._list()
        else:
            newest = self._version
            try:
                while table_files.exists(commit_file(self._place, newest + 1)):
                    newest += 1
            except OSError as error:
                raise StorageError(f"the group's table cannot be read: {error}", self._place) from error
            self._read_at = boot_time()
            if newest > self._version:
                self._load(newest)
        return self._version > before

    def update(self, change: Callable[[GroupState], GroupState | None]) -> GroupState | None:
        """Write what ``change`` makes of the newest state; None if it makes None, with nothing written.

        ``change`` is called again on a newer state if another member has written first. Raises StorageError.
        """
        for attempt in range(_ATTEMPTS):
            self.refresh()
            changed = change(self._state)
            if changed is None:
                return None
            if changed is self._state or self._commit(changed):
                return self._state
            time.sleep(random.uniform(0, min(0.002 * attempt, 0.1)))  # noqa: S311 - spreads the members
        raise StorageError("too many concurrent commits", self._place, "run fewer members in the group")

    def _commit(self, state: GroupState) -> bool:
        try:
            with FileWriter(self._root, sync=self._sync) as writer:
                writer.write(self._name, to_rows(state))
                files = writer.close()  # none if the state is empty
        except OSError as error:
            raise StorageError(f"cannot be written: {error.strerror or error}", self._place) from error
        now = round(time.time() * 1000)
        operation = {"operation": "WRITE", "operationParameters": {"mode": "Overwrite"}, "engineInfo": "checkback"}
        actions: list[dict[str, object]] = [
            {"commitInfo": {"timestamp": now, **operation}},
        ]
        actions.extend({"add": file.add_action(now)} for file in files)
        if self._file is not None:
            # Without a time no checkpoint lists it: it would list a week of them, in the end hundreds of MB.
            removed = {"path": self._file, "deletionTimestamp": 0, "dataChange": True}
            actions.append({"remove": removed})
        mark = write_commit(self._place, self._version + 1, actions, self._sync)
        if mark is None:
            with suppress(OSError):
                table_files.remove(*(f"{self._place}/{file.path}" for file in files))
            return False
        self._version, self._mark = self._version + 1, mark
        self._file, self._state = next((file.path for file in files), None), state
        if self._version % _CHECKPOINT == 0 and files:
            self._clean_up()
        return True

    def _list(self) -> None:
        """Read the newest state by Delta's checkpoint and a listing of the log."""
        with reading(self._place, group_unreadable):
            table = open_table(self._place)
            paths = pa.table(table.get_add_actions()).column("path").to_pylist()
            version = int(table.version())
        self._read_at = boot_time()
        mark = commit_mark(self._place, version)
        if version != self._version or mark != self._mark:
            self._read(version, paths)

    def _load(self, version: int) -> None:
        paths = [action["path"] for action in read_actions(self._place, version, "add")]
        if paths:
            self._read(version, paths)
        else:  # a commit of somebody else's, such as a changed property
            self._list()

    def _read(self, version: int, paths: list[str]) -> None:
        self._state = state_in(self._place, paths)
        self._version, self._file = version, paths[0] if paths else None
        self._mark = commit_mark(self._place, version)

    def _clean_up(self) -> None:
        """Write a checkpoint; delete commits and files that nobody needs. Best effort."""
        with suppress(StorageError, OSError, *DELTA_ERRORS):
            entries = table_files.entries(self._place)
            # By the times of the file system or store: this machine's clock may be hours ahead.
            now = next(entry.written for entry in entries if entry.name == self._file)
            table = open_table(self._place)
            table.create_checkpoint()
            table.cleanup_metadata()
            old = [
                entry.name
                for entry in entries
                if _STATE.fullmatch(entry.name) and entry.written < now - _KEPT_MS and entry.name != self._file
            ]
            table_files.remove(*(f"{self._place}/{name}" for name in old))
