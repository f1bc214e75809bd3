"""What the benchmarks land is what landing leaves; what becomes visible is seen once, when it does."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from deltalake import DeltaTable

from benchmarks.load import Load
from benchmarks.visible import Visible
from checkback.storage.schemas import arrow_schema


def test_load_lands_halves_and_their_ops(tmp_path: Path) -> None:
    """All columns but the immunity and the delay are filled; every twentieth has no op; each op names its half."""
    load = Load(str(tmp_path), body_bytes=64, topics=2, pending_every=20, queue_id=3)
    assert load.land(0, 40) == 38
    half = DeltaTable(tmp_path / "half").to_pyarrow_table().sort_by("queue_offset")
    op = DeltaTable(tmp_path / "op").to_pyarrow_table().sort_by("queue_offset")
    assert half.schema.names == arrow_schema("half").names
    assert [name for name in half.schema.names if half.column(name).null_count] == [
        "erased_at",
        "check_immunity_s",
        "delay_ms",
        "deliver_at",
        "committed",
    ]
    assert set(half.column("real_topic").to_pylist()) == {"topic_0", "topic_1"}
    bodies = half.column("body").to_pylist()
    assert {len(body) for body in bodies} == {64}
    assert len(set(bodies)) == 40
    ids = dict(zip(half.column("queue_offset").to_pylist(), half.column("transaction_id").to_pylist(), strict=True))
    assert len(set(ids.values())) == 40
    ops = zip(op.column("queue_offset").to_pylist(), op.column("transaction_id").to_pylist(), strict=True)
    assert dict(ops) == {offset: name for offset, name in ids.items() if offset % 20}


def test_load_lands_scheduled_messages(tmp_path: Path) -> None:
    """Without a transaction, each with its own time; in as many commits as it takes."""
    at = np.arange(10) * 1000 + 1_800_000_000_000
    Load(str(tmp_path), topics=2, queue_id=3).land_scheduled(100, at)
    half = DeltaTable(tmp_path / "half").to_pyarrow_table().sort_by("queue_offset")
    assert half.column("queue_offset").to_pylist() == list(range(100, 110))
    assert half.column("committed").to_pylist() == [True] * 10
    assert [round(time.timestamp() * 1000) for time in half.column("deliver_at").to_pylist()] == at.tolist()
    assert half.column("delay_ms").null_count == 10


def test_visible_sees_what_comes_while_it_looks(tmp_path: Path) -> None:
    """Not what was there before; of each row its offset, of one queue, and a time within the landing's."""
    load, other = Load(str(tmp_path)), Load(str(tmp_path), queue_id=1)
    load.land_half(0, 5)
    began = time.monotonic()
    with Visible(str(tmp_path), ["half", "no_such_table"]) as visible:
        load.land_half(5, 3)
        other.land_half(0, 4)
        deadline = time.monotonic() + 30
        while visible.count < 7:
            assert time.monotonic() < deadline
    offsets, seen = visible.rows("queue_offset", "queue_id", 0)
    assert offsets.tolist() == [5, 6, 7]
    assert began <= seen.min() <= seen.max() <= time.monotonic()
    assert visible.come(began, time.monotonic()) == 7
    assert visible.come(0, began) == 0
