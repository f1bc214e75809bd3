"""Which files of a log may go: none before a checkpoint that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkback.maintain.table_folder import entries_of_log
from checkback.storage.files import table_files
from checkback.storage.files.table_files import LOG

if TYPE_CHECKING:
    from checkback.storage.files.table_files import FileEntry

OLD, CHECKPOINT = f"{0:020}.json", f"{5:020}.checkpoint.parquet"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A commit, and a checkpoint after it."""
    log = tmp_path / LOG
    log.mkdir()
    (log / OLD).write_text("{}\n")
    pq.write_table(pa.table({"version": [5]}), log / CHECKPOINT)
    return log


def test_what_is_before_a_checkpoint_that_can_be_read_goes(log: Path) -> None:
    assert entries_of_log(str(log.parent), 5, ()) == [OLD]


def test_damaged_checkpoint_keeps_what_is_before(log: Path) -> None:
    (log / CHECKPOINT).write_bytes(b"PAR1 is not enough")
    assert entries_of_log(str(log.parent), 5, ()) == []


def test_checkpoint_that_somebody_removes_meanwhile_keeps_what_is_before(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = table_files.entries

    def entries(folder: str) -> list[FileEntry]:
        found = listed(folder)
        Path(folder, CHECKPOINT).unlink()
        return found

    monkeypatch.setattr(table_files, "entries", entries)
    assert entries_of_log(str(log.parent), 5, ()) == []
