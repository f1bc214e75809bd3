"""Looking up rows of `half`: nothing lost, nothing twice, and the proof of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from checkback.reconcile.publish.half_lookup import FoundRows, HalfLookup
from checkback.reconcile.records.segment_records import Action
from reconcile.messages import action, half, halves, wanted

_LAST_QUEUE, _LAST_OFFSET = 2**31 - 1, 2**63 - 1
_queues = st.sampled_from([0, 1, _LAST_QUEUE])
_offsets = st.integers(0, 9) | st.sampled_from([_LAST_OFFSET - 1, _LAST_OFFSET])
_keys = st.tuples(_queues, _offsets, st.integers(0, 2))


def _find(chosen: HalfLookup, keys: list[tuple[int, int, int]]) -> tuple[Any, Any]:
    rows = np.array(keys, np.int64).reshape(-1, 3)
    return chosen.find(rows[:, 0].astype(np.int32), rows[:, 1], rows[:, 2])  # the types of `half`


def _wanted(keys: set[tuple[int, int, int]]) -> HalfLookup:
    return wanted(*(action(Action.COMMIT, offset, store, queue) for queue, offset, store in keys))


@given(st.sets(_keys), st.lists(_keys, max_size=30))
def test_rows_that_are_wanted_are_found_and_no_others(keys: set[tuple[int, int, int]], rows: list[Any]) -> None:
    """Against a set: by queue, offset and store time."""
    chosen = _wanted(keys)
    found, records = _find(chosen, rows)
    assert sorted(found) == [number for number, row in enumerate(rows) if row in keys]
    for row, record in zip(found, records, strict=True):
        assert tuple(int(chosen.records[name][record]) for name in ("queue_id", "offset", "store")) == rows[row]


@given(st.sets(_keys, min_size=1), st.lists(_keys, max_size=30), st.integers(1, 4))
def test_proof_counts_what_is_missing_and_what_is_there_twice(
    keys: set[tuple[int, int, int]], rows: list[Any], tasks: int
) -> None:
    """However the rows are spread over tasks."""
    chosen = _wanted(keys)
    notes = []
    for task in range(tasks):
        found = FoundRows(chosen)
        found.add(_find(chosen, rows[task::tasks])[1])
        notes.append(found.note())
    hits = [row for row in rows if row in keys]
    assert chosen.missing(notes) == (len(keys - set(hits)), len(hits) - len(set(hits)))


@given(st.sets(_keys), _queues, _queues, _offsets, _offsets)
def test_no_file_with_a_wanted_row_is_skipped(
    keys: set[tuple[int, int, int]], queue: int, other: int, offset: int, far: int
) -> None:
    """The spans of a file's columns: skipped only if no wanted row can lie in it; how many can, at most."""
    chosen = _wanted(keys)
    queues, offsets = (min(queue, other), max(queue, other)), (min(offset, far), max(offset, far))
    inside = [key for key in keys if queues[0] <= key[0] <= queues[1] and offsets[0] <= key[1] <= offsets[1]]
    assert chosen.most_in({"queue_id": queues, "queue_offset": offsets}) == len(inside)
    assert chosen.most_in({"queue_id": queues}) == sum(queues[0] <= key[0] <= queues[1] for key in keys)
    assert chosen.most_in({"queue_offset": offsets}) == sum(offsets[0] <= key[1] <= offsets[1] for key in keys)
    assert chosen.most_in({}) == len(keys)


def test_traceparents_are_collected_once_each_up_to_the_limit() -> None:
    """Whoever has written them: text that is not UTF-8 is one, too, and none of a valid context."""
    found = FoundRows(replace(wanted(action(Action.COMMIT, 1)), links=3))
    properties = [[("a", "b"), ("traceparent", name)] for name in "xxyzw"]
    rows = halves(*(half(number) | {"properties": each} for number, each in enumerate([None, [], *properties])))
    found.add_traces(rows, np.array([0, 1, 2, 3]))
    assert found.traces == ["x"]
    odd = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff", b"b"]).buffers())
    maps = pa.MapArray.from_arrays(pa.array([0, 2], pa.int32()), pa.array(["traceparent", "a"]), odd)
    found.add_traces(pa.record_batch({"properties": maps}), np.array([0]))
    assert found.traces == ["x", "\xff"]
    found.add_traces(rows, np.arange(2, 7))
    assert found.traces == ["x", "\xff", "y"]
    none = FoundRows(wanted(action(Action.COMMIT, 1)))
    none.add_traces(rows, np.arange(2, 7))
    assert none.traces == []


def test_identity_tells_rows_apart_that_landed_in_one_microsecond() -> None:
    """Two messages of one offset and one store time: the one that the segment took."""
    chosen = wanted(action(Action.COMMIT, 1, 5, repeated=1, group=8, transaction=9))
    same = np.array([1, 1, 1])
    rows, _ = chosen.find(np.zeros(3, int), same, np.full(3, 5), identity=(np.array([8, 8, 7]), np.array([9, 1, 9])))
    assert rows.tolist() == [0]
