"""The end of a table's log, followed commit by commit, and appended to by one conditional write.

What an append must know of a log besides the table's metadata: the newest version, and what each application has
committed. delta-rs also knows the files, for which it lists the log and reads each commit: in an object store ten
requests for each append. Here it is two, side by side, that say that nothing is new, and one that commits. delta-rs
also looks up applications one by one and rereads the log for each: 100,000 of them take minutes.
"""

from __future__ import annotations

import math
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from checkback.errors import StorageError
from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.files.object_store import concurrently, is_registered
from checkback.storage.files.table_files import LOG, commit_file
from checkback.storage.log.checksum import after
from checkback.storage.log.commit_reader import actions_of_kind, parse_action
from checkback.storage.log.delta_errors import unreadable
from checkback.storage.log.log_store import commit_mark, write_commit
from checkback.storage.log.torn_commits import ACTIONS, last_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from checkback.storage.log.checksum import Checksum
    from checkback.storage.log.log_store import Action, Mark
    from checkback.storage.parquet.parquet_files import ParquetFile

    Commit = list[Action]


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
        """Last version by application as of a table version; None if only a Delta reader knows.

        None if the log begins with a multi-part checkpoint or cannot be read.
        """
        for restart in (not 0 <= self._version <= version, True):
            try:
                with reading(self._place, but=(FileNotFoundError,)):
                    if restart:
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


#: commits that are read one by one; if there are more, the log is listed
_MOST = 20


class LogTail:
    """The log of the table in ``place``, known up to ``version``. Not thread-safe."""

    def __init__(self, place: str, version: int) -> None:
        """``place``: the table's absolute folder, or its URI."""
        self._place = place
        self.at(version)
        #: the known version's commit is another file than it was: the table was recreated, or restored
        self.replaced = False
        #: it is not there any more: cleaned up, or the table was restored to an older state
        self.gone = False
        self.transactions = TransactionVersions(place)
        #: a version up to the known one, and its checksum
        self.checksum: tuple[int, Checksum] | None = None

    def at(self, version: int) -> None:
        """The log is known up to this version. Raises StorageError."""
        self.version = version
        # in an object store a request, which the next look makes
        self._mark: Mark | None = None if is_registered(self._place) else commit_mark(self._place, version)

    def read(self) -> list[Commit] | None:
        """The commits after the known version; None if the log must be listed, which then stays as it was.

        That is if there are many, or if the known version is not there any more: log cleanup removes it some day, and
        possibly the next one while later ones exist; or the table was recreated (`replaced`). Raises
        StorageError.
        """
        look, following = partial(commit_mark, self._place, self.version), partial(self._commit, self.version + 1)
        steps: list[Callable[[], Any]] = [look, following]
        mark, first = concurrently(self._place, lambda step: step(), steps)
        self.replaced = None not in (mark, self._mark) and mark != self._mark
        self.gone = mark is None
        if self.gone or self.replaced:
            return None
        self._mark = mark
        commits = self._after(first, _MOST)
        return None if commits is None else self._follow_all(commits)

    def read_on(self) -> list[Commit]:
        """All commits after the known version, however many. Raises StorageError."""
        return self._follow_all(self._after(self._commit(self.version + 1)) or [])

    def commit(self, files: Sequence[ParquetFile], versions: Mapping[str, int]) -> bool:
        """Append the files and set the applications' versions as the next version; False if another process wrote it.

        The table takes files unchanged (`compatibility.takes_files`). Raises StorageError.
        """
        actions = _actions(files, versions)
        mark = write_commit(self._place, self.version + 1, actions, sync=False)
        if mark is None:
            return False
        self._follow(actions)
        self._mark = mark
        return True

    def _after(self, following: Commit | None, most: float = math.inf) -> list[Commit] | None:
        commits: list[Commit] = []
        while following is not None:
            commits.append(following)
            if len(commits) > most:
                return None
            following = self._commit(self.version + 1 + len(commits))
        return commits

    def _follow_all(self, commits: list[Commit]) -> list[Commit]:
        for commit in commits:
            self._follow(commit)
        if commits:
            self.at(self.version)
        return commits

    def _follow(self, commit: Commit) -> None:
        if self.checksum is not None and self.checksum[0] == self.version:
            found = after(self.checksum[1], [commit])
            self.checksum = None if found is None else (self.version + 1, found)
        with reading(self._place, unreadable):
            self.transactions.follow(self.version + 1, commit)
        self.version += 1

    def _commit(self, version: int) -> Commit | None:
        """The actions of a version's commit; None if it does not exist."""
        try:
            with reading(self._place, unreadable, but=(FileNotFoundError,)):
                actions = [parse_action(line) for line in table_files.lines(commit_file(self._place, version))]
        except FileNotFoundError:
            return None
        if not actions:
            raise unreadable(self._place, ValueError(f"version {version} is empty"))
        return actions


def _actions(files: Sequence[ParquetFile], versions: Mapping[str, int]) -> list[Action]:
    """As delta-rs writes them."""
    now = round(time.time() * 1000)
    about = {
        "timestamp": now,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": "[]"},
        "engineInfo": "checkback",
        ACTIONS: str(len(files) + len(versions)),  # reveals a commit truncated between two of them
    }
    transactions = [{"appId": app, "version": version, "lastUpdated": now} for app, version in versions.items()]
    return [
        {"commitInfo": about},
        *({"add": file.add_action(now)} for file in files),
        *({"txn": each} for each in transactions),
    ]
