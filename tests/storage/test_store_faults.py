"""An S3 server with faults: what is acknowledged is there once; what is not may be, and is found when repeated."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from checkback.errors import FencedError, StorageError
from checkback.gateway.tables import Appender
from checkback.settings import Storage
from checkback.storage.delta_log import DeltaLog
from checkback.storage.lease import Lease
from checkback.storage.parquet_reader import read_rows
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables
from support.fault_proxy import fault_proxy
from support.s3_server import BUCKET, options

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

_TIMES = 30


@pytest.fixture
def flaky(s3_port: int) -> Iterator[Tables]:
    """Tables behind a proxy, every tenth request to which fails."""
    seed = int(os.environ.get("SEED", "0")) or Random().randrange(1, 10**9)
    print(f"run it again with SEED={seed}")
    with fault_proxy(s3_port, seed, 0.1) as port:
        root = f"s3://{BUCKET}/{uuid.uuid4().hex}"
        yield Tables.of(Storage.model_validate({"root": root, "options": options(port)}))


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
            Lease(f"{flaky.root}/lease")
