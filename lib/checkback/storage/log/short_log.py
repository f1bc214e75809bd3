"""A table's log that still has all of its few commits, as those of most topics do, read without delta-rs.

delta-rs takes a millisecond to open any table, as much again for its files, and some 70 KB; of thousands of topics
that is most of an answer. Whatever is out of the ordinary about a log, or torn, is left to it (`DeltaLog`).
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.storage.files import table_files
from checkback.storage.files.object_store import is_registered
from checkback.storage.files.table_files import COMMIT, LOG, commit_file
from checkback.storage.log.commit_reader import parse_action
from checkback.storage.log.delta_errors import FORGETS
from checkback.storage.log.torn_commits import ACTIONS, lacks_actions
from checkback.storage.schemas import FORMAT, FORMAT_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Mapping

#: commits that are read so: reading more takes as long as delta-rs
_MOST = 64
_USUAL = re.compile(r"_last_checkpoint|[0-9]{20}\.(?:json|crc|checkpoint\.parquet)")
_STATISTICS = {"min": "minValues", "max": "maxValues", "null_count": "nullCount"}


class _OutOfTheOrdinaryError(Exception):
    """Delta-rs has to read the log."""


@dataclass
class ShortLog:
    """What a log says as of its ``version``. ``columns``: their names; ``versions``: by application."""

    version: int = -1
    columns: frozenset[str] = frozenset()
    versions: dict[str, int] = field(default_factory=dict)
    _files: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def actions(self, column: str) -> pa.Table:
        """The add actions, as delta-rs gives them, flattened; of the statistics those of an integer ``column``."""
        files = list(self._files.values())
        said = [json.loads(each.get("stats") or "{}") for each in files]
        statistics = {
            f"{name}.{column}": pa.array([(each.get(key) or {}).get(column) for each in said], pa.int64())
            for name, key in _STATISTICS.items()
        }
        return pa.table(
            {
                "path": pa.array(self._files, pa.string()),
                "size_bytes": pa.array([each["size"] for each in files], pa.int64()),
                "modification_time": pa.array([each["modificationTime"] for each in files], pa.int64()),
                **statistics,
            }
        )

    def _add(self, path: str, file: Mapping[str, Any]) -> None:
        # Encoded, elsewhere, or without some of its rows.
        if any(character in path for character in "%/:") or file.get("deletionVector") or file.get("partitionValues"):
            raise _OutOfTheOrdinaryError
        self._files[path] = file

    def follow(self, commit: list[dict[str, Any]]) -> None:
        """Include the next version. Raises anything if it is not an ordinary one."""
        kinds: list[str] = []
        for kind, action in (each for line in commit for each in line.items()):
            kinds.append(kind)
            if kind == "add":
                self._add(action["path"], action)
            elif kind == "remove":
                self._files.pop(action["path"], None)
            elif kind == "txn":
                self.versions[action["appId"]] = int(action["version"])
            elif kind == "metaData":
                configuration = action["configuration"]
                if configuration[FORMAT_PROPERTY] != FORMAT or FORGETS in configuration or action["partitionColumns"]:
                    raise _OutOfTheOrdinaryError
                self.columns = frozenset(one["name"] for one in json.loads(action["schemaString"])["fields"])
            elif (kind == "protocol" and action["minReaderVersion"] != 1) or kind not in ("commitInfo", "protocol"):
                raise _OutOfTheOrdinaryError
        wanted = next((line["commitInfo"].get(ACTIONS) for line in commit if "commitInfo" in line), None)
        self.version += 1
        if lacks_actions(self.version, kinds, None if wanted is None else int(wanted)):
            raise _OutOfTheOrdinaryError


def read_short_log(place: str) -> ShortLog | None:
    """The log of the table in a folder; None: delta-rs has to read it, if there is one."""
    if is_registered(place):
        return None
    found = ShortLog()
    with suppress(Exception):  # said by whoever reads it next
        names = os.listdir(f"{place}/{LOG}")
        commits = sum(map(bool, map(COMMIT.fullmatch, names)))
        # A checkpoint says what the commits say, as long as all of them are there.
        last = max((name for name in names if name[:1].isdigit()), default="")
        if commits <= _MOST and last < f"{commits:020}" and all(map(_USUAL.fullmatch, names)):
            for version in range(commits):
                found.follow([parse_action(line) for line in table_files.lines(commit_file(place, version))])
            return found if commits else None
    return None
