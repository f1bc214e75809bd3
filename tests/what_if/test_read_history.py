"""Which batch read which row: from what the batches tell, and from the logs, also after a compaction."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from checkback.maintain.compaction import compact, planned
from checkback.reconcile.segment import Rules
from checkback.settings import Maintain
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_reader import read_rows
from checkback.storage.schemas import arrow_schema
from checkback.what_if.origins import Commit, Piece, origins, traced
from checkback.what_if.read_history import ReadHistory, decoded, histories, place_of
from checkback.what_if.records import NEVER, NOT_TOLD
from checkback.what_if.timeline import Timeline
from support.inspect_times import append, table

if TYPE_CHECKING:
    from pathlib import Path

_EPOCH = datetime.fromtimestamp(0, timezone.utc)
Span = tuple[int, int, int, int]


def _history(*told: Span | None, restored: dict[int, int] | None = None, finished: frozenset[int] = frozenset()) -> Any:
    """Of `half`: what each batch read; ``restored``: by turn, the first version not restored."""
    names = ("from_version", "from_index", "to_version", "to_index")
    ranges = [None if span is None else [("half", dict(zip(names, span, strict=True)))] for span in told]
    before = [[("half", restored[turn])] if restored and turn in restored else None for turn in range(len(told))]
    count = len(told)
    nothing = np.zeros(count, np.int64)
    timeline = Timeline(np.arange(count), nothing, (Rules(),), nothing, finished, frozenset(restored or {}))
    schema = arrow_schema("batches")
    read, restored_at = (
        pa.chunked_array([pa.array(rows, schema.field(name).type)])
        for name, rows in (("read_ranges", ranges), ("restored_at", before))
    )
    return histories(read, restored_at, timeline)["half"]


def _turns(history: ReadHistory, *files: tuple[int, int]) -> list[Any]:
    """Of files (version, index), with a star after the turn where a rebuild restored them."""
    turns, restored = decoded(history.of(np.array([place_of(*file) for file in files])))
    names = {NOT_TOLD: "?", NEVER: "never"}
    return [
        names.get(turn, f"{turn}{'*' * star}") for turn, star in zip(turns.tolist(), restored.tolist(), strict=True)
    ]


def test_each_file_was_read_by_one_batch() -> None:
    history = _history((0, -1, 2, -1), (2, -1, 3, 0), (3, 0, 3, 0), (3, 0, 5, -1))
    files = (1, 0), (1, 7), (2, 0), (3, 0), (3, 1), (4, 3), (5, 0)
    assert _turns(history, *files) == ["0", "0", "1", "1", "3", "3", "never"]


def test_what_a_silent_batch_read_is_not_told() -> None:
    history = _history((0, -1, 2, -1), None, (4, -1, 5, -1))
    assert _turns(history, (1, 0), (2, 0), (3, 9), (4, 0), (5, 0)) == ["0", "?", "?", "2", "never"]
    assert _turns(_history((0, -1, 2, -1), None), (1, 0), (2, 0)) == ["0", "?"]
    assert _turns(_history(None, None), (1, 0)) == ["?"]


def test_a_rebuild_restores_what_no_batch_has_read() -> None:
    history = _history((0, -1, 2, -1), (2, -1, 3, -1), (6, -1, 7, -1), restored={2: 6})
    assert _turns(history, (1, 0), (2, 0), (3, 0), (5, 2), (6, 0), (7, 0)) == ["0", "1", "2*", "2*", "2", "never"]


@pytest.mark.parametrize(("finished", "then"), [(frozenset({1}), "2*"), (frozenset(), "?")])
def test_a_silent_batch_before_a_rebuild(finished: frozenset[int], then: str) -> None:
    """What one that the rebuild has finished had read is restored; what another had read is not known."""
    history = _history((0, -1, 2, -1), None, (6, -1, 7, -1), restored={2: 6}, finished=finished)
    assert _turns(history, (1, 0), (3, 0), (6, 0)) == ["0", then, "2"]


def test_old_versions_need_not_be_looked_at() -> None:
    history = _history((0, -1, 2, -1), (2, -1, 9, 3), (9, 3, 11, -1))
    assert [history.first_version(turn) for turn in range(4)] == [0, 2, 9, None]


def _rows(*offsets: int, queue: int = 0, at: int = 0) -> list[dict[str, Any]]:
    landed = _EPOCH + timedelta(seconds=at)
    return [{"queue_id": queue, "queue_offset": offset, "store_timestamp": landed} for offset in offsets]


def _told(root: Path, history: ReadHistory) -> dict[tuple[int, int], int]:
    """By queue and offset the turn."""
    place = str(root / "half")
    found: dict[tuple[int, int], int] = {}
    known = origins("half", place, history)
    for file in DeltaLog("half", place).data_files():
        rows = read_rows(file.path, "half", ["queue_id", "queue_offset", "store_timestamp"], pc.scalar(True))
        codes = decoded(known.codes(file.path.rpartition("/")[2], rows))[0]
        keys = zip(rows.column("queue_id").to_pylist(), rows.column("queue_offset").to_pylist(), strict=True)
        found.update(zip(keys, codes.tolist(), strict=True))
    return found


def test_rows_are_known_after_compactions(tmp_path: Path) -> None:
    """By offset and time; but not a row that fits two files that different batches have read."""
    table(tmp_path, "half")
    log = DeltaLog("half", str(tmp_path / "half"))
    first = log.version() + 1
    settings = Maintain.model_validate({"min_files": 2})
    for rows in (_rows(0, 1), _rows(2, 3, at=1), _rows(0, 9, queue=7, at=2), _rows(4, 6, at=3), _rows(5, 7, at=3)):
        append(tmp_path, "half", rows)
    spans = [(first + at, -1, first + at + 1, -1) for at in range(5)]
    before = _told(tmp_path, _history(*spans))
    assert before == {(0, 0): 0, (0, 1): 0, (0, 2): 1, (0, 3): 1, (7, 0): 2, (7, 9): 2} | {
        (0, 4): 3,
        (0, 6): 3,
        (0, 5): 4,
        (0, 7): 4,
    }
    log = DeltaLog("half", str(tmp_path / "half"))
    for group in planned("half", log, str(tmp_path / "half"), settings):
        assert compact("half", log, str(tmp_path), group)
    after = _told(tmp_path, _history(*spans))
    assert after == before | {(0, 5): NOT_TOLD, (0, 6): NOT_TOLD}
    together = [*spans[:3], (first + 3, -1, first + 5, -1)]
    assert NOT_TOLD not in _told(tmp_path, _history(*together)).values()


def test_rows_older_than_the_log_are_not_told() -> None:
    """A file of a compaction that is not in the log any more may hold any row that landed before the log begins."""
    history = _history((0, -1, 9, -1))
    stats = '{"minValues": {"queue_id": 0, "queue_offset": 5, "store_timestamp": "1970-01-01T00:00:09.000Z"}, '
    stats += '"maxValues": {"queue_id": 0, "queue_offset": 9, "store_timestamp": "1970-01-01T00:00:09.999Z"}}'
    add = {"path": "new%20file.parquet", "dataChange": True, "stats": stats}
    rewritten = {"path": "one", "dataChange": False, "stats": stats}
    any_ = (-(1 << 63), (1 << 63) - 1)
    older = Piece(NOT_TOLD, (any_, any_, (any_[0], 8_000_000)))
    commits = [Commit(7, [add], []), Commit(8, [rewritten], ["old", "new%20file.parquet"])]
    known = traced("half", commits, history, older)
    rows = pa.Table.from_pylist(
        [*_rows(5, at=9), *_rows(5, at=7), *_rows(3, at=9)],
        pa.schema([arrow_schema("half").field(name) for name in ("queue_id", "queue_offset", "store_timestamp")]),
    )
    assert decoded(known.codes("one", rows))[0].tolist() == [0, NOT_TOLD, NOT_TOLD]
    assert known.codes("new file.parquet", rows).tolist() == [NOT_TOLD] * 3
