"""Retention of tables in a catalog: what ended long ago goes, by SQL, and what is owed to anybody stays."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from checkback.errors import SettingsError
from checkback.maintain.row_retention import RowRetention
from checkback.storage.horizon import horizon
from checkback.storage.log.spark_log import properties
from checkback.storage.schemas import SCHEMAS, arrow_schema, properties_of
from checkback.storage.tables import Guard, Tables
from maintain.catalogs import Catalog, Killed, a_catalog, killed_at
from maintain.fixtures import rows_of
from maintain.test_row_retention import HORIZON, figures, settings_of, stories
from support.stories import DONE, in_batches, ms, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Iterator[Catalog]:
    with a_catalog(spark, tmp_path) as found:
        yield found


def test_the_same_goes_as_from_files(catalog: Catalog, tmp_path: Path) -> None:
    """From files of one row each, none of which is mixed; the audit agrees, and finds what is removed by hand."""
    rows, ends = stories(7, 30)
    catalog.write(rows, 3)
    folder = tmp_path / "folder"
    settings = settings_of(folder)
    tables = Tables.of(settings.storage)
    for row in in_batches(rows)[0]:
        write(None, tables, [row])
    names = [name for name in SCHEMAS if (folder / name).is_dir()]
    by_files = RowRetention.by_files(tables, settings, names, ms(DONE), dry_run=False).run()

    promised = catalog.retain(dry_run=True)
    assert horizon(catalog.spark, catalog.tables) is None
    done = catalog.retain()
    assert done == promised == {name: found.rows for name, found in by_files.items() if found.rows}
    for name in names:
        if name != "batches":
            assert catalog.rows(name) == rows_of(folder, name), name
    halves = {row["queue_offset"] for row in catalog.rows("half")}
    assert {offset for offset, end in ends.items() if end is None or end >= HORIZON} <= halves
    assert horizon(catalog.spark, catalog.tables) == ms(HORIZON)
    for name in SCHEMAS:
        assert properties_of(name).items() <= properties(catalog.spark, catalog.tables.in_sql(name)).items()
    answers = catalog.answers()
    report = answers.audit()
    assert not report.broken, figures(report)
    assert report.since == ms(HORIZON)
    with pytest.raises(SettingsError, match=r"was removed \(retention.history\)"):
        answers.pending(as_of=HORIZON - timedelta(days=1))
    assert answers.pending(as_of=HORIZON + timedelta(days=1)).num_rows
    catalog.sql("ALTER TABLE {} SET TBLPROPERTIES ('delta.appendOnly' = 'false')", "decisions")
    catalog.sql("DELETE FROM {} WHERE decided_at > '2025-12-20'", "decisions")
    assert catalog.answers().audit().broken


def test_run_that_breaks_off_is_continued(catalog: Catalog) -> None:
    """After every third statement that changes a table: what is asked is answered as before, and the next run goes on.

    The tables are append-only again after it, though there is nothing left to remove.
    """
    rows, _ = stories(4, 8)
    catalog.write(rows)
    answers = catalog.answers()
    asked = answers.pending().to_pylist(), answers.scheduled().to_pylist()
    killed = 0
    for _ in range(20):
        with killed_at(3) as count, suppress(Killed):
            catalog.retain()
        if not count["run"]:
            break
        killed += 1
        if killed == 2:
            report = answers.audit()
            assert not report.broken, figures(report)
            assert (answers.pending().to_pylist(), answers.scheduled().to_pylist()) == asked
    assert killed > 3
    assert catalog.retain() == {}
    for name in SCHEMAS:
        found = properties(catalog.spark, catalog.tables.in_sql(name))
        assert properties_of(name).items() <= found.items(), name
    assert not answers.audit().broken
    assert (answers.pending().to_pylist(), answers.scheduled().to_pylist()) == asked


def test_append_is_made_again_if_properties_were_changed_meanwhile(catalog: Catalog) -> None:
    """Delta takes any change of properties for a conflict, also those by which retention says what is gone."""
    catalog.tables.create(catalog.spark, "ticks")
    confirmed = Counter[str]()

    def alter() -> None:
        confirmed["commits"] += 1
        if confirmed["commits"] == 1:
            catalog.sql("ALTER TABLE {} SET TBLPROPERTIES ('checkback.retention' = '1')", "ticks")

    tables = replace(catalog.tables, guard=Guard(alter))
    tables.append_arrow(catalog.spark, pa.table({"tick_at": [DONE]}, arrow_schema("ticks")), "ticks", "app", 0)
    assert confirmed == {"commits": 2}
    assert catalog.rows("ticks") == [{"tick_at": DONE}]
    assert horizon(catalog.spark, catalog.tables, "ticks") == 1
