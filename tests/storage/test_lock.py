"""One process on the tables at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from checkback.application.queries import reconcile
from checkback.cli import main
from checkback.errors import FencedError, StorageError
from checkback.settings import Settings
from checkback.storage.lock import FILE, exclusive_lock, lock_is_held
from checkback.storage.tables import Tables

_HOLD = """
import sys
from checkback.storage.lock import exclusive_lock
from checkback.storage.tables import Tables
with exclusive_lock(Tables(root=sys.argv[1])):
    print("in", flush=True)
    sys.stdin.read()
"""


def _hold(root: Path) -> subprocess.Popen[str]:
    """Another process that is in."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    return process


def _end(process: subprocess.Popen[str], number: signal.Signals) -> None:
    process.send_signal(number)
    process.communicate()


@pytest.mark.processes
def test_batch_function_elsewhere_works_for_the_holder_only(tmp_path: Path) -> None:
    """With Spark Connect its process goes on when the client is killed: nobody holds the lock then, or a successor."""
    tables = Tables(root=str(tmp_path))
    with exclusive_lock(tables):
        elsewhere = pickle.loads(pickle.dumps(tables))  # noqa: S301 - ours
        elsewhere.guard()
    with pytest.raises(FencedError, match=r"process \d+ on \S+, which started this query, no longer works on these"):
        elsewhere.guard()
    # A container that was started again: the process's number and the host's name are the same.
    with exclusive_lock(tables), pytest.raises(FencedError):
        elsewhere.guard()
    process = _hold(tmp_path)
    try:
        with pytest.raises(FencedError):
            elsewhere.create(None, "op")
    finally:
        _end(process, signal.SIGKILL)


@pytest.mark.parametrize("named", ["checkpoints", "data/_checkpoints"])
def test_checkpoints_are_those_of_one_process_on_whatever_tables(tmp_path: Path, named: str) -> None:
    """Another `storage.root` with the same `storage.checkpoints`: it would move away what the other one works with."""
    shared = str(tmp_path / named)
    first, other = Tables(root=str(tmp_path / "data"), checkpoints=shared), Tables(str(tmp_path / "b"), "", "", shared)
    with exclusive_lock(first):
        with pytest.raises(FencedError) as caught, exclusive_lock(other):
            raise AssertionError
        with exclusive_lock(other, "_maintain.lock"):
            pass
    told = f"{shared}: process {os.getpid()} on {os.uname().nodename} is already working with these checkpoints, on "
    assert str(caught.value).startswith(f"{told}other tables; give these tables a storage.checkpoints of their own")
    with exclusive_lock(other):
        pass
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with exclusive_lock(Tables(root=str(tmp_path / "data"), checkpoints=str(tmp_path / "link"))):
        pass


def test_checkpoints_may_be_where_there_are_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some network file systems; the tables' lock, or lease, is elsewhere."""
    flock, place = fcntl.flock, tmp_path / "checkpoints"

    def without(descriptor: int, operation: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(place / FILE):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", without)
    tables = Tables(root=str(tmp_path / "data"), checkpoints=str(place))
    with exclusive_lock(tables), pytest.raises(FencedError), exclusive_lock(tables):
        pytest.fail("two are in")


@pytest.mark.processes
def test_looking_tells_who_is_in_and_keeps_nobody_out(tmp_path: Path) -> None:
    """Also while others look all the time; after kill -9 nobody is in."""
    tables = Tables(root=str(tmp_path))
    assert lock_is_held(tables) == ""
    assert not (tmp_path / FILE).exists()
    process = _hold(tmp_path)
    try:
        assert (lock_is_held(tables) or "").startswith(f"process {process.pid} on ")
    finally:
        _end(process, signal.SIGKILL)
    assert lock_is_held(tables) == ""
    with exclusive_lock(tables):
        assert (lock_is_held(tables) or "").startswith(f"process {os.getpid()} on ")
    assert lock_is_held(Tables(root="s3://bucket/tables")) is None


def test_who_looks_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that falls on the moment of a start does not fence the start."""
    (tmp_path / FILE).touch()
    descriptor = os.open(tmp_path / FILE, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    # Whoever looks is gone when the start tries again.
    monkeypatch.setattr(time, "sleep", lambda seconds: os.close(descriptor) if seconds else None)
    with exclusive_lock(Tables(root=str(tmp_path))):
        assert lock_is_held(Tables(root=str(tmp_path)))


@pytest.mark.processes
def test_second_process_is_told_who_is_in_and_what_to_do(tmp_path: Path) -> None:
    """As long as the first one lives; kill -9 lets go of the tables."""
    process = _hold(tmp_path)
    try:
        for checkpoints in ("", str(tmp_path / "elsewhere")):  # the tables count, not the checkpoint
            with (
                pytest.raises(FencedError, match=f"process {process.pid} on .* is already working on these tables"),
                exclusive_lock(Tables(root=str(tmp_path), checkpoints=checkpoints)),
            ):
                pytest.fail("two are in")
    finally:
        _end(process, signal.SIGKILL)
    with exclusive_lock(Tables(root=str(tmp_path))):
        assert (tmp_path / FILE).read_text().startswith(f"process {os.getpid()} on ")


def test_lock_that_is_taken_away_is_noticed(tmp_path: Path) -> None:
    """With its file, as when the folder is put back, the next one gets in; then the first one is told to end."""
    tables, path = Tables(root=str(tmp_path)), tmp_path / FILE
    with exclusive_lock(tables) as first:
        first.confirm()
        path.unlink()
        (tmp_path / "_checkpoints" / FILE).unlink()
        with pytest.raises(FencedError, match=r"the lock file was deleted.*another process may work on these tables"):
            first.confirm()
        with exclusive_lock(tables) as second:
            second.confirm()
            with pytest.raises(FencedError, match="make sure that no process works on them"):
                first.confirm()
    with exclusive_lock(Tables(root="s3://bucket/tables")) as nowhere:
        nowhere.confirm()


def test_file_that_is_taken_away_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock on a file without a name keeps nobody out."""
    flock, path = fcntl.flock, tmp_path / FILE

    def taken_away(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        path.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", taken_away)
    tables = Tables(root=str(tmp_path))
    with exclusive_lock(tables) as lock:
        lock.confirm()
        with pytest.raises(FencedError), exclusive_lock(tables):
            pytest.fail("two are in")


def test_other_tables_are_free_and_so_are_these_afterwards(tmp_path: Path) -> None:
    """It makes the folder; a second `with` in the same process is kept out, too."""
    tables = Tables(root=str(tmp_path / "a"))
    for _ in range(2):
        other = Tables(root=str(tmp_path / "b"))
        with exclusive_lock(tables), exclusive_lock(other), pytest.raises(FencedError), exclusive_lock(tables):
            pytest.fail("two are in")


def test_tables_that_are_not_local_are_guarded_beside_a_local_checkpoint(tmp_path: Path) -> None:
    """And not at all where that is not local, either."""
    catalog = Tables(catalog="main", schema="checkback", checkpoints=str(tmp_path))
    with exclusive_lock(catalog), pytest.raises(FencedError), exclusive_lock(catalog):
        pytest.fail("two are in")
    remote = Tables(root="s3://bucket/tables")
    with exclusive_lock(remote), exclusive_lock(remote):
        assert sorted(os.listdir(tmp_path)) == [FILE]


def test_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(StorageError, match="the lock file cannot be created: "),
        exclusive_lock(Tables(root=f"{tmp_path}/file")),
    ):
        pytest.fail("in")


def test_second_reconcile_ends_before_it_touches_anything(tmp_path: Path) -> None:
    """Without even looking for Spark; the same for a scheduled run."""
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    nobody: Any = None
    with exclusive_lock(Tables.of(settings.storage)):
        for available_now in (True, False):
            with pytest.raises(FencedError, match="one is enough"):
                reconcile(nobody, settings, available_now)
    assert sorted(os.listdir(tmp_path)) == ["_checkpoints", FILE]
    assert os.listdir(tmp_path / "_checkpoints") == [FILE]


@pytest.mark.processes
@pytest.mark.parametrize("command", ["reconcile", "rebuild"])
def test_second_process_is_refused_before_spark_starts(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("checkback.commands.reconcile.running_session", None)
    monkeypatch.chdir(tmp_path)
    process = _hold(tmp_path)
    try:
        assert main([command, "--set", f"storage.root={tmp_path}"]) == 1
    finally:
        _end(process, signal.SIGKILL)
    told = f"checkback: {tmp_path}: process {process.pid} on {os.uname().nodename} is already working on these tables; "
    assert capfd.readouterr().err.startswith(told)
