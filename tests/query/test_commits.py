"""What commits brought, and when. Without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkback.errors import StorageError
from checkback.storage.log.commit_reader import CommitReader
from support.query_times import landed, made_at, table


def test_commits_tell_when_and_how_many(tmp_path: Path) -> None:
    """What is unread is what the versions from one on brought; without the files of it that were read."""
    place = table(tmp_path, "half")
    for number in range(3):
        landed(tmp_path, "half", 2, offset=2 * number)
        made_at(place, number + 1, 1000 * (number + 1))
    commits = CommitReader.of(place)
    assert commits is not None
    assert (commits.oldest, commits.newest, commits.made_at(2)) == (0, 3, 2000)
    found = [(unread.rows, unread.since) for unread in map(commits.after, range(5))]
    assert found == [(6, 1000), (6, 1000), (4, 2000), (2, 3000), (0, None)]
    assert commits.after(2, 0).rows == 2


def test_without_its_first_version_a_log_is_read_from_a_checkpoint_on(tmp_path: Path) -> None:
    log = tmp_path / "half/_delta_log"
    log.mkdir(parents=True)
    for version in (16, 17, 20, 21):
        (log / f"{version:020d}.json").write_text('{"commitInfo": {}}')
    pq.write_table(pa.table({"add": [None]}), log / f"{20:020d}.checkpoint.parquet")
    commits = CommitReader.of(str(tmp_path / "half"))
    assert commits is not None
    assert (commits.oldest, commits.newest) == (20, 21)


def test_no_table_and_a_broken_log(tmp_path: Path) -> None:
    assert CommitReader.of(str(tmp_path / "half")) is None
    place = table(tmp_path, "half")
    Path(place, f"_delta_log/{0:020d}.json").write_text("{")
    with pytest.raises(StorageError, match="checkback maintain --repair"):
        CommitReader.of(place)
