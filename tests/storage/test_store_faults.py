"""Object stores with faults: what is acknowledged is there once; what is not may be, and is found when repeated."""

from __future__ import annotations

import os
import time
import uuid
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from checkback.errors import FencedError, StorageError
from checkback.gateway.appender import Appender, OutcomeUnknownError
from checkback.settings import Storage
from checkback.storage.files import table_files
from checkback.storage.files.lease import Lease
from checkback.storage.log import delta_log, snapshot_files
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.log.log_tail import LogTail
from checkback.storage.log.torn_commits import last_checkpoint
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.parquet.parquet_reader import read_rows
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables
from support import azure_server, s3_server
from support.fault_proxy import fault_proxy, hold, list_late, refuse, release, set_throttled
from support.fault_proxy import held as requests_held

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkback.storage.parquet.parquet_files import ParquetFile

pytestmark = pytest.mark.processes

_TIMES = 30


@pytest.fixture(params=["s3", "adls"])
def flaky(request: pytest.FixtureRequest) -> Iterator[Tables]:
    """Tables behind a proxy, every tenth request to which fails."""
    seed = int(os.environ.get("SEED", "0")) or Random().randrange(1, 10**9)
    print(f"run it again with SEED={seed}")
    upstream = request.getfixturevalue({"s3": "s3_port", "adls": "azure_port"}[request.param])
    with fault_proxy(upstream, seed, 0.1) as port:
        yield _tables(request.param, port)


def _tables(kind: str, port: int) -> Tables:
    """Tables in a new place of the store at this port."""
    root, options = {
        "s3": (s3_server.ROOT, s3_server.options(port)),
        "adls": (azure_server.ROOT, azure_server.options(port)),
    }[kind]
    return Tables.of(Storage.model_validate({"root": f"{root}/{uuid.uuid4().hex}", "options": options}))


def _rows(name: str, number: int) -> pa.Table:
    return pa.Table.from_pylist([{"queue_id": number}], schema=arrow_schema(name))


def _found(tables: Tables, name: str) -> list[int]:
    files = DeltaLog(name, tables.location(name), tables.sync).data_files()
    rows = [read_rows(file.path, name, ["queue_id"], pc.field("queue_id").is_valid()) for file in files]
    return sorted(queue for each in rows for queue in each.column("queue_id").to_pylist())


def _commit(tables: Tables, number: int, app: str | None) -> None:
    with tables.table_root.writer() as writer:
        writer.write("op", _rows("op", number))
        files = writer.close()
    tables.commit(None, "op", files, app, number)  # type: ignore[arg-type]  # no Spark is needed


def _tried(tables: Tables, number: int) -> bool:
    """True if it was acknowledged."""
    try:
        _commit(tables, number, None)
    except StorageError:
        return False
    return True


def _repeat(tables: Tables, number: int) -> None:
    """As a batch is repeated by the next start."""
    for _ in range(20):
        with suppress(StorageError):
            _commit(tables, number, "app")
            return
        tables.forget("op")
    raise AssertionError("it never got through")


def test_batches_are_committed_once(flaky: Tables) -> None:
    flaky.create(None, "op")  # type: ignore[arg-type]
    for number in range(_TIMES):
        _repeat(flaky, number)
    assert _found(flaky, "op") == list(range(_TIMES))


def test_append_that_is_acknowledged_is_there_once(flaky: Tables) -> None:
    """Also without an application's version: a request that is repeated meets its own commit."""
    flaky.create(None, "op")  # type: ignore[arg-type]
    done: list[int] = []
    unknown: list[int] = []
    for number in range(_TIMES):
        (done if _tried(flaky, number) else unknown).append(number)
    found = _found(flaky, "op")
    assert set(done) <= set(found) <= {*done, *unknown}
    assert len(found) == len(set(found))
    assert len(done) > _TIMES // 2


def test_gateway_is_not_fenced_by_itself(flaky: Tables) -> None:
    appender = Appender(flaky.root, "half", [0], flaky.sync)
    appender.claim(1)
    for number in range(_TIMES):
        appender.append(_rows("half", number))
    assert _found(flaky, "half") == list(range(_TIMES))


def test_files_are_replaced_once(flaky: Tables) -> None:
    flaky.create(None, "op")  # type: ignore[arg-type]
    for number in range(5):
        _repeat(flaky, number)
    log = flaky.log("op")
    with flaky.table_root.writer() as writer:
        for number in range(5):
            writer.write("op", _rows("op", number))
        assert log.replace(log.paths(), writer.close())
    assert _found(flaky, "op") == list(range(5))


def test_lease_is_held_by_one(flaky: Tables) -> None:
    held = Lease(f"{flaky.root}/lease")
    for _ in range(_TIMES):
        held.renew()
        held.confirm()
        with pytest.raises(FencedError):
            Lease(f"{flaky.root}/lease", pause=lambda _: held.renew())


# A store that throttles: for longer than the clients repeat their requests, which is some milliseconds here


@pytest.fixture(params=["s3", "adls"])
def throttling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Tables, int]]:
    """Tables behind a proxy that can be told to refuse all requests, and its port."""
    backoff = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=5), "base": 2}
    retries = {"max_retries": 3, "backoff": backoff, "retry_timeout": timedelta(seconds=5)}
    monkeypatch.setattr("checkback.storage.files.object_store._RETRIES", retries)
    upstream = request.getfixturevalue({"s3": "s3_port", "adls": "azure_port"}[request.param])
    with fault_proxy(upstream) as port:
        yield _tables(request.param, port), port


def _appender(tables: Tables) -> Appender:
    """What appends to `half`, beside an empty table `op`."""
    tables.create(None, "op")  # type: ignore[arg-type]
    appender = Appender(tables.root, "half", [0], tables.sync)
    appender.claim(1)
    return appender


def test_nothing_is_lost_or_doubled_while_a_store_throttles(throttling: tuple[Tables, int]) -> None:
    """What is refused then is told so, and committed when it is repeated afterwards, by the same process."""
    tables, port = throttling
    appender = _appender(tables)
    for number in range(3):
        set_throttled(port, True)
        for _ in range(2):
            with pytest.raises((StorageError, OSError), match="503"):
                _commit(tables, number, "app")
            with pytest.raises((StorageError, OSError), match="503"):
                appender.append(_rows("half", number))
        set_throttled(port, False)
        for _ in range(2):  # the second time as a batch that is repeated
            _commit(tables, number, "app")
        appender.append(_rows("half", number))
    assert _found(tables, "op") == _found(tables, "half") == list(range(3))


def test_commit_that_is_refused_leaves_no_doubt(
    throttling: tuple[Tables, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store begins to throttle when the file is written already, and the commit is not."""
    tables, port = throttling
    tables.create(None, "op")  # type: ignore[arg-type]
    log, commit = tables.log("op"), LogTail.commit

    def refused(tail: LogTail, *appended: Any) -> bool:
        set_throttled(port, True)
        return commit(tail, *appended)

    with monkeypatch.context() as patch:
        patch.setattr(LogTail, "commit", refused)
        with pytest.raises(StorageError, match="the commit failed"):
            _commit(tables, 1, "app")
        with pytest.raises(StorageError, match="cannot be read"):
            log.versions(["app"])
    set_throttled(port, False)
    assert log.versions(["app"]) == {"app": None}
    _commit(tables, 1, "app")
    assert _found(tables, "op") == [1]


def test_gateway_whose_file_is_written_when_the_store_begins_to_throttle_goes_on(
    throttling: tuple[Tables, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot read the log, and has committed nothing."""
    tables, port = throttling
    appender, close = _appender(tables), FileWriter.close

    def closed(writer: FileWriter) -> list[ParquetFile]:
        files = close(writer)
        set_throttled(port, True)
        return files

    with monkeypatch.context() as patch:
        patch.setattr(FileWriter, "close", closed)
        with pytest.raises(StorageError, match="503") as raised:
            appender.append(_rows("half", 1))
    assert not isinstance(raised.value, OutcomeUnknownError)
    set_throttled(port, False)
    appender.append(_rows("half", 1))
    assert _found(tables, "half") == [1]


def test_file_of_a_commit_that_is_refused_goes_after_the_next(throttling: tuple[Tables, int]) -> None:
    """Before that the request may still be on its way."""
    tables, port = throttling
    appender = Appender(tables.root, "half", [0], sync=False)
    appender.claim(1)
    refuse(port, "PUT .*_delta_log", 403, 1)
    with pytest.raises(StorageError, match="the commit failed"):
        appender.append(_rows("half", 1))

    def files() -> int:
        return sum(name.endswith(".parquet") for name in table_files.names(appender.place))

    assert files() == 1
    appender.append(_rows("half", 1))
    assert files() == 1
    assert _found(tables, "half") == [1]


def test_lease_outlasts_throttling_that_is_shorter_than_it(throttling: tuple[Tables, int]) -> None:
    """A longer one ends its holder in one line; nobody else had it meanwhile."""
    tables, port = throttling
    clock = [0.0]
    held = Lease(f"{tables.root}/lease", lambda: clock[0])
    set_throttled(port, True)
    with pytest.raises(StorageError):
        held.renew()
    clock[0] += 20
    held.confirm()
    clock[0] += 10
    with pytest.raises(StorageError, match="the lease cannot be written"):
        held.confirm()
    set_throttled(port, False)
    held.confirm()


# Single answers of S3, told to the proxy


@pytest.fixture
def told(s3_port: int) -> Iterator[tuple[Tables, int]]:
    """Tables in S3 behind a proxy that can be told how to answer, and its port."""
    with fault_proxy(s3_port) as port:
        yield _tables("s3", port), port


def test_commit_beside_another_is_repeated(told: tuple[Tables, int]) -> None:
    """S3 answers 409 ConditionalRequestConflict while another process writes the object: there may be none yet."""
    tables, port = told
    appender = _appender(tables)
    for number in range(3):
        refuse(port, "PUT .*/_delta_log/", 409, 3)
        _commit(tables, number, None)
        refuse(port, "PUT .*/_delta_log/", 409, 3)
        appender.append(_rows("half", number))
    assert _found(tables, "op") == _found(tables, "half") == [0, 1, 2]


def test_conflict_without_an_end_is_an_error(told: tuple[Tables, int], monkeypatch: pytest.MonkeyPatch) -> None:
    tables, port = told
    tables.create(None, "op")  # type: ignore[arg-type]
    monkeypatch.setattr("checkback.storage.files.object_store._PAUSE_S", 0.001)
    refuse(port, "PUT .*/_delta_log/", 409, 10**6)
    with pytest.raises(StorageError, match=r"the commit failed: .*409"):
        _commit(tables, 1, "app")
    refuse(port, "", 409, 0)
    _commit(tables, 1, "app")
    assert _found(tables, "op") == [1]


def test_commits_do_not_wait_for_a_checkpoint(told: tuple[Tables, int]) -> None:
    """A gateway's requests would wait for it every twenty commits."""
    tables, port = told
    tables.create(None, "op")  # type: ignore[arg-type]
    hold(port, "(PUT|POST) .*checkpoint", 1)
    began = time.monotonic()
    for number in range(45):  # two are due
        _commit(tables, number, None)
    while not requests_held(port):
        time.sleep(0.01)
    _commit(tables, 45, None)
    assert time.monotonic() - began < 20, "of a request that is held, delta-rs gives up after 30 s"
    release(port)
    delta_log.BESIDE.submit(bool).result()  # after the checkpoint
    assert last_checkpoint(tables.location("op")) >= 19
    _commit(tables, 46, None)
    assert _found(tables, "op") == [*range(47)]


def test_lease_beside_another_request_is_taken(told: tuple[Tables, int]) -> None:
    tables, port = told
    refuse(port, "PUT .*/lease", 409, 1)
    held = Lease(f"{tables.root}/lease")
    refuse(port, "PUT .*/lease", 409, 1)
    held.renew()
    held.confirm()


@pytest.mark.parametrize("asked", ["GET .*list-type", "(GET|HEAD) .*/_delta_log/"])
def test_refused_reads_do_not_ask_for_a_restore(told: tuple[Tables, int], asked: str) -> None:
    """Credentials have expired: who restores a log then loses what is newer than the backup."""
    tables, port = told
    tables.create(None, "op")  # type: ignore[arg-type]
    _commit(tables, 1, "app")
    refuse(port, asked, 403, 10**6)
    with pytest.raises(StorageError, match=r"403 Forbidden.*repair the access to the object store") as raised:
        DeltaLog("op", tables.location("op"))
    assert "restore" not in str(raised.value)


@pytest.mark.parametrize("listings", [1, 3])
def test_a_table_is_read_though_listings_are_late(s3_port: int, listings: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway never started: each start commits a claim, which the next one knew of, and no listing had."""
    monkeypatch.setattr(snapshot_files, "_PAUSES_S", (0.0,) * 4)
    with fault_proxy(s3_port) as port:
        place = _tables("s3", port).location("half")
        list_late(port, listings)
        log = DeltaLog.created("half", place, sync=False)
        assert log.version() == 0
        list_late(port, listings)
        log.commit_after([], {}, {"a": 1})
        assert log.refresh() == 1
        assert log.data_files() == []


def test_a_log_that_was_made_anew_is_not_waited_for(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_files, "_PAUSES_S", (3600.0,))
    with fault_proxy(s3_port) as port:
        place = _tables("s3", port).location("half")
        log = DeltaLog.created("half", place, sync=False)
        log.commit_after([], {}, {"a": 1})
        table_files.remove(f"{place}/_delta_log/{1:020}.json")
        with pytest.raises(StorageError, match="does not list its version 1 any more"):
            log.refresh()
        with pytest.raises(StorageError, match="there is no such table"):
            DeltaLog("half", f"{place}-other", sync=False)
