"""`maintain` on tables of a folder: fewer files, the same rows; what goes and what stays; who else is at work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from checkback.errors import FencedError, StorageError
from checkback.maintain import compaction as compacting
from checkback.maintain.maintenance import LOCK
from checkback.maintain.streams import LOST, OTHERS, REBUILDING
from checkback.reconcile.checkpoint_owner import claim
from checkback.storage.lock import exclusive_lock
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema, properties_of
from checkback.storage.tables import Tables
from gateway.process import Gateway, half
from maintain.fixtures import DAY_MS, QUEUES, Sender, append, files_of, maintained, rows_of, settings_of
from support.examples import fewer
from support.features import with_checkpoint_protection

pytestmark = pytest.mark.slow

PATIENCE_S = 60


def now_ms() -> int:
    return round(time.time() * 1000)


def decisions(random: Random, first: int, count: int, decided_ms: int) -> pa.Table:
    schema = arrow_schema("decisions")
    rows = [
        {
            "queue_id": 0,
            "queue_offset": first + number,
            "transaction_id": f"t{first + number}",
            "producer_group": "ga",
            "real_topic": "orders",
            "state": random.choice(["COMMIT", "ROLLBACK"]),
            "source": "producer",
            "check_times": 0,
            "decided_at": datetime.fromtimestamp(decided_ms / 1000, timezone.utc),
            "batch_id": first,
        }
        for number in range(count)
    ]
    return pa.Table.from_pylist(rows, schema=schema)


@fewer(20)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 12), min_size=1, max_size=4))
def test_fewer_files_and_the_same_rows(tmp_path_factory: pytest.TempPathFactory, seed: int, rounds: list[int]) -> None:
    """Whatever is appended between runs; the versions before are still there."""
    root = tmp_path_factory.mktemp("tables")
    settings = settings_of(root)
    sender, random = Sender(root, seed=seed), Random(seed)
    for number, commits in enumerate(rounds):
        for _ in range(commits):
            sender.commit()
            append(root, "decisions", decisions(random, 100 * number, random.randint(1, 3), random.randrange(10**12)))
        before = {name: rows_of(root, name) for name in ("half", "decisions")}
        files = {name: files_of(root, name) for name in before}
        versions = {name: DeltaTable(str(root / name)).version() for name in before}
        done = maintained(settings)
        for name, rows in before.items():
            assert rows_of(root, name) == rows
            assert rows_of(root, name, versions[name]) == rows
            assert (done[name].files_before, done[name].files_after) == (len(files[name]), len(files_of(root, name)))
            assert len(files_of(root, name)) <= len(files[name])
        assert len(files_of(root, "half")) == 1 or len(files["half"]) < 4
        _assert_statistics_hold(root, "half", ("queue_id", "queue_offset", "store_timestamp"))
        _assert_statistics_hold(root, "decisions", ("queue_id", "queue_offset", "decided_at"))
    assert len(rows_of(root, "half")) == sender.sent


def _assert_statistics_hold(root: Path, name: str, columns: tuple[str, ...]) -> None:
    """Each file still says of each column which values it holds."""
    for file in DeltaLog(name, f"{root}/{name}").data_files():
        rows = pq.read_table(file.path)
        assert set(file.spans) == set(columns)
        for column, (least, most) in file.spans.items():
            values = rows.column(column).to_pylist()
            assert least <= min(values)
            assert max(values) <= most


def test_rows_lie_in_the_order_of_their_offsets_in_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a lookup by offsets reads a few row groups of a large file."""
    monkeypatch.setattr(compacting, "_ROW_GROUP", 4096)
    sender = Sender(tmp_path)
    for _ in range(60):
        sender.commit(20)
    maintained(settings_of(tmp_path))
    (name,) = files_of(tmp_path, "half")
    with pq.ParquetFile(tmp_path / "half" / name) as file:
        rows = file.read(["queue_id", "queue_offset"]).to_pylist()
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    keys = [(row["queue_id"], row["queue_offset"]) for row in rows]
    assert keys == sorted(keys)
    assert {queue for queue, _ in keys} == set(QUEUES)
    assert len(groups) > 5
    ends = []
    for group in groups:
        spans = {group.column(n).path_in_schema: group.column(n).statistics for n in range(group.num_columns)}
        assert spans["queue_id"].has_min_max
        assert spans["body"] is None or not spans["body"].has_min_max
        ends.append((spans["queue_id"].min, spans["queue_offset"].min, spans["queue_offset"].max))
    one_queue = [end for end in ends if end[0] == 0][:-1]  # the last one may hold the next queue's first rows
    assert all(before[2] < after[1] for before, after in pairwise(one_queue))


def test_run_with_nothing_to_do_changes_nothing(tmp_path: Path) -> None:
    sender = Sender(tmp_path)
    for _ in range(20):
        sender.commit()
    settings = settings_of(tmp_path)
    dry = maintained(settings, dry_run=True)["half"]
    assert (dry.files_after, dry.rewritten, dry.version_after) == (1, 20, dry.version_before)
    assert len(files_of(tmp_path, "half")) == 20
    assert maintained(settings)["half"].rewritten == 20
    listed = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file())
    again = maintained(settings)["half"]
    assert (again.rewritten, again.removed_files, again.removed_commits) == (0, 0, 0)
    assert [path for path in listed if LOCK not in path[0].name] == sorted(
        (path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file() and path.name != LOCK
    )


def test_replaced_files_are_in_no_checkpoint(tmp_path: Path) -> None:
    """At two commits a second a million of them a week, which each checkpoint would list: one every ten seconds."""
    sender = Sender(tmp_path)
    for _ in range(10):
        sender.commit()
    assert maintained(settings_of(tmp_path))["half"].rewritten == 10
    for _ in range(20):
        sender.commit()
    checkpoints = sorted((tmp_path / "half/_delta_log").glob("*.checkpoint.parquet"))
    assert len(checkpoints) == 2, "the one of the run, and the gateway's"
    for checkpoint in checkpoints:
        assert not pq.read_table(checkpoint, columns=["remove"]).column("remove").drop_null()
    assert len(rows_of(tmp_path, "half")) == sender.sent


def test_what_is_old_goes_and_what_is_young_stays(tmp_path: Path) -> None:
    """Files that OPTIMIZE replaced, those of a writer that was killed, the log; fences and claims in it stay."""
    sender = Sender(tmp_path)
    for _ in range(50):
        sender.commit()
    orphan = tmp_path / "half/part-orphan.parquet"
    orphan.write_bytes(b"written by a process that was killed before its commit")
    (tmp_path / "half/notes.txt").write_text("not a file of the table")
    settings, rows = settings_of(tmp_path, log_retention="30d"), rows_of(tmp_path, "half")
    young = maintained(settings)["half"]
    assert (young.removed_files, young.removed_commits) == (0, 0)
    assert maintained(settings, now_ms() + DAY_MS * 6)["half"].removed_files == 0
    assert orphan.exists()
    dry = maintained(settings, now_ms() + DAY_MS * 8, dry_run=True)["half"]
    assert orphan.exists()
    old = maintained(settings, now_ms() + DAY_MS * 8)["half"]
    assert (old.removed_files, old.removed_bytes) == (51, dry.removed_bytes) == (dry.removed_files, old.removed_bytes)
    assert not orphan.exists()
    assert (tmp_path / "half/notes.txt").exists()
    assert {path.name for path in (tmp_path / "half").glob("*.parquet")} == files_of(tmp_path, "half")
    assert rows_of(tmp_path, "half") == rows
    assert (tmp_path / "half/_delta_log" / f"{0:020}.json").exists(), "the log's own retention is longer"

    log = maintained(settings, now_ms() + DAY_MS * 31)["half"]
    assert log.removed_commits is not None
    assert log.removed_commits > 50
    assert not (tmp_path / "half/_delta_log" / f"{0:020}.json").exists()
    assert rows_of(tmp_path, "half") == rows
    sender.commit()  # one that has been idle since, and whose versions were committed in what is gone
    assert len(rows_of(tmp_path, "half")) == sender.sent
    with pytest.raises(FencedError):
        Sender(tmp_path, epoch=1)
    maintained(settings, now_ms() + DAY_MS * 31)


def test_file_that_was_removed_before_its_commit_is_not_committed(tmp_path: Path) -> None:
    """A gateway is stopped for longer than the retention (SIGSTOP) once it has written a file, and goes on."""
    sender = Sender(tmp_path)
    sender.commit()
    before, log = rows_of(tmp_path, "half"), DeltaLog("half", str(tmp_path / "half"))
    with FileWriter(str(tmp_path)) as writer:
        writer.write("half", sender.rows(0, 3))
        files = writer.close()
    assert maintained(settings_of(tmp_path), now_ms() + DAY_MS * 8)["half"].removed_files == 1
    with pytest.raises(StorageError, match="a file was removed before its commit"):
        log.commit(files)
    assert rows_of(tmp_path, "half") == before


def test_every_state_within_the_retention_stays_readable(tmp_path: Path) -> None:
    sender = Sender(tmp_path)
    states: dict[int, tuple[int, list[dict[str, object]]]] = {}
    settings = settings_of(tmp_path, retention="2d", log_retention="3d")
    log = tmp_path / "half/_delta_log"
    began, removed = now_ms() - 10 * DAY_MS, 0
    for day in range(10):
        for _ in range(8):
            sender.commit()
        if day % 3 == 2:
            done = maintained(settings, began + day * DAY_MS)["half"]
            removed += done.removed_files or 0
        # What was written so far was written on that day, as far as anybody can see.
        for path in [*log.iterdir(), *(tmp_path / "half").glob("*.parquet")]:
            if path.stat().st_mtime * 1000 > began + 10 * DAY_MS - 60_000:
                os.utime(path, ((began + day * DAY_MS) / 1000,) * 2)
        version = DeltaTable(str(tmp_path / "half")).version()
        states[day] = version, rows_of(tmp_path, "half")
    done = maintained(settings, began + 9 * DAY_MS + 1000)["half"]
    assert removed > 15
    assert done.removed_commits
    for day in (7, 8, 9):
        version, rows = states[day]
        assert rows_of(tmp_path, "half", version) == rows
    assert not (log / f"{states[0][0]:020}.json").exists()


@pytest.mark.processes
def test_appends_beside_it_land_and_are_never_there_twice(tmp_path: Path) -> None:
    """A gateway as a process of its own, and a second writer, while runs follow upon each other."""
    settings = settings_of(tmp_path)
    stop, failed = threading.Event(), list[BaseException]()
    with Gateway(tmp_path, "gateway.queues=[5]") as gateway:
        sent = 0
        sender = Sender(tmp_path)

        def send() -> None:
            try:
                while not stop.is_set():
                    sender.commit()
            except BaseException as error:  # noqa: BLE001 - told by the test
                failed.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        rewritten = 0
        deadline = time.monotonic() + PATIENCE_S
        while rewritten < 60 and time.monotonic() < deadline:
            for _ in range(5):
                assert gateway.post("/v1/half", half(f"g-{sent}")).status_code == 200
                sent += 1
            rewritten += maintained(settings)["half"].rewritten or 0
        stop.set()
        thread.join(PATIENCE_S)
    assert failed == []
    assert rewritten >= 60
    rows = rows_of(tmp_path, "half")
    keys = [(row["queue_id"], row["queue_offset"]) for row in rows]
    assert len(keys) == len(set(keys)) == sender.sent + sent


def test_somebody_elses_optimize_at_the_same_time_duplicates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs itself would commit both: each row would be there twice."""
    sender = Sender(tmp_path)
    for _ in range(10):
        sender.commit()
    rows = rows_of(tmp_path, "half")
    write = compacting.rewritten

    def overtaken(name: str, root: str, paths: list[str]) -> object:
        files = write(name, root, paths)
        DeltaTable(str(tmp_path / "half")).optimize.compact()
        return files

    monkeypatch.setattr(compacting, "rewritten", overtaken)
    done = maintained(settings_of(tmp_path))["half"]
    assert done.rewritten == 0
    assert rows_of(tmp_path, "half") == rows


def test_second_run_at_the_same_time_says_so_and_ends(tmp_path: Path) -> None:
    Sender(tmp_path).commit()
    settings = settings_of(tmp_path)
    with (
        exclusive_lock(Tables.of(settings.storage), LOCK),
        pytest.raises(FencedError, match="is already working on these tables"),
    ):
        maintained(settings)
    with exclusive_lock(Tables.of(settings.storage)):  # reconcile is no reason
        maintained(settings)


def test_table_that_somebody_has_altered_is_left_alone(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    place, rows = str(tmp_path / "half"), [pa.table({"queue_id": [number], "body": [b""]}) for number in range(5)]
    options = {"configuration": properties_of("half"), "raise_if_key_not_exists": False}
    DeltaTable.create(place, rows[0].schema, partition_by=["queue_id"], **options)  # type: ignore[arg-type]
    for some in rows:
        write_deltalake(place, some, mode="append")
    done = maintained(settings_of(tmp_path))["half"]
    assert done.skipped is not None
    assert (done.files_after, done.removed_files) == (5, 0)


def test_protected_log_is_left_alone(tmp_path: Path) -> None:
    """The feature that DROP FEATURE leaves forbids to remove what is old from the log."""
    sender = Sender(tmp_path)
    for _ in range(5):
        sender.commit()
    with_checkpoint_protection(tmp_path / "half")
    sender.commit()
    done = maintained(settings_of(tmp_path))["half"]
    assert done.skipped is not None
    assert (done.files_after, done.rewritten, done.removed_commits) == (6, 0, 0)


def test_damaged_topic_stops_no_other_table(tmp_path: Path) -> None:
    sender = Sender(tmp_path)
    for _ in range(6):
        sender.commit()
    DeltaLog.create("topics/a", f"{tmp_path}/topics/a")
    (tmp_path / "topics/a/_delta_log/00000000000000000000.crc").unlink(missing_ok=True)
    (tmp_path / "topics/a/_delta_log/00000000000000000000.json").write_text("{what is this?")
    done = maintained(settings_of(tmp_path))
    assert "version 0 of the table's log is empty or cut off" in str(done["topics/a"].skipped)
    assert done["half"].rewritten == 6


def test_nothing_goes_where_reconcile_cannot_be_seen(tmp_path: Path) -> None:
    """Its checkpoint lies in a folder that the settings do not name, is not the last one, or is being built anew."""
    sender = Sender(tmp_path)
    for _ in range(5):
        sender.commit()
    settings = settings_of(tmp_path)
    maintained(settings)
    append(tmp_path, "decisions", decisions(Random(1), 0, 1, 0))
    claim(None, Tables.of(settings.storage), "some-query", 64)  # type: ignore[arg-type]  # in folders it needs no Spark
    long_after = now_ms() + 40 * DAY_MS
    done = maintained(settings, long_after)["half"]
    assert (done.removed_files, done.kept) == (0, (LOST,))
    (tmp_path / "_checkpoints/reconcile").mkdir(parents=True)
    (tmp_path / "_checkpoints/reconcile/metadata").write_text('{"id": "a-query-before"}')
    done = maintained(settings, long_after)["half"]
    assert (done.removed_files, done.kept) == (0, (OTHERS,))
    (tmp_path / "_checkpoints/reconcile/metadata").write_text('{"id": "some-query"}')
    (tmp_path / "_checkpoints/reconcile.rebuilding").mkdir()
    done = maintained(settings, long_after)["half"]
    assert (done.removed_files, done.kept) == (0, (REBUILDING,))
    (tmp_path / "_checkpoints/reconcile.rebuilding").rmdir()
    assert maintained(settings, long_after)["half"].removed_files == 5


_KILLED = """
import os, signal, sys
from checkback.storage.log.delta_log import DeltaLog
from checkback.maintain import table_folder
from maintain.fixtures import maintained, settings_of
step, root, now = sys.argv[1:]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if step == "commit":
    DeltaLog.replace = die
elif step == "checkpoint":
    DeltaLog.checkpoint = die
else:
    remove, left = table_folder._remove, [7]
    def some(path):
        if left[0] == 0:
            die()
        left[0] -= 1
        remove(path)
    table_folder._remove = some
    if step == "log":
        def remove_log_only(place, names):
            return [some(f"{place}/{name}") for name in names] if place.endswith("_log") else None
        table_folder.remove_data = remove_log_only
maintained(settings_of(root), int(now))
"""


@pytest.mark.processes
@pytest.mark.parametrize("step", ["commit", "checkpoint", "data", "log"])
def test_killed_at_any_point_it_harms_nothing(tmp_path: Path, step: str) -> None:
    """Kill -9 before its commit, after it, amid the removals: the rows are there, and the next run does the rest."""
    sender = Sender(tmp_path)
    for _ in range(45):
        sender.commit()
    rows = rows_of(tmp_path, "half")
    settings, now = settings_of(tmp_path), now_ms() + 40 * DAY_MS
    if step in ("data", "log"):
        maintained(settings)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path])}
    command = [sys.executable, "-c", _KILLED, step, str(tmp_path), str(now)]
    run = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert run.returncode == -signal.SIGKILL, run.stderr
    assert rows_of(tmp_path, "half") == rows
    sender.commit()
    rows = rows_of(tmp_path, "half")
    maintained(settings, now)
    assert rows_of(tmp_path, "half") == rows
    maintained(settings, now)  # it removes what the first one has only just replaced
    left = {path.name for path in (tmp_path / "half").glob("*.parquet")}
    assert left == files_of(tmp_path, "half")


def test_checkpoints_that_were_set_aside_long_ago_go(tmp_path: Path) -> None:
    """Younger ones, and folders of other names, stay."""
    Sender(tmp_path).commit()
    folder = tmp_path / "_checkpoints"
    names = ("reconcile.before-20240101T000000Z", "reconcile.before-yesterday", "check", "other.before-")
    young = f"check.before-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    for name in (*names, young):
        (folder / name / "offsets").mkdir(parents=True)
    maintained(settings_of(tmp_path), dry_run=True)
    assert len(list(folder.iterdir())) == len(names) + 1
    maintained(settings_of(tmp_path))
    assert {path.name for path in folder.iterdir()} == {*names[1:], young}
