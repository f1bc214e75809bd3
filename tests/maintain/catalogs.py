"""Tables in a catalog with transactions of a test's own time, and what is in them."""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from checkback.maintain.rows_in_sql import RowsInSql
from checkback.maintain.spark_maintenance import maintain_by_spark, retain
from checkback.maintain.sql_changes import SqlChanges
from checkback.query.answers import Answers
from checkback.settings import Settings
from checkback.storage.schemas import SCHEMAS, arrow_schema, in_schema
from checkback.storage.tables import Tables
from maintain.fixtures import Quiet
from support.stories import DONE, checkpoint, in_batches, ms, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from checkback.maintain.report import TableReport
    from support.stories import Row

_numbers = itertools.count()


class Killed(BaseException):
    """The process ends here."""


@dataclass(frozen=True)
class Catalog:
    """A schema of Spark's own catalog."""

    spark: SparkSession
    root: Path
    schema: str

    def settings(self, **retention: Any) -> Settings:
        """A history of 30 days, unless ``retention`` says otherwise."""
        storage = {
            "root": str(self.root),
            "catalog": "spark_catalog",
            "schema": self.schema,
            "checkpoints": f"{self.root}/_checkpoints",
        }
        return Settings.model_validate(
            {
                "storage": storage,
                "reconcile": {"partitions": 2},
                "maintain": {"min_files": 100},
                "retention": {"history": "30d", **retention},
            }
        )

    @property
    def tables(self) -> Tables:
        """Not the same object each time: nothing that it knows is old."""
        return Tables.of(self.settings().storage)

    def write(self, rows: list[Row], parts: int = 1) -> None:
        """All own tables, with the rows of these transactions in some commits, and the last batch's checkpoint."""
        found, done = in_batches(rows)
        self.tables.create(self.spark, *SCHEMAS)
        size = -(-len(found) // parts)
        for first in range(0, len(found), size):
            write(self.spark, self.tables, found[first : first + size])
        checkpoint(self.root, batch_id=done)

    def maintain(self, dry_run: bool = False, **retention: Any) -> dict[str, TableReport]:
        """A run at the time of the last batch."""
        settings = self.settings(**retention)
        done = maintain_by_spark(self.spark, settings, self.tables, dry_run, Quiet(), ms(DONE))
        return {one.table: one for one in done}

    def retain(self, dry_run: bool = False, **retention: Any) -> dict[str, int]:
        """Of such a run only retention, without OPTIMIZE and VACUUM; by table the number of rows."""
        names = [*SCHEMAS, *self.tables.topics(self.spark)]
        own = RowsInSql(SqlChanges(self.spark, self.tables), names, dry_run)
        retain(own, self.settings(**retention), ms(DONE))
        return {name: found.rows for name, found in own.removed.items() if found.rows}

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of a table, in no order that means anything."""
        found = in_schema(self.tables.read(self.spark, name).toArrow(), arrow_schema(name)).to_pylist()
        return sorted(found, key=repr)

    def everything(self) -> dict[str, Counter[str]]:
        """The rows of all tables, in no order."""
        names = [*SCHEMAS, *self.tables.topics(self.spark)]
        return {name: Counter(map(repr, self.rows(name))) for name in names}

    def answers(self) -> Answers:
        """On Spark."""
        return Answers(self.settings(), self.spark)

    def sql(self, statement: str, name: str) -> None:
        """A statement about a table by hand; {} = the table."""
        self.spark.sql(statement.format(self.tables.in_sql(name)))


@contextmanager
def a_catalog(spark: SparkSession, root: Path) -> Iterator[Catalog]:
    """A schema, which is gone afterwards."""
    schema = f"retained_{next(_numbers)}"
    spark.sql(f"CREATE SCHEMA spark_catalog.{schema}")
    try:
        yield Catalog(spark, root, schema)
    finally:
        spark.sql(f"DROP SCHEMA spark_catalog.{schema} CASCADE")


@contextmanager
def killed_at(statement: int) -> Iterator[Counter[str]]:
    """The process ends before a statement that changes a table; yields how many were run."""
    run, count = SqlChanges._execute, Counter[str]()

    def execute(self: SqlChanges, text: str) -> None:
        if count["run"] == statement:
            raise Killed
        count["run"] += 1
        run(self, text)

    with patch.object(SqlChanges, "_execute", execute):
        yield count
