"""A checkpoint or tables that were put back from a backup: nothing is lost without a word, nothing published twice."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from check.servers import Received, Server, Wire, reply, says
from checkback.application.rebuild import rebuild
from checkback.errors import StateError
from checkback.gateway.deduplication.history import DeduplicationHistory
from checkback.reconcile.start.idle_run import nothing_to_do
from reconcile.test_batch_rules import Lakehouse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from checkback.settings import Settings


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lakehouse:
    return Lakehouse(spark, tmp_path / "data")


class Backup:
    """A folder as it was, without the folder of the checkpoints."""

    def __init__(self, folder: str) -> None:
        self._folder, self._copy = folder, f"{folder}-backup"
        shutil.copytree(folder, self._copy, ignore=shutil.ignore_patterns("_checkpoints"))

    def put_back(self) -> None:
        for path in Path(self._folder).iterdir():
            if path.name != "_checkpoints":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(self._copy, self._folder, dirs_exist_ok=True)


@pytest.fixture
def commits() -> Iterator[Server]:
    """A producer that answers COMMIT to every check."""

    def answer(received: Received, wire: Wire) -> bool:
        wire.send(reply(says("COMMIT", received.json["transaction_id"])))
        return True

    with Server(answer) as server:
        yield server


def _asking(lake: Lakehouse, server: Server, check_interval: str = "1s") -> Settings:
    """Each transaction is checked at once, and then a ``check_interval`` later at the soonest."""
    settings = lake.settings(check_interval=check_interval, check_jitter="0s")
    producers: dict[str, Any] = {"g": {"endpoints": [server.url]}}
    return settings.model_validate(settings.model_dump(mode="json", by_alias=True) | {"producers": producers})


def test_check_begins_anew_where_its_checkpoint_does_not_belong_to_the_tables(
    lake: Lakehouse, commits: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Older than its answers; then its table is lost. No answer is left out, none is asked for or sent twice."""
    settings, place = _asking(lake, commits), lake.tables.checkpoint("check")
    lake.half(0)
    lake.run(settings)
    backup = Backup(place)
    for offset in (1, 2):
        lake.half(offset)
        lake.run(settings)
    backup.put_back()
    lake.half(3)
    lake.run(settings)
    assert f"{place}: the checkpoint is older than the tables" in caplog.text
    shutil.rmtree(lake.tables.location("check_requests"))
    lake.half(4)
    lake.run(settings)
    assert "the table check_requests is another one" in caplog.text
    assert lake.fates() == {offset: ["topics/t"] for offset in range(5)}
    assert lake.rows("op", "queue_offset") == [(offset,) for offset in range(5)]
    assert len(commits.received) == 5
    assert lake.rows("rejected", "reason") == []


def test_log_that_begins_after_the_last_batch_is_told(
    lake: Lakehouse, commits: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark lists the commits of a source's last batch when it starts, also if all of them are read.

    Of `check_requests` the check query begins anew; of `op` there is a line that names the rebuild.
    """
    settings = _asking(lake, commits)
    for offset in (0, 1):
        lake.half(offset)
        lake.run(settings)
    _cut_log(lake, "check_requests")
    lake.half(2)
    lake.run(settings)
    assert "the log of check_requests begins with version" in caplog.text
    assert lake.fates() == {offset: ["topics/t"] for offset in range(3)}
    assert len(commits.received) == 3
    _cut_log(lake, "op")
    with pytest.raises(StateError, match=r"the log of op begins with version .* run `checkback rebuild`"):
        lake.run(settings)


def _cut_log(lake: Lakehouse, name: str) -> None:
    """As after a compaction: a commit without new rows, and nothing before it but its checkpoint."""
    lake.tables.mark(lake.spark, name)
    table = DeltaTable(lake.tables.location(name))
    table.create_checkpoint()
    for version in range(table.version()):
        Path(lake.tables.location(name), "_delta_log", f"{version:020}.json").unlink()


def test_op_that_was_put_back_has_the_answers_again(lake: Lakehouse, caplog: pytest.LogCaptureFixture) -> None:
    """A run is stopped after its checks, and `op` put back before the next: the producer is not asked again for it."""

    def answer(received: Received, wire: Wire) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        wire.send(reply(says("COMMIT", received.json["transaction_id"])))
        return True

    with Server(answer) as server:
        settings = _asking(lake, server, check_interval="1h")
        lake.half(0)
        backup = Backup(lake.tables.location("op"))
        lake.run(settings)
        assert lake.rows("op", "queue_offset", "state") == [(0, "COMMIT")]
        assert lake.fates() == {}
        backup.put_back()
        lake.run(settings)
        assert "the table op was restored" in caplog.text
        assert lake.fates() == {0: ["topics/t"]}
        assert len(server.received) == 1


def test_checkpoint_of_check_that_cannot_be_read_is_put_aside(
    lake: Lakehouse, commits: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Its answers are found again. One of `land` is refused, in a line that says what helps there."""
    settings, place = _asking(lake, commits), lake.tables.checkpoint("check")
    lake.half(0)
    lake.run(settings)
    newest = max(Path(place, "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    newest.write_bytes(bytes(newest.stat().st_size))
    (newest.parent / f".{newest.name}.crc").unlink()
    lake.half(1)
    lake.run(settings)
    assert f"{place}: offsets/0 is torn or missing, as after a power cut: moved to" in caplog.text
    assert lake.fates() == {offset: ["topics/t"] for offset in range(2)}
    assert len(commits.received) == 2


def test_tables_that_are_older_than_the_checkpoint_are_refused_until_a_rebuild(lake: Lakehouse) -> None:
    settings = lake.settings()
    lake.half(0, 1)
    lake.commit(0)
    lake.run(settings)
    backup = Backup(lake.root)
    lake.commit(1)
    lake.run(settings)
    backup.put_back()
    with pytest.raises(StateError, match=r"the tables are older than the checkpoint.*`checkback rebuild`"):
        lake.run(settings)
    assert rebuild(lake.spark, settings, print) is not None
    lake.commit(1)
    lake.run(settings)
    assert lake.fates() == {0: ["topics/t"], 1: ["topics/t"]}


def test_checks_of_a_lost_transaction_count_for_no_other(lake: Lakehouse) -> None:
    """`half` was put back, and what was checked is lost: who gets its place is asked as if nobody had been."""
    settings = lake.settings(check_max=1)
    backup = Backup(lake.tables.location("half"))
    lake.half(0)
    lake.run(settings)
    assert lake.rows("check_requests", "transaction_id", "check_times") == [("t0", 1)]
    backup.put_back()
    new = {"queue_offset": 0, "transaction_id": "new", "real_topic": "t", "producer_group": "another"}
    lake.land("half", new)
    assert rebuild(lake.spark, settings, print) is not None
    lake.run(settings)
    assert lake.rows("check_requests", "transaction_id", "check_times") == [("new", 1), ("t0", 1)]
    asked = [("new", "NO_ANSWER"), ("t0", "NO_ANSWER")]
    assert lake.rows("check_answers", "transaction_id", "outcome") == asked


def test_half_that_was_put_back_and_written_since_is_refused_until_a_rebuild(lake: Lakehouse) -> None:
    """The gateway gives out no offset again that is decided; what had one all the same is pending."""
    settings = lake.settings()
    lake.half(0)
    lake.commit(0, 1)
    lake.run(settings)
    backup = Backup(lake.tables.location("half"))
    lake.half(1)
    lake.run(settings)
    assert lake.fates() == {0: ["topics/t"], 1: ["topics/t"]}
    now = round(time.time() * 1000)
    assert nothing_to_do(lake.tables, settings, now)
    backup.put_back()
    assert not nothing_to_do(lake.tables, settings, now)
    assert DeduplicationHistory(lake.root).next_offset(0) == 2
    for name in ("other", "another"):
        lake.land("half", {"queue_offset": 1 + (name == "another"), "transaction_id": name, "real_topic": "t"})
    with pytest.raises(StateError, match=r"the table half was restored .*`checkback rebuild`"):
        lake.run(settings)
    assert rebuild(lake.spark, settings, print) is not None
    ops = ({"transaction_id": name, "state": "COMMIT", "source": "producer"} for name in ("other", "another"))
    lake.land("op", *({"queue_offset": offset} | op for offset, op in enumerate(ops, start=1)))
    lake.run(settings)
    assert lake.rows("topics/t", "transaction_id") == [("another",), ("other",), ("t0",), ("t1",)]


def test_folder_that_was_moved_is_refused_until_a_rebuild(lake: Lakehouse) -> None:
    """Spark would look for the state where it was."""
    lake.half(0, 1)
    lake.commit(0)
    lake.run(lake.settings(timeout="1h"))
    moved = Lakehouse(lake.spark, Path(shutil.move(lake.root, f"{lake.root}-moved")))
    settings = moved.settings(timeout="1h")
    moved.commit(1)
    with pytest.raises(StateError, match=r"the checkpoint was moved or copied.*`checkback rebuild`"):
        moved.run(settings)
    assert rebuild(lake.spark, settings, print) is not None
    moved.run(settings)
    assert moved.fates() == {0: ["topics/t"], 1: ["topics/t"]}


def test_start_on_other_tables_leaves_the_checkpoints_alone(lake: Lakehouse, commits: Server, tmp_path: Path) -> None:
    """Another `storage.root` with the same `storage.checkpoints`: those whose they are go on."""
    settings, other = _asking(lake, commits), Lakehouse(lake.spark, tmp_path / "other")
    lake.half(0)
    lake.run(settings)
    before = sorted(os.listdir(lake.tables.checkpoint("")))
    storage = {"root": other.root, "checkpoints": lake.tables.checkpoints}
    wrong = settings.model_validate(
        settings.model_dump(mode="json", by_alias=True) | {"storage": storage, "producers": {}}
    )
    with pytest.raises(StateError, match="is that of other tables; give these"):
        other.run(wrong)
    assert sorted(os.listdir(lake.tables.checkpoint(""))) == before
    lake.half(1)
    lake.run(settings)
    assert lake.fates() == {0: ["topics/t"], 1: ["topics/t"]}
