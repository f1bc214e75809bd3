"""Commits that have taken rows out of `half` or `op`: where the audit looks for them, and what it says."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from checkback.query.answers import Answers
from checkback.query.audit.removed_rows import unseen
from checkback.reconcile.publish.batch_row import ReadRange, batch_row
from checkback.settings import Settings
from checkback.storage.checkpoints import seen_commits
from checkback.storage.tables import Tables
from support.stories import DECIDED, Row, Transaction, batch, ms, write

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([], [5, 4, 3, 2, 1, 0]),
        ([(2, 4)], [5, 2, 1, 0]),
        ([(0, 5)], [0]),
        ([(0, 1), (3, 5)], [3, 2, 0]),
        ([(3, 5), (1, 4)], [1, 0]),
        ([(1, 9)], [1, 0]),
        ([(5, 5), (-1, 2)], [5, 4, 3]),
    ],
)
def test_only_commits_that_no_batch_has_seen_are_looked_at(seen: list[tuple[int, int]], expected: list[int]) -> None:
    assert list(unseen(5, seen)) == expected


def _settings(root: Path) -> Settings:
    return Settings.model_validate({"storage": {"root": str(root)}})


def _read(row: Row, **upto: int) -> Row:
    """A batch that has read the tables up to these versions."""
    ranges = [(name, ReadRange(0, -1, version, 0)._asdict()) for name, version in upto.items()]
    return row[0], row[1] | {"read_ranges": ranges}


def _removed(settings: Settings) -> Mapping[str, tuple[int, Any]]:
    report = Answers(settings).audit()
    found = {each.finding.name: (each.count, each.samples) for each in report.found if each.finding.about == "commit"}
    assert report.broken == bool(found)
    return found


def _restored(settings: Settings, name: str, version: int) -> tuple[int, int]:
    """(version, time) of the commit that restores the table."""
    table = DeltaTable(f"{settings.storage.root}/{name}")
    table.restore(version)
    (last,) = DeltaTable(f"{settings.storage.root}/{name}").history(1)
    return last["version"], last["timestamp"]


@pytest.mark.slow
def test_restore_that_takes_out_pending_messages_is_found_also_after_a_rebuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPTIMIZE takes none out. What the batches have read is not read again."""
    settings = _settings(tmp_path)
    tables = Tables.of(settings.storage)
    one, later = Transaction(1), [Transaction(1, offset) for offset in (1, 2)]
    write(None, tables, one.committed())
    write(None, tables, [later[0].half()])
    write(None, tables, [_read(batch(0, DECIDED, committed=1), half=1, op=1), later[1].half()])
    DeltaTable(f"{tmp_path}/half").optimize.compact()
    assert _removed(settings) == {}
    restored = _restored(settings, "half", 1)
    assert _removed(settings) == {"half_rows_removed": (1, (restored,))}
    at = restored[0]
    # The batch that had read it is refused, and finished by a rebuild; others follow.
    time = DECIDED + timedelta(minutes=1)
    read = {"half": ReadRange(1, 0, at, -1)}
    concluded = batch_row("query", 1, ms(time), ms(time), read=read).to_pylist()[0]
    rows: list[Row] = [("batches", concluded)]
    for number in range(3):
        write(None, tables, [Transaction(2, number).half()])
        found = batch(number, time + timedelta(minutes=1 + number), "rebuilt")
        rows.append(_read(found, half=at + 1 + number, op=1))
    write(None, tables, rows)
    looked_at: list[tuple[str, int]] = []
    commit = seen_commits._Commits._commit

    def counted(self: Any, name: str, version: int) -> Any:
        looked_at.append((name, version))
        return commit(self, name, version)

    monkeypatch.setattr(seen_commits._Commits, "_commit", counted)
    assert _removed(settings) == {"half_rows_removed": (1, (restored,))}
    assert ("half", at) in looked_at
    assert not {("half", at + 2), ("half", at + 3)} & set(looked_at)


@pytest.mark.slow
def test_restore_of_op_is_found_and_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from checkback.cli import main

    settings = _settings(tmp_path)
    tables = Tables.of(settings.storage)
    write(None, tables, Transaction(1).committed())
    write(None, tables, [Transaction(1, 1).half(), Transaction(1, 1).op()])
    at, _ = _restored(settings, "op", 1)
    assert main(["audit", "-o", "json", "--set", f"storage.root={tmp_path}"]) == 1
    assert f'"{at}@20' in capfd.readouterr().out


@pytest.mark.spark
def test_spark_finds_the_same(spark: SparkSession, tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    write(
        None, Tables.of(settings.storage), [*Transaction(1).committed(), _read(batch(0, DECIDED, committed=1), half=1)]
    )
    write(None, Tables.of(settings.storage), [Transaction(1, 1).half()])
    restored = _restored(settings, "half", 1)
    found = {each.finding.name: each.samples for each in Answers(settings, spark).audit().found}
    assert found["half_rows_removed"] == (restored,)
