"""The data files of a table whose log only Spark's Delta may read, followed commit by commit, without a Spark job.

Delta lists a snapshot's files by reconstructing the table's state in a Spark job, anew after every commit. It is asked
for that once; then the driver reads the new commits, in text.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from checkback.storage.log.jvm_names import jvm_of
from checkback.storage.log.snapshot_files import DataFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

#: commits that are read one by one
_MOST = 20
#: a path outside the table's folder, as of a shallow clone
_ELSEWHERE = re.compile("/|[A-Za-z0-9+.-]+:")
_PARTS = ("path", "size", "stats")


class JvmFiles:
    """The files of one table. Not thread-safe."""

    def __init__(self) -> None:
        self._of: tuple[str, int] = "", -1
        self._files: dict[str, DataFile | None] = {}

    def of(self, spark: SparkSession, snapshot: Any) -> list[DataFile] | None:
        """The snapshot's files; their paths are relative to the table's folder.

        None if its rows are not those of files there: reader version 1 has no deletion vectors and no column mapping.
        """
        if snapshot.protocol().minReaderVersion() > 1 or not snapshot.metadata().partitionColumns().isEmpty():
            return None
        now = str(snapshot.metadata().id()), int(snapshot.version())
        if self._of != now:
            before, self._of = self._of, ("", -1)  # after an error all are asked for again
            if (
                before[0] != now[0]
                or not 0 <= now[1] - before[1] <= _MOST
                or not self._follow(spark, snapshot, before[1])
            ):
                self._files = _all_files(spark, snapshot)
            self._of = now
        found = [file for file in self._files.values() if file is not None]
        return found if len(found) == len(self._files) else None

    def _follow(self, spark: SparkSession, snapshot: Any, since: int) -> bool:
        """Apply the commits after version ``since``; False if one cannot be read, as where the catalog has it."""
        from py4j.protocol import Py4JJavaError

        log, names = snapshot.deltaLog(), jvm_of(spark).org.apache.spark.sql.delta.util.FileNames
        folder, conf = log.logPath(), log.newDeltaHadoopConf()
        for version in range(since + 1, int(snapshot.version()) + 1):
            try:
                commit = log.store().read(names.unsafeDeltaFile(folder, version), conf).mkString("\n")
            except Py4JJavaError:
                return False
            actions = [json.loads(line) for line in commit.split("\n") if line]
            for action in actions:
                self._files.pop(action.get("remove", {}).get("path"), None)
            self._files |= _files_of(action["add"] for action in actions if "add" in action)
        return True


def _all_files(spark: SparkSession, snapshot: Any) -> dict[str, DataFile | None]:
    from pyspark.sql import DataFrame

    return _files_of(DataFrame(snapshot.allFiles().toDF(), spark).select(*_PARTS).toArrow().to_pylist())


def _files_of(adds: Iterable[Mapping[str, Any]]) -> dict[str, DataFile | None]:
    """The files of Add File actions by their paths there; None = one of another table."""
    found: dict[str, DataFile | None] = {}
    for add in adds:
        here = DataFile(unquote(add["path"]), add["size"], _spans(add.get("stats")))
        found[add["path"]] = None if _ELSEWHERE.match(add["path"]) else here
    return found


def _spans(stats: str | None) -> dict[str, tuple[Any, Any]]:
    """(min, max) of the integer columns."""
    told = json.loads(stats or "{}")
    least, most = told.get("minValues") or {}, told.get("maxValues") or {}
    return {name: (least[name], most[name]) for name in least if {type(least[name]), type(most.get(name))} == {int}}
