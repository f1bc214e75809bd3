"""What a task of a batch writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from checkback.reconcile.publish.tasks import TaskReport, picker, selector, surveyor
from checkback.reconcile.publish.unpublished import UnpublishedTopics
from checkback.reconcile.records.segment_records import Action
from checkback.storage.parquet.parquet_files import MOST_ROWS, TableRoot, files_of
from reconcile.messages import action, half, halves, wanted

if TYPE_CHECKING:
    from pathlib import Path


def test_check_requests_lie_in_small_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are due at once: the check query takes whole files, and a batch of it has only so much time."""
    monkeypatch.setitem(MOST_ROWS, "check_requests", 3)
    chosen = wanted(*(action(Action.CHECK, offset) for offset in range(7)))
    written = picker(chosen, TableRoot(str(tmp_path)), UnpublishedTopics())(
        [halves(*(half(offset) for offset in range(7)))]
    )
    files, _ = files_of(pa.Table.from_batches(list(written)))
    rows = [(file.name, json.loads(file.stats)["numRecords"]) for file in files]
    assert rows == [("check_requests", 3), ("check_requests", 3), ("check_requests", 1)]


@pytest.mark.parametrize("most", [1 << 20, 600, 0])
def test_survey_brings_all_rows_or_none(most: int) -> None:
    """None of any table when those of all would be more than so many bytes, whichever rows came before."""
    batches = [halves(half(0, "a"), half(1, "b")), halves(half(2, "a") | {"body": b"x" * 1000}, half(3, "b"))]
    chosen = wanted(*(action(Action.COMMIT, offset) for offset in range(4)))
    rows = pa.Table.from_batches(list(surveyor(chosen, UnpublishedTopics(), most)(iter(batches)))).to_pylist()
    assert [row["name"] for row in rows] == ["decisions", "topics/a", "topics/b", None]
    assert TaskReport.of(rows[-1]["note"]).rows == {"decisions": 4, "topics/a": 2, "topics/b": 2}
    for row in rows[:-1]:
        if most < 1 << 20:
            assert row["rows"] is None
        else:
            selected = list(selector(chosen, row["name"], UnpublishedTopics())(iter(batches)))
            assert pa.ipc.open_stream(row["rows"]).read_all() == pa.Table.from_batches(selected)
