"""Folders that are no topics: whatever lists topics leaves them out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from checkback.maintain.maintenance import names
from checkback.settings import Storage
from checkback.storage.crash_recovery import recover_tables
from checkback.storage.tables import Tables


@pytest.mark.parametrize("writer", ["auto", "spark"])
def test_a_folder_whose_name_is_not_utf_8_is_no_topic(tmp_path: Path, writer: str) -> None:
    Tables.of(Storage(root=str(tmp_path))).create(None, "half", "topics/caf\u00e9")  # type: ignore[arg-type]
    for place in ("topics", "."):
        os.makedirs(os.fsencode(tmp_path / place) + b"/caf\xe9/_delta_log")
    tables = Tables.of(Storage.model_validate({"root": str(tmp_path), "writer": writer}))
    assert recover_tables(tables) == []
    assert names(tables.root) == ["half", "topics/caf\u00e9"]
    if tables.by_files:
        assert tables.topics(None) == ["topics/caf\u00e9"]  # type: ignore[arg-type]
