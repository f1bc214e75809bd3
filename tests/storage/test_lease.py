"""A lease: one holder at a time, whatever stops, dies, or is slow; on a real S3 server, with clocks of our own."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, cast

import obstore
import pytest

from checkback.application.queries import Queries
from checkback.application.rebuild import _forestall
from checkback.errors import FencedError, StorageError
from checkback.maintain.maintenance import LOCK
from checkback.reconcile.checkpoint_owner import NAME, WRITTEN
from checkback.reconcile.checkpointed_rules import batch_rules, keep
from checkback.settings import Settings, Storage
from checkback.spark.shutdown import GracefulShutdown
from checkback.storage.files import filesystem, table_files
from checkback.storage.files import lease as module
from checkback.storage.files.lease import TTL_S, Lease, holder_of, read_lease, store_time
from checkback.storage.files.object_store import register
from checkback.storage.lock import FILE, exclusive_lock, lock_is_held
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables
from support.s3_server import BUCKET, options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession


@dataclass
class Clock:
    """A process's own clock, in s; ``meanwhile`` happens in each pause."""

    at: float = 1000.0
    meanwhile: Callable[[], object] = bool

    def __call__(self) -> float:
        return self.at

    def pause(self, seconds: float) -> None:
        self.at += seconds
        self.meanwhile()


def _after(place: str, seconds: float, clock: Clock | None = None) -> Lease:
    """Taken when the store's clock has gone on."""
    own = clock or Clock()
    return Lease(place, own, lambda where: store_time(where) + timedelta(seconds=seconds), own.pause)


@pytest.fixture
def place(store: Tables) -> str:
    return f"{store.root}/{FILE}"


def test_second_is_told_who_holds_it_once_it_is_renewed(store: Tables, place: str) -> None:
    with exclusive_lock(store) as lock:
        lock.confirm()
        assert lock.lease is not None
        assert (lock_is_held(store) or "").startswith("process ")
        clock = Clock(meanwhile=lock.lease.renew)
        with pytest.raises(FencedError, match=r"process \d+ on .* is already working .*: one is enough$"):
            _after(place, 0, clock)
        assert clock.at == Clock.at + 1, "it looks each second"
    assert lock_is_held(store) == ""
    with exclusive_lock(store):  # it was given back: nobody waits
        pass


@pytest.mark.parametrize("ahead_s", [-3600, 3600])
def test_holder_is_told_by_the_clock_of_the_store(
    store: Tables, place: str, ahead_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by that of the machine that asks, which is wrong."""
    held = Lease(place)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + ahead_s)
    assert (lock_is_held(store) or "").startswith("process ")
    with monkeypatch.context() as patch:
        patch.setattr(module, "store_time", lambda where: store_time(where) + timedelta(seconds=TTL_S + 5))
        assert lock_is_held(store) == ""
    held.release()
    assert lock_is_held(store) == ""


def test_holder_is_told_to_who_may_only_read(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: str) -> datetime:
        raise StorageError("cannot be written: 403 Forbidden")

    Lease(place)
    now = time.time()
    monkeypatch.setattr(module, "store_time", refused)
    monkeypatch.setattr(time, "time", lambda: now + TTL_S / 2)
    assert holder_of(place).startswith("process ")
    monkeypatch.setattr(time, "time", lambda: now + TTL_S + 5)
    assert holder_of(place) == ""


@pytest.mark.parametrize("late_s", [0, TTL_S - 5, TTL_S, TTL_S + 5])
def test_dead_holder_is_succeeded_when_its_time_is_over(
    place: str, late_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    """A start that comes earlier waits for that, and says so."""
    Lease(place)  # never renewed: its process is dead
    clock = Clock()
    _after(place, late_s, clock).confirm()
    waited = clock.at - Clock.at
    assert waited == pytest.approx(max(0, TTL_S - late_s), abs=2)  # the store tells whole seconds
    told = [record.getMessage() for record in caplog.records]
    assert bool(told) == bool(waited)
    assert all("holds the lease of these tables" in line and line.endswith(f"in {waited:.0f} s") for line in told)


def test_lease_that_is_given_back_is_taken_at_once(place: str) -> None:
    held, clock = Lease(place), Clock()
    clock.meanwhile = held.release
    _after(place, 0, clock).confirm()
    assert clock.at == Clock.at + 1


def test_of_two_that_wait_one_takes_it(place: str) -> None:
    Lease(place)
    clock = Clock()
    clock.meanwhile = lambda: _after(place, TTL_S + 5) if clock.at >= Clock.at + TTL_S - 3 else None
    with pytest.raises(FencedError, match="is already working on these tables"):
        _after(place, 0, clock)


def test_stopped_holder_writes_nothing_more(store: Tables, place: str) -> None:
    """SIGSTOP for longer than the lease: its clock has gone on when it wakes up, and each commit asks."""
    clock = Clock()
    stopped = Lease(place, clock)
    store.guard.confirm = stopped.confirm
    store.create(None, "op")  # type: ignore[arg-type]
    successor = _after(place, TTL_S + 5)
    clock.at += TTL_S + 5
    for _ in range(2):
        with pytest.raises(FencedError, match="another process has taken over"):
            store.commit(None, "op", [], "app", 1)  # type: ignore[arg-type]
        with pytest.raises(FencedError):
            store.mark(None, "op")  # type: ignore[arg-type]
    successor.confirm()


def test_batch_function_elsewhere_works_for_the_holder_only(store: Tables) -> None:
    """As of Spark Connect, whose client may be killed."""
    with exclusive_lock(store):
        elsewhere = pickle.loads(pickle.dumps(store))  # noqa: S301 - ours
        elsewhere.create(None, "op")
    with exclusive_lock(store), pytest.raises(FencedError, match=r" on \S+, which started this query, no longer works"):
        elsewhere.commit(None, "op", [], "app", 1)  # also if the successor has the same name
    with pytest.raises(FencedError, match="no longer works on these tables"):
        elsewhere.commit(None, "op", [], "app", 1)


def test_stopped_holder_replaces_no_rules_of_batches(store: Tables, place: str) -> None:
    """Stopped during its start; those of its successor's batches hold for their replay."""
    clock = Clock()
    stopped = Lease(place, clock)
    store.guard.confirm = stopped.confirm
    rules = store.checkpoint(NAME)
    keep(None, rules, 7, batch_rules(Settings(), 4))  # type: ignore[arg-type]  # no Spark is needed
    _after(place, TTL_S + 5)
    clock.at += TTL_S + 5
    late = Settings.model_validate({"transaction": {"timeout": "1h"}})
    with pytest.raises(FencedError):
        Queries(None, late, store, GracefulShutdown(), None, 4).finish_begun(None)  # type: ignore[arg-type]
    assert filesystem.names(None, f"{rules}/rules") == ["7"]


def test_holder_stops_before_anybody_may_succeed(place: str) -> None:
    """By the store's clock, its time ends later than by its own."""
    clock = Clock()
    held = Lease(place, clock)
    clock.at += TTL_S - 4
    with pytest.raises(FencedError):
        _after(place, TTL_S - 4, Clock(meanwhile=held.confirm))  # late, but nobody has taken it: renewed
    clock.at += TTL_S - 6
    register(place, {"aws_endpoint_url": "http://127.0.0.1:9"})  # nothing is asked meanwhile
    held.confirm()


def test_store_that_cannot_be_reached_ends_it_in_time(
    store: Tables, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    held = Lease(place, clock)

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("timed out")

    monkeypatch.setattr(obstore, "put", unreachable)
    with pytest.raises(StorageError, match="timed out"):
        held.renew()
    held.confirm()
    clock.at += TTL_S
    with pytest.raises(StorageError, match="timed out"):
        held.confirm()


def test_write_that_was_done_and_answered_with_an_error_is_ours(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client repeats the request, and is refused because of its own object."""
    put: Any = obstore.put

    def twice(*args: object, **options: object) -> object:
        put(*args, **options)
        return put(*args, **options)

    monkeypatch.setattr(obstore, "put", twice)
    held = Lease(place)
    held.renew()
    held.confirm()
    held.release()
    assert holder_of(place) == ""


def test_two_successors_are_one(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have read the lease of a dead process."""
    Lease(place)
    found = read_lease(place)
    _after(place, TTL_S + 5).confirm()
    monkeypatch.setattr(module, "read_lease", lambda _: found)
    with pytest.raises(FencedError):
        _after(place, TTL_S + 5)


@pytest.mark.parametrize("content", [b'{"other": 1}', b"process 12 on host\n", b"", b"[]"])
def test_what_is_no_lease_is_an_error(place: str, content: bytes) -> None:
    """As a folder's lock file, copied with its tables."""
    table_files.write(place, content)
    with pytest.raises(StorageError, match=r"_reconcile.lock: is no lease; if no process works .* delete it"):
        Lease(place)


def test_time_of_the_store(place: str) -> None:
    assert abs(store_time(place) - datetime.now(timezone.utc)) < timedelta(minutes=1)


def test_renewal_that_was_made_and_reported_as_failed_is_ones_own(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, put = Clock(), obstore.put
    held = Lease(place, clock)

    def unanswered(*args: Any, **options: Any) -> None:
        put(*args, **options)
        raise obstore.exceptions.GenericError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put", unanswered)
        with pytest.raises(StorageError):
            held.renew()
    clock.at += TTL_S
    held.confirm()
    with pytest.raises(FencedError, match="is already working"):
        _after(place, 0, Clock(meanwhile=held.renew))
    held.release()
    assert holder_of(place) == ""


def test_renewal_of_another_is_not_taken_for_ones_own(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, put = Clock(), obstore.put
    held = Lease(place, clock)

    def lost(*args: Any, **options: Any) -> None:
        raise obstore.exceptions.GenericError("not sent")

    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put", lost)
        with pytest.raises(StorageError):
            held.renew()
    _after(place, TTL_S)
    clock.at += TTL_S
    assert obstore.put is put
    with pytest.raises(FencedError, match="has taken over"):
        held.confirm()


@pytest.mark.slow
def test_commit_on_its_way_comes_too_late_for_a_rebuild(store: Tables) -> None:
    """The process was stopped between its look at the lease and the request, and a rebuild has begun."""
    for name in (*WRITTEN, "topics/a"):
        DeltaLog.create(name, store.location(name), store.sync)
    lost = False

    def confirm() -> None:
        nonlocal lost
        if lost:
            raise FencedError("another process has taken over")
        lost = True
        _forestall(cast("SparkSession", None), store)

    for name in (*WRITTEN, "topics/a"):
        lost = False
        with FileWriter(store.root, sync=store.sync) as writer:
            writer.write(name, arrow_schema(name).empty_table())
            files = writer.close()
        log = DeltaLog(name, store.location(name), store.sync, confirm)
        with pytest.raises(FencedError):
            log.commit_after(files, {"app": None}, {"app": 1})
        assert log.versions(["app"]) == {"app": None}


_HOLD = """
import json, sys
from checkback.settings import Storage
from checkback.storage.lock import exclusive_lock
from checkback.storage.tables import Tables
with exclusive_lock(Tables.of(Storage.model_validate(json.loads(sys.argv[1])))):
    print("in", flush=True)
    sys.stdin.read()
"""


@pytest.mark.processes
def test_start_goes_on_when_the_lease_of_a_killed_process_ends(
    s3_port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While the process lives it is refused."""
    storage = {"root": f"s3://{BUCKET}/{uuid.uuid4().hex}", "options": options(s3_port)}
    tables = Tables.of(Storage.model_validate(storage))
    monkeypatch.setattr(module, "TTL_S", module.RENEW_S + 3)  # the waiting one's; the store's seconds are whole
    command = [sys.executable, "-c", _HOLD, json.dumps(storage)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        with pytest.raises(FencedError, match=f"process {process.pid} on"), exclusive_lock(tables):
            pass
        process.kill()
        process.wait()
        caplog.clear()
        with exclusive_lock(tables) as lock:
            lock.confirm()
    (told,) = (record.getMessage() for record in caplog.records)
    assert told.startswith(f"process {process.pid} on ")


@pytest.mark.processes
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_signal_ends_a_command_that_waits(s3_port: int, tmp_path: Path, number: int, code: int) -> None:
    storage = {"root": f"s3://{BUCKET}/{uuid.uuid4().hex}", "options": options(s3_port)}
    Tables.of(Storage.model_validate(storage))
    Lease(f"{storage['root']}/{LOCK}")
    settings, keys = tmp_path / "settings.yml", {"aws_access_key_id": "env:KEY", "aws_secret_access_key": "env:KEY"}
    settings.write_text(json.dumps({"storage": storage | {"options": options(s3_port) | keys}}))
    command = [sys.executable, "-m", "checkback", "maintain", "--config", str(settings)]
    environ = os.environ | {"KEY": "test"}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environ
    ) as process:
        assert process.stderr is not None
        assert "holds the lease of these tables" in process.stderr.readline()
        process.send_signal(number)
        assert process.wait(10) == code
