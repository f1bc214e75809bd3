"""Flushes follow their reader: a batch finds few commits, however short gateway.flush is; a lone one does not wait."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.gateway.journal.reader_pace import COMMITS, LONGEST_S, ReaderPace, reader_pause
from checkback.storage.checkpoints.checkpoint import Batch, StreamPosition
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pathlib import Path

_FLUSHES = st.floats(0.005, 1)


def _batch(batch_id: int, half: int, op: int) -> Batch:
    """A batch that has read these versions."""
    return Batch(batch_id, 0, tuple(StreamPosition("t", version + 1) for version in (half, op)))


@given(flush_s=_FLUSHES, fixed_s=st.floats(0.05, 2), commit_s=st.floats(0, 0.02), flushes=st.integers(200, 400))
def test_a_batch_finds_few_commits(flush_s: float, fixed_s: float, commit_s: float, flushes: int) -> None:
    """Of a gateway that always has something, by a reader that takes longer for more: it does not fall behind."""
    pace, now, read, batches, ends = ReaderPace(flush_s), 0.0, 0, 0, 0.0
    found, longest = [], 0.0
    for version in range(flushes):
        if now >= ends:  # the reader takes what is there
            found.append(version - read)
            took = fixed_s + 2 * commit_s * (version - read)
            ends, longest, read, batches = now + took, max(longest, took), version, batches + 1
        now += pace.pause(_batch(batches, read, read), {"half": version + 1, "op": version + 1}, now)
    assert max(found[2:], default=0) <= 6 * COMMITS + longest / LONGEST_S


@given(flush_s=_FLUSHES, gaps=st.lists(st.floats(0.1, 600), min_size=1))
def test_what_comes_alone_does_not_wait(flush_s: float, gaps: list[float]) -> None:
    """Whenever the reader last had something to do."""
    pace, now = ReaderPace(flush_s), 0.0
    for number, gap in enumerate(gaps):
        now += gap
        assert pace.pause(_batch(number, number, number), {"half": number + 1, "op": number + 1}, now) == flush_s


@given(flush_s=_FLUSHES, times=st.lists(st.floats(0, 1e6), min_size=1))
def test_without_a_reader_flushes_are_those_of_the_default(flush_s: float, times: list[float]) -> None:
    """Nobody reads, or the reader has stopped: it will read all of them."""
    pace = ReaderPace(flush_s)
    for now in sorted(times):
        assert pace.pause(None, {"half": 9, "op": 9}, now) == max(flush_s, LONGEST_S)
    pace.pause(_batch(1, 0, 0), {"half": 9, "op": 9}, 1e6)
    assert pace.pause(_batch(1, 0, 0), {"half": 99, "op": 9}, 1e6 + 10) == max(flush_s, LONGEST_S)


def test_the_reader_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    tables = Tables(str(tmp_path), checkpoints=str(tmp_path / "_checkpoints"))
    times = iter((0, 1, 2))
    pause = reader_pause(tables, 0.02, lambda: next(times))
    assert pause is not None
    assert pause({"half": 0}) == LONGEST_S
    folder = tmp_path / "_checkpoints/reconcile/offsets"
    folder.mkdir(parents=True)
    (folder / "9").write_text("of an earlier batch")
    at = json.dumps({"reservoirId": "t", "reservoirVersion": 8, "index": -1, "isStartingVersion": False})
    (folder / "10").write_text(f'v1\n{{"batchTimestampMs": 5}}\n{at}\n{at}\n-')
    assert pause({"half": 8, "op": 8}) == 0.02
    assert pause({"half": 99, "op": 8}) == 1 / COMMITS
    assert reader_pause(tables, LONGEST_S) is None


@pytest.mark.parametrize("place", ["s3://bucket/lake", "/dbfs/lake"])
def test_no_store_is_asked(place: str) -> None:
    assert reader_pause(Tables(place, checkpoints=place), 0.02) is None
