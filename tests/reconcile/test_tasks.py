"""What a task of a batch writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.reconcile.records import Action
from checkback.reconcile.tasks import picker
from checkback.reconcile.unpublished import Parking
from checkback.storage.parquet_files import MOST_ROWS, TableRoot, files_of
from reconcile.messages import action, half, halves, wanted

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_check_requests_lie_in_small_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are due at once: the check query takes whole files, and a batch of it has only so much time."""
    monkeypatch.setitem(MOST_ROWS, "check_requests", 3)
    chosen = wanted(*(action(Action.CHECK, offset) for offset in range(7)))
    written = picker(chosen, TableRoot(str(tmp_path)), Parking())([halves(*(half(offset) for offset in range(7)))])
    files, _ = files_of(pa.Table.from_batches(list(written)))
    rows = [(file.name, json.loads(file.stats)["numRecords"]) for file in files]
    assert rows == [("check_requests", 3), ("check_requests", 3), ("check_requests", 1)]
