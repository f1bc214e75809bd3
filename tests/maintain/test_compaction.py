"""How much memory the rows of small files take when they are put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.gateway.appender import half_rows
from checkback.maintain.compaction import MEMORY, planned, rewritten
from checkback.messages.half import Half
from checkback.settings import Maintain
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter

if TYPE_CHECKING:
    from pathlib import Path

_FILES, _ROWS = 6, 2_000


def _land(root: Path, log: DeltaLog, properties: dict[str, str]) -> None:
    for file in range(_FILES):
        names = (f"t{file}-{row}" for row in range(_ROWS))
        rows = [Half(0, 0, name, "orders", "payments", 0, None, None, properties, b"", 1, None) for name in names]
        with FileWriter(str(root), sync=False) as writer:
            writer.write("half", half_rows(rows, 0, file * _ROWS, 1))
            log.commit(writer.close())


def test_values_that_repeat_count_as_often_as_they_are_read(tmp_path: Path) -> None:
    """Parquet has each once a file: some KB on the disk are 60 MB of rows, and a group has no more than fits."""
    DeltaLog.create("half", str(tmp_path / "half"), False)
    log = DeltaLog("half", str(tmp_path / "half"), False)
    _land(tmp_path, log, {"p": "x" * 30_000})
    assert sum(file.size for file in log.data_files()) < 10 << 20
    found = planned("half", log, str(tmp_path / "half"), Maintain(min_files=2))
    assert found
    for group in found:
        memory = sum(one.memory for one in group)
        assert _ROWS * 30_000 * len(group) <= memory <= MEMORY
    assert len(rewritten("half", str(tmp_path), [one.path for one in found[0]])) == 1


def test_ordinary_files_become_one(tmp_path: Path) -> None:
    DeltaLog.create("half", str(tmp_path / "half"), False)
    log = DeltaLog("half", str(tmp_path / "half"), False)
    _land(tmp_path, log, {"trace": "a1"})
    (group,) = planned("half", log, str(tmp_path / "half"), Maintain(min_files=2))
    assert len(group) == _FILES
