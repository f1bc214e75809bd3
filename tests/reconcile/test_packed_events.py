"""Events packed by segment."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from checkback.reconcile.records.segment_records import EVENT
from checkback.reconcile.state.packed_events import EVENT_COLUMNS, pack, packer, parse_key, segment_key, unpack

big = st.integers(-(2**63), 2**63 - 1)
rows = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 100) | st.integers(0, 2**63 - 1), st.integers(0, 3), big))


@given(rows, st.integers(1, 40))
def test_packing_keeps_every_event_in_its_segment(content: list[tuple[int, int, int, int]], size: int) -> None:
    """Nothing lost, nothing twice, each under the key of its queue and offset."""
    events = np.zeros(len(content), EVENT)
    for row, (_, offset, kind, group) in zip(events, content, strict=True):
        row["offset"], row["kind"], row["group"] = offset, kind, group
    queues = np.array([row[0] for row in content], np.int32)
    expected = defaultdict(list)
    for queue_id, offset, kind, group in content:
        expected[segment_key(queue_id, offset // size)].append((offset, kind, group))
    packed = dict(pack(queues, events, size))
    assert set(packed) == set(expected)
    for key, block in packed.items():
        found = unpack([block])
        assert sorted((int(r["offset"]), int(r["kind"]), int(r["group"])) for r in found) == sorted(expected[key])
        queue_id, base = parse_key(key, size)
        assert all(base <= offset < base + size for offset, _, _ in expected[key])
        assert key == segment_key(queue_id, base // size)


def test_arrow_batches_are_packed_column_by_column() -> None:
    """All of EVENT's fields arrive, whatever Arrow's integer types."""
    columns = {name: pa.array([n, n + 1], pa.int64()) for n, name in enumerate(EVENT_COLUMNS)}
    columns["kind"] = pa.array([0, 2], pa.int8())
    columns["offset"] = pa.array([5, 6], pa.int64())
    columns["queue_id"] = pa.array([3, 3], pa.int32())
    batch = pa.RecordBatch.from_arrays([columns[name] for name in EVENT_COLUMNS], names=list(EVENT_COLUMNS))
    (packed,) = packer(4)(iter([batch]))
    assert packed.column("segment").to_pylist() == ["3/1"]
    events = unpack(packed.column("events").to_pylist())
    for name in EVENT.names or ():
        assert events[name].tolist() == columns[name].to_pylist()


def test_empty_batch_packs_to_nothing() -> None:
    """A batch without rows is no segment."""
    schema = pa.schema([(name, pa.int64()) for name in EVENT_COLUMNS])
    (packed,) = packer(4)(iter([pa.RecordBatch.from_pylist([], schema=schema)]))
    assert packed.num_rows == 0
