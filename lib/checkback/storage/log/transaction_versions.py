"""All Delta transaction identifiers of a table, read from the log's newest checkpoint and the commits after it.

delta-rs looks them up one by one and rereads the log for each: 100,000 of them take minutes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from checkback.errors import StorageError
from checkback.storage.files import table_files
from checkback.storage.files.log_files import LOG, commit_file
from checkback.storage.files.object_store import concurrently
from checkback.storage.log.commit_reader import actions_of_kind
from checkback.storage.log.torn_commits import last_checkpoint
from checkback.storage.own_failure import reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\.parquet")


class TransactionVersions:
    """The last version of each application, updated incrementally: each commit is read once."""

    def __init__(self, place: str) -> None:
        """``place``: the table's absolute folder, or its URI."""
        self._place = place
        self._log = f"{place}/{LOG}"
        self._version = -1
        self._found: dict[str, int] = {}

    def at(self, version: int) -> Mapping[str, int] | None:
        """Last version by application as of a table version; None if only a Delta reader can tell.

        None if the log begins with a multi-part checkpoint or cannot be read.
        """
        for anew in (not 0 <= self._version <= version, True):
            try:
                with reading(self._place, but=(FileNotFoundError,)):
                    if anew:
                        self._begin_at(*self._checkpoint(version))
                    unread = range(self._version + 1, version + 1)
                    for number, found in zip(unread, concurrently(self._log, self._commit, unread), strict=True):
                        self._found |= found
                        self._version = number
            except FileNotFoundError:
                continue  # log cleanup removes commits older than a checkpoint
            except StorageError:
                break
            return self._found
        self._begin_at(-1, {})
        return None

    def follow(self, version: int, commit: Iterable[Mapping[str, Any]]) -> None:
        """Include a version's commit, which has been read already: a list of actions."""
        if self._version == version - 1:
            self._found |= {txn["appId"]: int(txn["version"]) for txn in (each.get("txn") for each in commit) if txn}
            self._version = version

    def _begin_at(self, version: int, found: dict[str, int]) -> None:
        self._version = version
        self._found = found

    def _checkpoint(self, most: int) -> tuple[int, dict[str, int]]:
        """The newest single-file checkpoint up to version ``most``: its version (-1 = none) and identifiers."""
        names = self._checkpoints(last_checkpoint(self._place))
        if not any(version <= most for version in names):
            names = self._checkpoints()
        version = max((version for version in names if version <= most), default=-1)
        if version < 0:
            return version, {}
        found = (
            pq.read_table(table_files.source(f"{self._log}/{names[version]}"), columns=["txn"])
            .column("txn")
            .drop_null()
            .to_pylist()
        )
        return version, {action["appId"]: action["version"] for action in found}

    def _checkpoints(self, since: int = -1) -> dict[int, str]:
        """The names of the single-file checkpoints from version ``since`` on: a log is listed by the thousand files."""
        names = table_files.names_after(self._log, f"{since:020}") if since >= 0 else table_files.names(self._log)
        return {int(match[1]): match[0] for match in map(_CHECKPOINT.fullmatch, names) if match}

    def _commit(self, version: int) -> dict[str, int]:
        actions = actions_of_kind(commit_file(self._place, version), "txn")
        return {action["appId"]: int(action["version"]) for action in actions}
