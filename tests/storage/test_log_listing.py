"""A folder's listing that is made while others commit may lack a commit, and have what was written after it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from checkback.errors import StorageError
from checkback.storage.files.table_files import commit_file
from checkback.storage.log import snapshot_files
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.log.optimistic_transaction import update
from checkback.storage.log.snapshot_files import open_table

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A table of four versions; the newest has a checksum."""
    place = f"{tmp_path}/half"
    DeltaLog.create("half", place)
    writer = DeltaLog("half", place)
    for version in range(3):
        writer.commit_after([], {"a": version - 1 if version else None}, {"a": version})
    assert Path(commit_file(place, 3)).with_suffix(".crc").exists()
    return place


def _lacking(place: str, version: int, listing: Callable[..., Any]) -> Callable[..., Any]:
    """What lists the log, which lacks a version at the first time."""
    commit, away = Path(commit_file(place, version)), Path(place, "away")

    def listed(*arguments: Any, **options: Any) -> Any:
        if not away.exists():
            commit.rename(away)
            try:
                return listing(*arguments, **options)
            finally:
                commit.write_bytes(away.read_bytes())
        return listing(*arguments, **options)

    return listed


@pytest.mark.parametrize("version", [3, 2])
def test_a_table_is_opened_though_a_listing_lacks_a_commit(
    place: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_files, "DeltaTable", _lacking(place, version, DeltaTable))
    assert open_table(place).version() == 3


@pytest.mark.parametrize("version", [3, 2])
def test_a_log_is_followed_though_a_listing_lacks_a_commit(
    place: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_table(place, 0)
    monkeypatch.setattr(table, "update_incremental", _lacking(place, version, table.update_incremental))
    update(table, place)
    assert table.version() == 3


def test_a_commit_that_is_gone_is_told(place: str) -> None:
    table = open_table(place, 0)
    Path(commit_file(place, 2)).unlink()
    with pytest.raises(StorageError, match="gap"):
        update(table, place)
