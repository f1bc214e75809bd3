"""A log that is followed while its table is replaced by another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.settings import Storage
from checkback.storage.followed_log import FollowedLog
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pathlib import Path


def test_a_table_that_was_gone_when_its_commit_was_noted_is_another_one(tmp_path: Path) -> None:
    tables = Tables.of(Storage(root=str(tmp_path), sync=False))
    DeltaLog.create("batches", tables.location("batches"), False)
    followed = FollowedLog(tables, "batches")
    first = followed.open()
    (tmp_path / "batches").rename(tmp_path / "old")
    followed.seen()
    gone = followed.open()
    DeltaLog.create("batches", tables.location("batches"), False)
    second = followed.open()
    assert gone is None
    assert first is not None
    assert second is not None
    assert (first[1], second[1]) == (True, True)
    assert second[0] is not first[0]
