"""Small files of an object store are read whole, once, ahead of where they are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from checkback.settings import Storage
from checkback.storage.files import table_files, whole_objects
from checkback.storage.files.whole_objects import WholeObjects
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables
from support.fault_proxy import fault_proxy, in_sequence_since, requests_since, set_latency
from support.s3_server import options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkback.storage.log.delta_log import DeltaLog

pytestmark = pytest.mark.processes

_FILES = 40
#: (s); much longer than it takes to send a request
_LATENCY_S = 0.05


@pytest.fixture
def many(s3: Tables, s3_port: int) -> Iterator[tuple[DeltaLog, int]]:
    """A table of many small files, of a queue each, behind a proxy; its log, and the proxy's port."""
    s3.create(cast("Any", None), "op")
    files = []
    for queue in range(_FILES):
        with s3.table_root.writer() as writer:
            writer.write("op", pa.Table.from_pylist([{"queue_id": queue}], schema=arrow_schema("op")))
            files += writer.close()
    s3.log("op").commit(files)
    with fault_proxy(s3_port) as port:
        log = Tables.of(Storage.model_validate({"root": s3.root, "options": options(port)})).log("op")
        requests_since(port)
        yield log, port


def _queues(rows: pa.Table) -> list[int]:
    return sorted(rows.column("queue_id").to_pylist())


def test_each_file_is_read_once_and_many_at_a_time(many: tuple[DeltaLog, int]) -> None:
    log, port = many
    set_latency(port, _LATENCY_S)
    in_sequence_since(port)
    rows = log.files.dataset(log.seen_version, WholeObjects())
    for _ in range(2):
        assert _queues(rows.to_table(columns=["queue_id"])) == list(range(_FILES))
    assert requests_since(port) == {"GET": _FILES}
    assert in_sequence_since(port) <= 16


def test_files_that_statistics_skip_are_not_read(many: tuple[DeltaLog, int]) -> None:
    log, port = many
    rows = log.files.dataset(log.seen_version, WholeObjects())
    assert _queues(rows.to_table(filter=ds.field("queue_id") == 20)) == [20]
    assert requests_since(port)["GET"] <= 2


def test_what_is_not_kept_is_read_again(many: tuple[DeltaLog, int], monkeypatch: pytest.MonkeyPatch) -> None:
    log, port = many
    monkeypatch.setattr(whole_objects, "_KEPT", 0)
    rows = log.files.dataset(log.seen_version, WholeObjects())
    for _ in range(2):
        assert _queues(rows.to_table(columns=["queue_id"])) == list(range(_FILES))
    assert requests_since(port)["GET"] >= 2 * _FILES


def test_large_file_is_read_in_ranges(many: tuple[DeltaLog, int], monkeypatch: pytest.MonkeyPatch) -> None:
    log, port = many
    monkeypatch.setattr(table_files, "WHOLE", 0)
    rows = log.files.dataset(log.seen_version, WholeObjects())
    assert _queues(rows.to_table(columns=["queue_id"])) == list(range(_FILES))
    assert requests_since(port)["GET"] >= _FILES


def test_missing_file_is_told(many: tuple[DeltaLog, int]) -> None:
    log, _ = many
    table_files.remove(log.data_files()[7].path)
    rows = log.files.dataset(log.seen_version, WholeObjects())
    with pytest.raises(OSError, match=r"\.parquet"):
        rows.to_table(columns=["queue_id"])
