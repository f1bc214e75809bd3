"""Answers that are there already, in a table of many files: all are found, and no more is read than need be."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkback.check import recorded_answers as module
from checkback.check.recorded_answers import recorded_answers
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pathlib import Path

T0 = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
#: batches of the query whose checkpoint is lost, an hour apart, and requests of each
BATCHES, EACH = 30, 4
NOBODY: Any = None  # no Spark is needed


def _row(batch: int, offset: int, **more: Any) -> dict[str, Any]:
    names = {"transaction_id": f"t{offset}", "producer_group": "orders", "real_topic": "orders"}
    return {"queue_id": 0, "queue_offset": offset, "check_times": 1, "batch_id": batch, **names, **more}


def _requests(batch: int) -> pa.Table:
    rows = [_row(0, batch * EACH + n, requested_at=T0 + timedelta(hours=batch)) for n in range(EACH)]
    return pa.Table.from_pylist(rows, schema=arrow_schema("check_requests"))


def _answer(batch: int, offset: int, **more: Any) -> dict[str, Any]:
    answered = {"outcome": "UNKNOWN", "answered_at": T0 + timedelta(hours=batch, seconds=5), "failed_tries": []}
    return _row(batch, offset, **{**answered, "delivered": True, **more})


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """`check_answers` with a file for each batch."""
    tables = Tables(root=str(tmp_path), by_files=True)
    tables.create(NOBODY, "check_answers")
    for batch in range(BATCHES):
        _append(tables, [_answer(batch, batch * EACH + n) for n in range(EACH)])
    return tables


def _append(tables: Tables, rows: list[dict[str, Any]]) -> None:
    with FileWriter(tables.root) as writer:
        writer.write("check_answers", pa.Table.from_pylist(rows, schema=arrow_schema("check_answers")))
        tables.commit(NOBODY, "check_answers", writer.close())


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are read."""
    paths: list[str] = []

    class Watched:
        def read_table(self, path: str, **options: Any) -> pa.Table:
            paths.append(path)
            return pq.read_table(path, **options)

    monkeypatch.setattr(module, "pq", Watched())
    return paths


def test_after_a_lost_checkpoint_each_batch_reads_about_its_own_answers(tables: Tables, read: list[str]) -> None:
    """Not all later ones: those of the last batch, and then in the order of time until all are found."""
    for batch in range(BATCHES):
        found = recorded_answers(NOBODY, tables, _requests(batch), batch, again=False)
        assert found.column("queue_offset").to_pylist() == [batch * EACH + n for n in range(EACH)]
    # The batch's own id makes its file of the old query a candidate, the first in time among them.
    assert len(read) <= 3 * BATCHES


def test_batch_that_may_be_done_again_reads_all_later_answers(tables: Tables, read: list[str]) -> None:
    recorded_answers(NOBODY, tables, _requests(3), 3, again=True)
    assert len(read) == BATCHES - 3


def test_request_without_an_answer_is_looked_for_to_the_end(tables: Tables) -> None:
    """The others of its batch are found all the same, and one that was answered much later."""
    asked = _requests(2).slice(0, 2)
    rows = [_row(0, 1000, requested_at=T0), _row(0, 27 * EACH, requested_at=T0 + timedelta(hours=1))]
    asked = pa.concat_tables([asked, pa.Table.from_pylist(rows, schema=asked.schema)])
    found = recorded_answers(NOBODY, tables, asked, 500, again=False)
    assert sorted(found.column("queue_offset").to_pylist()) == [2 * EACH, 2 * EACH + 1, 27 * EACH]


def test_answer_of_the_last_batch_is_not_hidden_by_an_older_one(tables: Tables) -> None:
    """Its op may not have been written; the older answer has the same number, that of a check that did not count."""
    _append(tables, [_answer(BATCHES, 2 * EACH, outcome="COMMIT")])
    found = recorded_answers(NOBODY, tables, _requests(2), 500, again=False)
    assert "COMMIT" in found.column("outcome").to_pylist()
