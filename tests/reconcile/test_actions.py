"""The actions of a batch at the driver."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from checkback.reconcile.records.actions import MOST_GROUPS, Actions, pack, pending_by_group
from checkback.reconcile.records.segment_records import ACTION, PENDING, Action
from reconcile.messages import action, actions


def _block(queue_id: int, *offsets: int) -> bytes:
    records = np.zeros(len(offsets), ACTION)
    records["offset"], records["action"], records["store"] = offsets, Action.CHECK, 5
    return pack((queue_id, 0, 7, 2, 3, 4, 9), records)


def _rows(*blocks: bytes) -> pa.Table:
    return pa.table({"block": pa.array(blocks, pa.binary())})


def test_blocks_of_all_segments_become_one_array() -> None:
    """Each action with the queue of its segment."""
    found, segments = Actions.of(_rows(_block(1, 4, 5), _block(2, 4)))
    assert found.records[["queue_id", "offset", "store"]].tolist() == [(1, 4, 5), (1, 5, 5), (2, 4, 5)]
    assert found.batch_time == 9
    assert found.counts == {Action.CHECK: 3}
    assert not found.need_bodies
    assert segments.tolist() == [(1, 0, 7, 2, 3, 4, 9), (2, 0, 7, 2, 3, 4, 9)]


def test_what_is_pending_by_group_is_no_action() -> None:
    """The groups with most, and the born time of the oldest of each."""
    pending = np.zeros(MOST_GROUPS + 3, PENDING)
    pending["group"], pending["born"] = [7, 7, 8, 8, *range(100, 99 + MOST_GROUPS)], range(50, 53 + MOST_GROUPS)
    mine = np.concatenate([np.zeros(1, ACTION), pending_by_group(pending)])
    found, _ = Actions.of(_rows(_block(2, 4), pack((1, 3, 7, 2, 3, 4, 9), mine)))
    assert len(found.records) == 2
    assert found.pending.tolist()[:3] == [(1, 3, 7, 2, 50), (1, 3, 8, 2, 52), (1, 3, 100, 1, 54)]
    assert len(found.pending) == MOST_GROUPS


def test_copies_of_a_refusal_are_one() -> None:
    """Of ops that nothing tells apart one action finds all rows; what differs in a field stays, as do decisions."""
    kinds = [Action.REJECT_OP, Action.CHECK, Action.REJECT_OP, Action.LATE_OP, Action.REJECT_OP, Action.CHECK]
    records = np.zeros(len(kinds), ACTION)
    records["action"] = kinds
    records["store"][4] = 1
    found, _ = Actions.of(_rows(pack((1, 0, 7, 2, 3, 4, 9), records)))
    kept = [(kind, store) for place, (kind, store) in enumerate(records[["action", "store"]].tolist()) if place != 2]
    assert found.records[["action", "store"]].tolist() == kept


def test_batch_without_actions_is_empty() -> None:
    """No rows, no actions, no ranges."""
    found, _ = Actions.of(_rows())
    assert (len(found.records), found.counts, found.ranges(16, 4)) == (0, {}, [])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 200)), max_size=40), st.integers(1, 64))
def test_ranges_cover_all_actions(keys: list[tuple[int, int]], size: int) -> None:
    """And no range spans a gap between segments."""
    found = actions(*(action(Action.COMMIT, offset, queue=queue) for queue, offset in keys)).ranges(size, 99)
    for queue, offset in keys:
        assert any(box.first_queue == queue == box.last_queue and box.first <= offset <= box.last for box in found)
    used = {(queue, offset // size) for queue, offset in keys}
    for box in found:
        for number in range(box.first // size, box.last // size + 1):
            assert (box.first_queue, number) in used
