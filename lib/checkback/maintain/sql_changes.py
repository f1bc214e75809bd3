"""Changes rows of tables that only Spark writes, by SQL that any catalog takes: no paths, no classes of the JVM.

Appends need `delta.appendOnly` false for that, and it is true again at the end of a run, also of one after a kill. What
retention may have removed is said first, in the tables' properties (`storage.horizon`). Each statement is a commit of
its own, and may be repeated.

Delta's Serializable isolation, the only one outside Databricks, lets such a commit fail if anybody has appended to the
table meanwhile.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkback.errors import StorageError, one_line
from checkback.storage.dataframes import frame
from checkback.storage.horizon import property_of
from checkback.storage.log import spark_log
from checkback.storage.schemas import properties_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from checkback.storage.tables import Tables

APPEND_ONLY = "delta.appendOnly"
#: attempts at a statement while others append to its table
_TRIES = 5
_CONFLICTS = ("DELTA_CONCURRENT_", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")
BUSY = "others have appended to it each time: run this while `reconcile` and `land` rest, as between scheduled runs"


class BusyError(StorageError):
    """A statement has met appends of others at each attempt; nothing was changed."""


@dataclass(frozen=True)
class SqlChanges:
    """Statements that change tables. Raise BusyError, and pyspark's errors."""

    spark: SparkSession
    tables: Tables

    def say(self, name: str, versions: Mapping[str, int]) -> None:
        """Have a table say these versions, by application (`storage.horizon`), unless it says later ones already."""
        found = spark_log.properties(self.spark, self.tables.in_sql(name))
        known = {app: int(found.get(property_of(app), 0)) for app in versions}
        self._set(name, {property_of(app): str(new) for app, new in versions.items() if new > known[app]})

    def merge(self, name: str, rows: pa.Table, on: str, then: str) -> None:
        """MERGE: ``rows`` are `s`, the table is `t`; ``then``: the WHEN clauses."""
        self._allow(name)
        view = f"checkback_{uuid.uuid4().hex}"
        frame(self.spark, rows).createOrReplaceTempView(view)
        try:
            self._run(name, f"MERGE INTO {self.tables.in_sql(name)} AS t USING {view} AS s ON {on} {then}")
        finally:
            self.spark.catalog.dropTempView(view)

    def purge(self, name: str) -> None:
        """Rewrite the files of which deletion vectors hide rows: what was changed is in them yet."""
        if spark_log.properties(self.spark, self.tables.in_sql(name)).get("delta.enableDeletionVectors") == "true":
            self._run(name, f"REORG TABLE {self.tables.in_sql(name)} APPLY (PURGE)")

    def settle(self, names: Iterable[str]) -> None:
        """Make the tables append-only again that are to be."""
        for name in names:
            wanted = properties_of(name).get(APPEND_ONLY)
            if wanted is not None and self._append_only(name) != wanted:
                self._set(name, {APPEND_ONLY: wanted})

    def _allow(self, name: str) -> None:
        if self._append_only(name) == "true":
            self._set(name, {APPEND_ONLY: "false"})

    def _append_only(self, name: str) -> str | None:
        return spark_log.properties(self.spark, self.tables.in_sql(name)).get(APPEND_ONLY)

    def _set(self, name: str, values: Mapping[str, str]) -> None:
        if values:
            self._run(name, spark_log.setting(self.tables.in_sql(name), values))

    def _run(self, name: str, statement: str) -> None:
        for left in reversed(range(_TRIES)):
            self.tables.guard()
            try:
                self._execute(statement)
            except Exception as error:
                if not any(conflict in str(error) for conflict in _CONFLICTS):
                    raise
                if not left:
                    raise BusyError(
                        f"cannot be changed: {one_line(error)}", self.tables.location(name), BUSY
                    ) from error
            else:
                return

    def _execute(self, statement: str) -> None:
        self.spark.sql(statement)


def same(columns: Iterable[str]) -> str:
    """The condition of a MERGE that rows have the same values, null as well."""
    return " AND ".join(f"t.`{name}` <=> s.`{name}`" for name in columns)
