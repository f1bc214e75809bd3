"""Erasure from tables in a catalog: after VACUUM nothing of what was selected is left on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

import pytest

from checkback.cli import main
from checkback.maintain.erasure import OwedError
from checkback.maintain.erasure_selection import Selection
from checkback.maintain.sql_erasure import SqlErasure
from checkback.storage.dataframes import session_conf
from checkback.storage.log.spark_log import place_of, properties
from checkback.storage.schemas import CONTENT, SCHEMAS, properties_of
from maintain.catalogs import Catalog, Killed, a_catalog, killed_at
from maintain.test_erasure import NOW, OTHER, SECRET, stories, traces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KEY = Selection.of(SECRET, None, None, None)
WHERE = Selection.of(None, None, "orders", f"properties.customer = '{SECRET}'")


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Iterator[Catalog]:
    with a_catalog(spark, tmp_path) as found:
        yield found


def erased(catalog: Catalog, selection: Selection) -> dict[str, int]:
    """An erasure; its rows by table."""
    erasure = SqlErasure(catalog.tables, selection, catalog.spark)
    found = erasure.find()
    erasure.erase(found, NOW)
    return {name: number for name, number in found.rows.items() if number}


def test_nothing_of_it_is_left_and_all_else_is_as_it_was(catalog: Catalog) -> None:
    """Killed before its third change, it is continued; a table's deletion vectors hide nothing."""
    rows, whose = stories(5, ["published", "discarded"] * 6)
    catalog.write(rows, 2)
    catalog.sql("ALTER TABLE {} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')", "half")
    names = [*SCHEMAS, *catalog.tables.topics(catalog.spark)]
    before = {name: catalog.rows(name) for name in names}
    with killed_at(2), pytest.raises(Killed):
        erased(catalog, KEY)
    assert erased(catalog, KEY)
    assert erased(catalog, KEY) == {}
    after = {name: catalog.rows(name) for name in names}
    for name in names:
        texts = {repr(row) for row in after[name]}
        assert len(after[name]) == len(before[name])
        for row in (row for row in before[name] if SECRET not in repr(row).replace(OTHER, "")):
            assert repr(row) in texts, name
        assert SECRET not in repr(after[name]).replace(OTHER, ""), name
        assert properties_of(name).items() <= properties(catalog.spark, catalog.tables.in_sql(name)).items(), name
    for row in after["half"]:
        mine = whose[row["queue_offset"]][0] == SECRET
        assert (row["erased_at"] == NOW) == mine
        assert all((row[name] is None) == mine for name in CONTENT)
    assert not catalog.answers().audit().broken
    names = [name for name in names if after[name] != before[name]]
    folders = [_folder(catalog, name) for name in names]
    assert any(traces(folder, SECRET) for folder in folders)
    conf = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # by default VACUUM starts 10,000 tasks
    }
    with session_conf(catalog.spark, conf):
        for name in names:
            catalog.sql("VACUUM {} RETAIN 0 HOURS", name)
    assert [file for folder in folders for file in traces(folder, SECRET)] == []


def _folder(catalog: Catalog, name: str) -> Path:
    return Path(urlparse(place_of(catalog.spark, catalog.tables.in_sql(name))).path)


def test_what_has_not_ended_is_refused(catalog: Catalog) -> None:
    rows, whose = stories(5, ["published", "pending", "scheduled", "unpublished"] * 3)
    catalog.write(rows)
    erasure = SqlErasure(catalog.tables, WHERE, catalog.spark)
    found = erasure.find()
    mine = {offset: fate for offset, (name, fate) in whose.items() if name == SECRET}
    assert {row["queue_offset"]: row["state"] for row in found.owed} == {
        offset: fate for offset, fate in mine.items() if fate != "published"
    }
    assert found.messages.num_rows == len(mine)
    with pytest.raises(OwedError):
        erasure.erase(found, NOW)


def test_command(catalog: Catalog, capsys: pytest.CaptureFixture[str]) -> None:
    """It shows what there is, erases it and records it. What it cannot do at once is refused."""
    rows, whose = stories(5, ["published"] * 4)
    catalog.write(rows)
    storage = catalog.settings().storage
    at = {"catalog": storage.catalog, "schema": storage.schema_, "checkpoints": storage.checkpoints}
    places = [part for key, value in at.items() for part in ("--set", f"storage.{key}={value}")]
    run = ["erase", "--key", SECRET, "--reason", "asked", "--actor", "me", "--yes", *places]
    assert main([*run, "--now"]) == 2
    assert "`checkback maintain` removes the files after maintain.retention" in capsys.readouterr().err
    assert main(run) == 0
    mine = [offset for offset, (name, _) in whose.items() if name == SECRET]
    assert f"Erased {len(mine)} messages" in capsys.readouterr().out
    assert {row["queue_offset"] for row in catalog.rows("half") if row["erased_at"] is not None} == set(mine)
    assert sorted(row["queue_offset"] for row in catalog.rows("operations")) == mine
