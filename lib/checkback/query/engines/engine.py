"""What evaluates the questions: Spark, or DuckDB in this process.

A question is one SQL text in the common subset of Spark SQL and DuckDB, so that both give the same rows and types:

- ``{half}`` is the table `half` as the view shows it; ``:now`` a value. Braces of a regular expression are doubled.
- Times are compared and added as microseconds (``unix_micros``, ``timestamp_micros``). Text is joined by ``||``.
- Which of several rows counts is decided by ``row_number()`` with an order over all columns that are used.
- Counts are ``count(*) FILTER (WHERE ...)``, divisors DOUBLE. What only Spark names so is a macro in `duckdb_engine`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from checkback.storage.log.commit_reader import Added
    from checkback.storage.log.snapshot_files import Span
    from checkback.storage.tables import Tables

#: fix for a version that Delta can no longer read
TOO_LONG_AGO = (
    "ask for a later time; a longer maintain.retention, and delta.deletedFileRetentionDuration of the tables, keep more"
)
#: a table's rows, or a question's: Spark's DataFrame; DuckDB's name of a view, or a relation
Rows: TypeAlias = Any
#: a value of a parameter
Value: TypeAlias = "int | float | str | None"

_TABLE = re.compile(r"\{([a-z_]+[0-9]*)\}")
#: a value in a question's SQL
PARAMETER = re.compile(r"(?<![:\w]):([a-z]\w*)")


def tables_in(text: str) -> set[str]:
    """The tables that a question's SQL names."""
    return set(_TABLE.findall(text))


class Versions(Protocol):
    """The versions of a table that can be read: commit times in ms."""

    @property
    def oldest(self) -> int:
        """The first."""

    @property
    def newest(self) -> int:
        """The last."""

    def made_at(self, version: int) -> int:
        """When it was committed (ms)."""


class Engine(Protocol):
    """Reads tables at versions, and evaluates SQL over them."""

    @property
    def tables(self) -> Tables:
        """Where the tables are."""

    @property
    def session(self) -> SparkSession | None:
        """Spark, if that is the engine: it reads checkpoints where nothing else can."""

    def exists(self, name: str) -> bool:
        """True if the table exists."""

    def topics(self) -> list[str]:
        """Names of the topics' tables; in a catalog also of others in their places."""

    def look(self, *turns: Collection[str]) -> Mapping[str, int | None]:
        """The newest version of each table, to read it at; None = there is no such table.

        Those of a turn are looked at side by side, and after all of the turns before. A table whose log cannot be read
        is left out. Spark leaves out all: it finds the newest version by itself.
        """

    def versions(self, name: str) -> Versions | None:
        """The table's versions; None if it does not exist. Raises StorageError."""

    def newest(self, name: str) -> int | None:
        """The newest version, without the others; None if the table does not exist. Raises StorageError."""

    def read(
        self,
        name: str,
        version: int | None = None,
        where: str | None = None,
        *,
        file: bool = False,
        within: Span | None = None,
    ) -> Rows:
        """The table's rows, current or of a version, that match a condition; columns that it lacks are null.

        A condition may name them as columns of ``rows``: `at` alone is a word of SQL.

        ``file``: with `_file`, the name of the file that contains the row, and without bodies. ``within``: what the
        condition says of a column, so that files can be skipped.

        Raises SettingsError if the version's files may be gone, StorageError if it cannot be read.
        """

    def empty(self, name: str, *, file: bool = False) -> Rows:
        """No rows, with the columns of `read`."""

    def read_topics(
        self,
        versions: Mapping[str, int | None],
        where: str | None = None,
        within: Span | None = None,
        *,
        file: bool = False,
    ) -> Rows:
        """As `read`, of all these topics' tables at their versions, with ``topic``: the name as the table spells it."""

    def horizon(self, name: str) -> int | None:
        """A topic's horizon (ms), as `storage.horizon` has it. Raises StorageError."""

    def offset_cuts(self, rows: Rows, brief: bool) -> list[int]:
        """Offsets at which to part questions about many transactions, so that memory suffices; none: not to.

        ``rows`` have a queue_offset. ``brief``: a question keeps only a few integers of each transaction.
        """

    def among(self, rows: Rows, key: tuple[str, str], transactions: Rows) -> Rows:
        """Those of the rows whose ``key`` is (queue_id, queue_offset) of one of the transactions; null equals null."""

    def keep(self, name: str, rows: pa.Table | Rows) -> Rows:
        """Rows, also a question's, for further questions. Another table of that name takes their place."""

    def added(self, name: str, files: Collection[str]) -> Mapping[str, Added]:
        """By a file's name which version of the table added it, as far as the log tells. Raises StorageError."""

    def select(self, text: str, tables: Mapping[str, Rows]) -> Rows:
        """The rows that the SQL selects, as a table of further questions: what they do not need is not read."""

    def query(self, text: str, tables: Mapping[str, Rows], values: Mapping[str, Value]) -> Rows:
        """The rows that the SQL selects. ``tables`` and ``values`` may be more than it names."""

    def arrow(self, rows: Rows) -> pa.Table:
        """The rows, in this process: timestamps are us, UTC, in Python's range. Raises StorageError."""
