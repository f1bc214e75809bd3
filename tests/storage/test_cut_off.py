"""Whether a batch may have left files of a table unread, from the log alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from checkback.storage.files.table_files import commit_file
from checkback.storage.log.commit_reader import MostFiles, may_be_cut_off

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Version n adds n files of 10 bytes."""
    (tmp_path / "_delta_log").mkdir()
    for version in range(5):
        added = [json.dumps({"add": {"path": f"{version}-{n}", "size": 10}}) for n in range(version)]
        with open(commit_file(str(tmp_path), version), "w") as file:
            file.write("\n".join(['{"commitInfo":{}}', *added]))
    return str(tmp_path)


@pytest.mark.parametrize(
    ("begin", "end", "most", "cut_off"),
    [
        ((0, -1), (4, -1), MostFiles(7, 1000), False),
        ((0, -1), (4, -1), MostFiles(6, 1000), True),
        ((0, -1), (4, -1), MostFiles(100, 61), False),
        ((0, -1), (4, -1), MostFiles(100, 60), True),
        ((3, -1), (4, -1), MostFiles(4, 31), False),
        ((4, 1), (5, -1), MostFiles(5, 1000), False),
        ((4, 1), (4, 2), MostFiles(100, 1000), True),
        ((4, -1), (7, -1), MostFiles(100, 1000), True),
    ],
)
def test_files_that_were_read_reach_the_limit(
    table: str, begin: tuple[int, int], end: tuple[int, int], most: MostFiles, cut_off: bool
) -> None:
    """The last two: it ends within a version; a commit is not there any more."""
    assert may_be_cut_off(table, begin, end, most) is cut_off
