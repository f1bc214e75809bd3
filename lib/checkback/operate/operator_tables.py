"""Table access for operator actions: in local folders without Spark, elsewhere with it."""

from __future__ import annotations

from contextlib import contextmanager
from functools import reduce
from operator import and_
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from checkback.errors import FencedError
from checkback.spark.session import running_session
from checkback.storage.files.object_store import concurrently
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.parquet.parquet_reader import read_rows
from checkback.storage.queue_owners import log_of_half, operators_queues
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables
from checkback.storage.valid_texts import python_values

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from checkback.settings import Settings

#: Column -> accepted values, as a conjunction.
Equal: TypeAlias = "Mapping[str, Collection[Any]]"
_WRITTEN = ("half", "op", "operations")
_READ = (
    *_WRITTEN,
    "decisions",
    "deliveries",
    "unpublished",
    "discarded",
    "rejected",
    "check_requests",
    "check_answers",
)


class OperatorTables(Protocol):
    """Where operator actions read and append."""

    def has(self, name: str) -> bool:
        """Whether the table exists."""

    def rows(self, name: str, equal: Equal, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows with these values; empty if there is no such table. ``columns`` None = all; no values = all rows."""

    def last_version(self, name: str, app: str) -> int | None:
        """The last version that the application has committed, whatever became of its rows; None if none is known."""

    #: rows that `append` and `append_each` take at a time
    at_once: int

    def operators_queues(self) -> set[int]:
        """The half queues that have had resumed messages, as the log of `half` tells; none if only Spark reads it."""

    def append(
        self, name: str, rows: pa.Table, app: str, first: int, each: Mapping[str, int] = MappingProxyType({})
    ) -> bool:
        """Append the rows, with versions from ``first`` on. False, and nothing appended, if one of these is committed.

        (app, version) is a Delta transaction identifier: of two concurrent appends one gets True. Creates the table if
        needed. ``each``: versions of further applications, which the same commit sets, and which must not be committed
        either; where Spark writes the table they are not kept.
        """

    def append_each(self, name: str, rows: pa.Table, apps: Sequence[str]) -> bool:
        """As `append`, each row with an application of its own and version 0: all or none."""


@contextmanager
def open_tables(settings: Settings) -> Iterator[OperatorTables]:
    """The store of the settings' tables. Raises SettingsError, StorageError."""
    tables = Tables.of(settings.storage)
    if tables.by_files and all(_is_plain(tables, name) for name in _READ):
        yield FileStore(tables)
        return
    with running_session(settings, "checkback-operate", short=True) as spark:
        yield SparkStore(spark, tables)


def _is_plain(tables: Tables, name: str) -> bool:
    """Whether the table can be read, and if need be appended to, file by file. A clustered table cannot."""
    if not DeltaLog.exists(tables.location(name)):
        return True
    log = tables.log(name)
    return log.readable() and (name not in _WRITTEN or log.appendable())


class FileStore:
    """Tables in local folders: their Parquet files, and commits by delta-rs."""

    at_once = 200  # with their bodies in memory

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def has(self, name: str) -> bool:
        """As OperatorTables."""
        return DeltaLog.exists(self._tables.location(name))

    def rows(self, name: str, equal: Equal, columns: Sequence[str] | None = None) -> pa.Table:
        """As OperatorTables. Uses file skipping by the min/max statistics of integer columns."""
        schema = arrow_schema(name)
        nothing = schema.empty_table().select(columns or schema.names)
        if not self.has(name) or not all(equal.values()):
            return nothing
        numbers = {column: values for column, values in equal.items() if pa.types.is_integer(schema.field(column).type)}
        within = {column: (min(values), max(values)) for column, values in numbers.items()}
        wanted = reduce(
            and_, [pc.field(column).isin(list(values)) for column, values in equal.items()], pc.scalar(True)
        )
        files = self._tables.log(name).data_files(within)
        read = concurrently(self._tables.root, lambda file: read_rows(file.path, name, columns, wanted), files)
        return pa.concat_tables([nothing, *read])

    def last_version(self, name: str, app: str) -> int | None:
        """As OperatorTables."""
        return self._tables.log(name).versions([app])[app] if self.has(name) else None

    def operators_queues(self) -> set[int]:
        """As OperatorTables."""
        return operators_queues(self._tables.log("half")) if self.has("half") else set()

    def append(
        self, name: str, rows: pa.Table, app: str, first: int, each: Mapping[str, int] = MappingProxyType({})
    ) -> bool:
        """As OperatorTables."""
        return self._append(name, rows, {app: first, **each}, {app: first + rows.num_rows - 1, **each})

    def append_each(self, name: str, rows: pa.Table, apps: Sequence[str]) -> bool:
        """As OperatorTables."""
        return self._append(name, rows, dict.fromkeys(apps, 0), dict.fromkeys(apps, 0))

    def _append(self, name: str, rows: pa.Table, first: Mapping[str, int], last: Mapping[str, int]) -> bool:
        """Append, unless an application has committed its ``first`` version; then they have committed the ``last``."""
        DeltaLog.create(name, self._tables.location(name), self._tables.sync)
        log = self._tables.log(name)
        before = log.versions(first)
        for other in _READ:  # the append depends on what was read
            if self.has(other):
                self._tables.log(other).flush()
        if any(version is not None and version >= first[app] for app, version in before.items()):
            return False
        with FileWriter(self._tables.root, sync=self._tables.sync) as writer:
            writer.write(name, rows)
            files = writer.close()
        try:
            log.commit_after(files, before, last)
        except FencedError:
            return False
        return True


class SparkStore:
    """Tables that only Spark can read or write: in a catalog, in an object store, or clustered."""

    at_once = 1  # Spark skips a commit by its last version alone

    def __init__(self, spark: SparkSession, tables: Tables) -> None:
        self._spark = spark
        self._tables = tables

    def has(self, name: str) -> bool:
        """As OperatorTables."""
        return self._tables.exists(self._spark, name)

    def rows(self, name: str, equal: Equal, columns: Sequence[str] | None = None) -> pa.Table:
        """As OperatorTables."""
        from pyspark.sql import functions as F

        schema = arrow_schema(name)
        names = list(columns or schema.names)
        schema = pa.schema([schema.field(column) for column in names])
        if not self.has(name) or not all(equal.values()):
            return schema.empty_table()
        wanted = reduce(and_, [F.col(column).isin(list(values)) for column, values in equal.items()], F.lit(True))
        rows = self._tables.read(self._spark, name).where(wanted).select(*names).toArrow()
        return python_values(rows.cast(schema))

    def last_version(self, name: str, app: str) -> int | None:
        """As OperatorTables. On Databricks only that of a recent commit is known (`Tables.last_version`)."""
        return self._tables.last_version(self._spark, name, app) if self.has(name) else None

    def operators_queues(self) -> set[int]:
        """As OperatorTables."""
        half = log_of_half(self._tables)
        return set() if half is None else operators_queues(half)

    def append(
        self,
        name: str,
        rows: pa.Table,
        app: str,
        first: int,
        each: Mapping[str, int] = MappingProxyType({}),  # noqa: ARG002 - Spark's write has one application
    ) -> bool:
        """As OperatorTables. Spark silently skips a committed version: reading the row back tells who was first."""
        from delta.exceptions import ConcurrentTransactionException

        self._tables.create(self._spark, name)
        try:
            self._tables.append_arrow(self._spark, rows, name, app, first)
        except (FencedError, ConcurrentTransactionException):
            return False
        (mine,) = rows.to_pylist()
        equal = {column: [value] for column, value in mine.items() if isinstance(value, str | int)}
        return mine in self.rows(name, equal).to_pylist()

    def append_each(self, name: str, rows: pa.Table, apps: Sequence[str]) -> bool:
        """As OperatorTables, for one row."""
        return self.append(name, rows, apps[0], 0)
