"""The commit files of a Delta table, read one by one: commit timestamps and rows added.

This needs neither Spark nor a snapshot of the table, so it is fast however long the log is (PROTOCOL.md of
delta-io/delta: Delta Log Entries, Checkpoints).
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.files.object_store import concurrently
from checkback.storage.files.table_files import COMMIT, LOG, commit_file, versions
from checkback.storage.log.delta_errors import commit_unreadable, unreadable
from checkback.storage.log.torn_commits import refuse_torn

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\..*parquet")
#: kinds of actions that add rows
_APPENDS = frozenset({"commitInfo", "add", "txn"})
#: files that are looked for by their time, and so many commits before and from it on
_FEW, _NEAR = 8, 16


@dataclass(frozen=True)
class Backlog:
    """A backlog: unread rows, and when the first of them landed (ms); None if there are none."""

    rows: int
    since: int | None


@dataclass(frozen=True)
class MostFiles:
    """The limit of what a batch reads of a table: it takes files until they are so many or have so many bytes."""

    files: int
    size: int


@dataclass(frozen=True)
class CommitReader:
    """A table's commits when listed. ``oldest``: the first version that can still be read."""

    place: str
    oldest: int
    newest: int

    @classmethod
    def of(cls, place: str, since: int = 0) -> CommitReader | None:
        """The commits of the table in the folder from version ``since`` on; None if there are none.

        Raises StorageError.
        """
        log = f"{place}/{LOG}"
        with reading(place, unreadable):
            names = table_files.names_after(log, f"{since:020}") if since > 0 else table_files.names(log)
        there = {int(match[1]) for match in map(COMMIT.fullmatch, names) if match}
        if not there:
            return None
        # Without version 0 the table can only be read from a checkpoint on; its commits by themselves can.
        checkpoints = [int(match[1]) for match in map(_CHECKPOINT.fullmatch, names) if match]
        first = since if since in there else min(checkpoints, default=min(there))
        newest = max(there)
        refuse_torn(place)
        return cls(place, min((one for one in there if one >= first), default=newest), newest)

    def made_at(self, version: int) -> int:
        """The version's commit timestamp (ms). Raises StorageError."""
        actions = self._actions(version)
        with reading(self.place, unreadable):
            for action in actions:
                about = action.get("commitInfo", {})
                if "timestamp" in about:
                    return int(about.get("inCommitTimestamp", about["timestamp"]))
        return table_files.modified(commit_file(self.place, version))

    def after(self, version: int, index: int = -1) -> Backlog:
        """The rows added from ``version`` on, excluding that version's files up to ``index``.

        Rewritten files (dataChange false) and files without numRecords statistics are not counted.
        """
        total, since = 0, None
        for number, brought in self._brought_after(version, index):
            if since is None:
                since = self.made_at(number)
            with reading(self.place, unreadable):
                total += sum(int(json.loads(file.get("stats") or "{}").get("numRecords", 0)) for file in brought)
        return Backlog(total, since)

    def anything_after(self, version: int, index: int = -1) -> bool:
        """True if files of new rows were added from ``version`` on, excluding that version's files up to ``index``.

        Also true if the log no longer has the version. Raises StorageError.
        """
        return version < self.oldest or any(True for _ in self._brought_after(version, index))

    def only_appends(self, most: int) -> bool:
        """True if these are at most ``most`` commits, from version 0 on, that do nothing but add rows to its table.

        Raises StorageError.
        """
        if self.oldest > 0 or self.newest >= most:
            return False
        commits = list(concurrently(self.place, self._actions, range(self.newest + 1)))
        kinds = {kind for actions in commits[1:] for action in actions for kind in action}
        return kinds <= _APPENDS and not any("remove" in action for action in commits[0])

    def _brought_after(self, version: int, index: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Each version that added files of new rows (dataChange), with these files."""
        numbers = range(max(version, self.oldest), self.newest + 1)
        for number, actions in zip(numbers, concurrently(self.place, self._actions, numbers), strict=True):
            with reading(self.place, unreadable):
                added = [action["add"] for action in actions if "add" in action]
                brought = [file for file in added if file.get("dataChange", True)]
            brought = brought[index + 1 :] if number == version and index >= 0 else brought
            if brought:
                yield number, brought

    def _actions(self, version: int) -> list[dict[str, Any]]:
        return read_commit(self.place, version)


class Added(NamedTuple):
    """The version of a table that added a file; ``exact``: it also added the rows. ``committed``: when (ms)."""

    version: int
    exact: bool
    committed: int | None


def added_by(place: str, files: Collection[str], written: Mapping[str, int] | None = None) -> dict[str, Added]:
    """By a file's name which version of the table in ``place`` added it first, as far as the log tells.

    ``written``: when files were (ms), by name: then the commits of about that time are read first, and no others if
    they tell. Raises StorageError.
    """
    found: dict[str, Added] = {}
    with reading(place, unreadable):
        there = sorted(versions(place))
    if not there or not files:
        return found
    refuse_torn(place)
    commits = CommitReader(place, there[0], there[-1])
    made_at = lru_cache(commits.made_at)

    def added(version: int) -> list[tuple[str, bool]]:
        with reading(place, unreadable):
            actions = actions_of_kind(commit_file(place, version), "add")
            return [(unquote(one["path"]).rpartition("/")[2], one.get("dataChange", True)) for one in actions]

    def search(some: Sequence[int]) -> None:
        for version, new in zip(some, concurrently(place, added, some), strict=True):
            for file, exact in new:
                if file in files and file not in found:
                    found[file] = Added(version, exact, made_at(version))
            if len(found) == len(files):
                break

    times = written if written is not None and len(files) <= _FEW else {}
    for file in times.keys() & files:
        if file not in found:
            at = bisect_left(there, times[file], key=made_at)
            search(there[max(0, at - _NEAR) : at + _NEAR])
    if len(found) < len(files):
        search(there)
    return found


def read_commit(place: str, version: int) -> list[dict[str, Any]]:
    """The actions of a commit of the table in ``place``. Raises StorageError."""
    file = commit_file(place, version)
    with reading(file, unreadable):
        return [parse_action(line) for line in table_files.lines(file)]


def parse_action(line: str) -> dict[str, Any]:
    """One line of a commit. Raises anything if it is damaged."""
    found: dict[str, Any] = json.loads(line)
    if not isinstance(found, dict):
        raise TypeError("a line is no action")
    return found


def actions_of_kind(file: str, kind: str) -> Iterator[dict[str, Any]]:
    """Only the actions of one kind (``add``, ``remove``, ``txn``). Raises OSError, and anything if it is damaged."""
    begin = f'{{"{kind}"'
    yield from (json.loads(line)[kind] for line in table_files.lines(file) if line.startswith(begin))


def may_be_cut_off(place: str, begin: tuple[int, int], end: tuple[int, int], most: MostFiles) -> bool:
    """True if a batch that reads the files from ``begin`` to ``end`` may have left some for its limit ``most``.

    ``begin``, ``end``: a version, and the index up to which its files had been read, -1 = none of it. It depends on the
    log alone, so it is the same whenever it is asked. Rewritten files, which a batch does not read, count too. Also
    true if the log no longer has all of them. Raises StorageError.
    """
    if end[1] >= 0 or end[0] - begin[0] > most.files:
        return True

    def sizes_of(version: int) -> list[int]:
        return [int(file["size"]) for file in actions_of_kind(commit_file(place, version), "add")]

    try:
        with reading(place, unreadable, but=(FileNotFoundError,)):
            found = list(concurrently(place, sizes_of, range(begin[0], end[0])))
    except FileNotFoundError:
        return True
    return sum(map(len, found)) >= most.files or sum(map(sum, found)) >= most.size


def read_actions(place: str, version: int, kind: str) -> Iterator[dict[str, Any]]:
    """The actions of one kind in a commit of the table in ``place``. Raises StorageError."""
    file = commit_file(place, version)
    with reading(file, commit_unreadable):
        found = list(actions_of_kind(file, kind))
    yield from found


def removed_by(place: str, version: int) -> set[str]:
    """Paths of the files that a commit removed. Raises StorageError."""
    return {unquote(action["path"]) for action in read_actions(place, version, "remove")}
