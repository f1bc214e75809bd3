"""Maintenance of tables in an object store, without Spark: the same rows in fewer files, and what is old is gone."""

from __future__ import annotations

import time
from datetime import timedelta
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from checkback.errors import FencedError
from checkback.maintain.erasure import Erasure
from checkback.maintain.erasure_selection import Selection
from checkback.maintain.maintenance import LOCK, maintain
from checkback.query.answers import Answers
from checkback.settings import Settings
from checkback.storage.files import table_files
from checkback.storage.files.lease import Lease
from checkback.storage.horizon import floors_of
from checkback.storage.log.commit_reader import CommitReader
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_reader import read_rows
from checkback.storage.schemas import arrow_schema
from examples.s3_server import options
from maintain.fixtures import DAY_MS, Quiet, settings_of
from support.stories import DONE, Transaction, in_batches, ms, write

if TYPE_CHECKING:
    from checkback.storage.parquet.parquet_files import ParquetFile
    from checkback.storage.tables import Tables
    from support.stories import Row

pytestmark = pytest.mark.slow


def _file(tables: Tables, offset: int) -> list[ParquetFile]:
    row = {"queue_id": 0, "queue_offset": offset, "transaction_id": "t", "state": "COMMIT"}
    with tables.table_root.writer() as writer:
        writer.write("op", pa.Table.from_pylist([row], schema=arrow_schema("op")))
        return writer.close()


def test_old_files_and_commits_are_removed(s3: Tables) -> None:
    place = s3.location("op")
    s3.create(None, "op")  # type: ignore[arg-type]  # no Spark is needed
    log = DeltaLog("op", place, s3.sync)
    for offset in range(8):
        log.commit(_file(s3, offset))
    settings = settings_of(s3.root)
    now = round(time.time() * 1000)
    (done,) = maintain(settings, s3, dry_run=False, progress=Quiet(), now=now)
    assert (done.files_before, done.files_after, done.removed_files) == (8, 1, 0)
    log.commit(_file(s3, 8))
    (again,) = maintain(settings, s3, dry_run=False, progress=Quiet(), now=now + 100 * DAY_MS)
    assert again.removed_files == 8
    assert (again.removed_commits or 0) > 0
    commits = CommitReader.of(place)
    assert commits is not None
    assert commits.oldest > 0
    found = [read_rows(file.path, "op", None, pc.field("queue_id").is_valid()) for file in log.data_files()]
    assert sorted(offset for rows in found for offset in rows.column("queue_offset").to_pylist()) == list(range(9))
    data = [name for name in table_files.names(place) if name.endswith(".parquet")]
    assert set(data) >= {file.path.rpartition("/")[2] for file in log.data_files()}
    assert len(data) < 9


def test_clock_that_is_ahead_removes_nothing_that_is_still_to_be_committed(
    s3: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.create(None, "op")  # type: ignore[arg-type]
    log = DeltaLog("op", s3.location("op"), s3.sync)
    log.commit(_file(s3, 0))
    written = _file(s3, 1)  # by a gateway, whose commit follows
    ahead = time.time() + 100 * DAY_MS / 1000
    with monkeypatch.context() as patch:
        patch.setattr("checkback.maintain.maintenance.time.time", lambda: ahead)
        (done,) = maintain(settings_of(s3.root), s3, dry_run=False, progress=Quiet())
    assert (done.removed_files, done.removed_commits) == (0, 0)
    log.commit(written)
    found = [read_rows(file.path, "op", None, pc.field("queue_id").is_valid()) for file in log.data_files()]
    assert sorted(offset for rows in found for offset in rows.column("queue_offset").to_pylist()) == [0, 1]


@pytest.mark.parametrize("compacted", [False, True])
def test_process_that_was_stopped_for_longer_than_its_lease_changes_nothing_more(
    s3: Tables, monkeypatch: pytest.MonkeyPatch, compacted: bool
) -> None:
    """Before its first compaction, or when it has old files to remove."""
    clock = [0.0]
    monkeypatch.setattr("checkback.storage.lock.Lease", partial(Lease, clock=lambda: clock[0]))
    s3.create(None, "op")  # type: ignore[arg-type]
    place = s3.location("op")
    log = DeltaLog("op", place, s3.sync)
    for offset in range(4):
        log.commit(_file(s3, offset))
    settings, now = settings_of(s3.root), round(time.time() * 1000)
    if compacted:
        maintain(settings, s3, dry_run=False, progress=Quiet(), now=now)
    version, files = log.version(), table_files.names(place)

    class Stopped(Quiet):
        def begin(self, *_: object) -> None:
            clock[0] += 3600
            table_files.write(f"{s3.root}/{LOCK}", b'{"holder": "another", "attempt": "1"}')

    with pytest.raises(FencedError, match="another process has taken over"):
        maintain(settings, s3, dry_run=False, progress=Stopped(), now=now + 100 * DAY_MS)
    assert log.version() == version
    assert set(files) <= set(table_files.names(place))


def test_retention(s3: Tables, s3_port: int) -> None:
    """What ended long ago is gone by one commit a table; the offset of each queue that is next is known."""
    rows: list[Row] = []
    for offset, days in enumerate((50, 40, 31, 2)):
        t = Transaction(0, offset, DONE - timedelta(days=days))
        at = t.born + timedelta(minutes=30)
        rows += [t.half(), t.op(), t.published(published_at=at), t.decision(decided_at=at)]
    found, _ = in_batches([*rows, Transaction(0, 9, DONE - timedelta(days=45)).half()])
    write(None, s3, found)
    storage = {"root": s3.root, "options": options(s3_port)}
    settings = Settings.model_validate({"storage": storage, "maintain": {"min_files": 2}})
    for expired in (3, 0):
        done = {one.table: one for one in maintain(settings, s3, False, Quiet(), now=ms(DONE))}
        assert [done[name].expired_rows for name in ("half", "op", "decisions", "topics/a")] == [expired] * 3 + [0]
    left = [
        read_rows(file.path, "half", ["queue_offset"], pc.scalar(True)) for file in s3.open_log("half").data_files()
    ]
    assert sorted(pa.concat_tables(left).column(0).to_pylist()) == [3, 9]
    assert floors_of(s3.open_log("half"), [0]) == {0: 3}
    assert not Answers(settings).audit().broken


def test_retention_of_bodies(s3: Tables, s3_port: int) -> None:
    """Of what ended; a second run writes nothing."""
    rows: list[Row] = []
    for offset, days in enumerate((50, 40, 31, 2)):
        t = Transaction(0, offset, DONE - timedelta(days=days), Random(offset).randbytes(1024))
        at = t.born + timedelta(minutes=30)
        rows += [t.half(), t.op(), t.published(published_at=at), t.decision(decided_at=at)]
    found, _ = in_batches(rows)
    write(None, s3, found)
    settings = Settings.model_validate(
        {
            "storage": {"root": s3.root, "options": options(s3_port)},
            "maintain": {"min_files": 2},
            "retention": {"history": None, "bodies": "10d"},
        }
    )
    for emptied in (3, 0):
        done = {one.table: one for one in maintain(settings, s3, False, Quiet(), now=ms(DONE))}
        assert (done["half"].emptied_bodies, done["half"].expired_rows) == (emptied, 0)
    (file,) = s3.open_log("half").data_files()
    bodies = read_rows(file.path, "half", ["queue_offset", "body"], pc.scalar(True)).to_pylist()
    assert sorted(row["queue_offset"] for row in bodies if row["body"] is None) == [0, 1, 2]
    report = Answers(settings).audit()
    assert (report.broken, report.bodies_since) == (False, ms(DONE - timedelta(days=10)))


def test_erasure(s3: Tables, s3_port: int) -> None:
    """The rows stay; of the files before none is left, and no row has the content."""
    rows: list[Row] = []
    for offset in range(4):
        t, mine = Transaction(0, offset), {"keys": f"customer-{offset}", "body": f"secret {offset}".encode()}
        rows += [t.half(**mine), t.op(), t.published("a", **mine), t.decision()]
    found, _ = in_batches(rows)
    write(None, s3, found)
    erasure = Erasure(s3, Selection.of("customer-2", None, None, None))
    with erasure.lock():
        there = erasure.find()
        assert ({name: number for name, number in there.rows.items() if number}) == {"topics/a": 1, "half": 1}
        erasure.erase(there, DONE)
        assert erasure.remove_files(round(time.time() * 1000)) == []
    for name in ("half", "topics/a"):
        place = s3.location(name)
        names = [entry for entry in table_files.names(place) if entry.endswith(".parquet")]
        read = [read_rows(f"{place}/{entry}", name, ["body", "erased_at"], pc.scalar(True)) for entry in names]
        bodies = pa.concat_tables(read).column("body").to_pylist()
        assert sorted(bodies, key=repr) == [None, *(b"secret %d" % offset for offset in (0, 1, 3))]
    storage = {"root": s3.root, "options": options(s3_port)}
    assert not Answers(Settings.model_validate({"storage": storage})).audit().broken
