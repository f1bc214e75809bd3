"""Data files of an object store are copied once, those that a question needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkback.errors import StorageError
from checkback.storage.files import table_files, whole_objects
from checkback.storage.files.whole_objects import LocalCopies
from checkback.storage.log.snapshot_files import Span
from checkback.storage.schemas import arrow_schema

if TYPE_CHECKING:
    from checkback.storage.log.delta_log import DeltaLog
    from checkback.storage.tables import Tables

_FILES = 5


@pytest.fixture
def log(s3: Tables) -> DeltaLog:
    """The log of a table of some small files, of an offset each."""
    s3.create(cast("Any", None), "op")
    files = []
    for offset in range(_FILES):
        with s3.table_root.writer() as writer:
            writer.write("op", pa.Table.from_pylist([{"queue_offset": offset}], schema=arrow_schema("op")))
            files += writer.close()
    found = s3.log("op")
    found.commit(files)
    return found


def offsets(copies: list[str] | None) -> list[int]:
    assert copies is not None
    return sorted(row for copy in copies for row in pq.read_table(copy).column("queue_offset").to_pylist())


def test_each_file_is_copied_once(log: DeltaLog, tmp_path: Path) -> None:
    copies = LocalCopies(str(tmp_path / "copies"))
    part = log.files.copied(log.seen_version, copies, Span("queue_offset", 1, 3))
    assert offsets(part) == [1, 2]
    assert {path.name for path in tmp_path.rglob("*.parquet")} == {Path(copy).name for copy in part or ()}
    every = log.files.copied(log.seen_version, copies)
    assert offsets(every) == list(range(_FILES))
    assert sorted(file.path.rpartition("/")[2] for file in log.data_files()) == sorted(
        Path(copy).name for copy in every or ()
    )
    written = {copy: Path(copy).stat().st_mtime_ns for copy in every or ()}
    assert log.files.copied(log.seen_version, copies) == every
    assert {copy: Path(copy).stat().st_mtime_ns for copy in every or ()} == written


@pytest.mark.parametrize(("module", "name"), [(whole_objects, "_MOST"), (table_files, "WHOLE")])
def test_large_ones_are_not_copied(
    log: DeltaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    monkeypatch.setattr(module, name, 10)
    assert log.files.copied(log.seen_version, LocalCopies(str(tmp_path / "copies"))) is None
    assert not any(tmp_path.iterdir())


def test_missing_file_is_told(log: DeltaLog, tmp_path: Path) -> None:
    table_files.remove(log.data_files()[2].path)
    with pytest.raises(StorageError, match="op"):
        log.files.copied(log.seen_version, LocalCopies(str(tmp_path / "copies")))


def test_table_in_a_folder_is_read_where_it_is(tmp_path: Path) -> None:
    from checkback.settings import Storage
    from checkback.storage.tables import Tables

    tables = Tables.of(Storage.model_validate({"root": str(tmp_path / "lake")}))
    tables.create(cast("Any", None), "op")
    found = tables.log("op")
    assert found.files.copied(found.seen_version, LocalCopies(str(tmp_path / "copies"))) is None
