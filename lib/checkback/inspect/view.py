"""The tables as they are now, or as they were at a point in time.

A batch commits its tables side by side. Those tables are therefore shown as of the last batch that was complete by then
(`whole_batches`), the others at the last version committed by then. Before the first row of `batches`, which the
previous release did not write, all go by their commits: between two commits of a batch a message may be published whose
decision is missing. What is pending depends on `decisions` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from checkback.errors import SettingsError, one_line
from checkback.inspect.as_of import parse_as_of
from checkback.inspect.version_at import TOO_LONG_AGO, cleaned_up, version_at
from checkback.inspect.whole_batches import Cut, batch_time, read_batches
from checkback.storage.commit_reader import CommitReader
from checkback.storage.spark_schemas import schema_of
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession

    from checkback.settings import Settings

_EPOCH = datetime.fromtimestamp(0, timezone.utc)
_ALL = 10_000_000


@dataclass(frozen=True)
class View:
    """Tables at a point in time. ``at`` None = as of each read."""

    spark: SparkSession
    tables: Tables
    at: datetime | None = None
    _versions: dict[str, int | None] = field(default_factory=dict, repr=False, compare=False)
    _cuts: list[Cut | None] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def of(cls, spark: SparkSession, settings: Settings, as_of: datetime | str | None = None) -> View:
        """The view. Raises SettingsError if there are no tables, or ``as_of`` is not a time."""
        moment = parse_as_of(as_of)
        tables = Tables.of(settings.storage)
        if not tables.exists(spark, "half"):
            raise SettingsError("there is no such table", tables.location("half"), "run `checkback reconcile` first")
        return cls(spark, tables, moment)

    @property
    def now(self) -> Column:
        """The point in time; without one, the current timestamp of the query."""
        return F.current_timestamp() if self.at is None else moment_column(self.at)

    def read(self, name: str) -> DataFrame:
        """A table; empty if there was none. Columns that it did not have yet are null.

        Raises SettingsError if its versions of that time were cleaned up, StorageError if its log is corrupt.
        """
        return whole_columns(self._rows(name), name)

    def read_with_file(self, name: str) -> DataFrame:
        """As `read`, plus `_file`: the name of the file that contains the row."""
        rows = self._rows(name)
        if self.version(name) is None:
            return whole_columns(rows, name).withColumn("_file", F.lit(None).cast("string"))
        file = F.element_at(F.split("_metadata.file_path", "/"), -1)
        return whole_columns(rows.select("*", file.alias("_file")), name, "_file")

    def version(self, name: str) -> int | None:
        """The version that is read: current at ``at``, without it the newest; None: there was no table.

        Also the newest if the rows themselves tell, by their batches, which of them existed.
        """
        if name not in self._versions:
            self._versions[name] = self._found(name)
        return self._versions[name]

    def topics(self) -> list[str]:
        """Names of the topics' tables that exist now; some may not have existed at ``at``."""
        return self.tables.topics(self.spark)

    def _rows(self, name: str) -> DataFrame:
        if self.at is None and self.tables.exists(self.spark, name):
            return self.tables.read(self.spark, name)
        version = None if self.at is None else self.version(name)
        if version is None:
            return self.spark.createDataFrame([], schema_of(name))
        try:
            rows = self.tables.read(self.spark, name, version)
        except AnalysisException as error:
            if "DELETED_FILE_RETENTION" not in (error.getCondition() or ""):
                raise
            # Delta refuses versions whose files VACUUM may have deleted.
            place = self.tables.location(name)
            raise SettingsError(f"is too long ago: {one_line(error)}", place, TOO_LONG_AGO) from error
        cut = self._cut(name)
        return rows if cut is None else cut.of(rows, name)

    def _cut(self, name: str) -> Cut | None:
        """The rows of a table as of ``at``; None: its version determines them, or no batch has a row in `batches`."""
        if self.at is None or batch_time(name) is None:
            return None
        if not self._cuts:
            self._cuts.append(Cut.at(read_batches(self.spark, self.tables), milliseconds(self.at)))
        return self._cuts[0]

    def _found(self, name: str) -> int | None:
        cut = self._cut(name)  # before the versions: a batch's row is committed after its other tables
        newest_is_read = self.at is None or (cut is not None and cut.batch is not None)
        if self.tables.by_files:
            commits = CommitReader.of(self.tables.location(name))
            if commits is None:
                return None
            made_at: Callable[[int], int] = commits.made_at
            oldest, newest = commits.oldest, commits.newest
        else:
            history = self.tables.history(self.spark, name, 1 if newest_is_read else _ALL)
            if not history:
                return None
            oldest, newest, made_at = min(history), max(history), history.__getitem__
        if newest_is_read or self.at is None:
            return newest
        version = version_at(oldest, newest, made_at, milliseconds(self.at))
        if version is None and oldest > 0:
            raise cleaned_up(self.tables.location(name), _EPOCH + timedelta(milliseconds=made_at(oldest)))
        return version


def whole_columns(rows: DataFrame, name: str, *more: str) -> DataFrame:
    """The rows with all columns of the table: an older release created it with fewer."""
    fields = schema_of(name).fields
    if rows.columns == [field.name for field in fields]:
        return rows
    there = set(rows.columns)
    nothing = (F.lit(None).cast(field.dataType).alias(field.name) for field in fields if field.name not in there)
    return rows.select(*(field.name for field in fields if field.name in there), *nothing, *more)


def moment_column(at: datetime) -> Column:
    """A point in time as a column."""
    return F.timestamp_micros(F.lit((at - _EPOCH) // timedelta(microseconds=1)))


def moment_of(micros: int) -> datetime:
    """The time of microseconds since the epoch."""
    return _EPOCH + timedelta(microseconds=micros)


def since_moment(rows: DataFrame, time: str, since: datetime | str | None) -> DataFrame:
    """Rows whose column ``time`` is at or after ``since``; all if that is None. Raises SettingsError."""
    moment = parse_as_of(since)
    return rows if moment is None else rows.where(F.col(time) >= moment_column(moment))


def milliseconds(at: datetime) -> int:
    """A time in ms since the epoch, rounded down."""
    return (at - _EPOCH) // timedelta(milliseconds=1)
