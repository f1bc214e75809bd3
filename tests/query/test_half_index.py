"""The half message of a row is found by queue id and offset, whatever those are."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from checkback.query.audit.ordinary import HalfIndex

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def _table(keys: list[tuple[int | None, int | None]]) -> pa.Table:
    queues, offsets = zip(*keys, strict=True) if keys else ((), ())
    return pa.table({"queue_id": pa.array(queues, pa.int32()), "queue_offset": pa.array(offsets, pa.int64())})


@pytest.mark.parametrize(
    "offsets",
    [
        range(100),  # side by side
        range(0, 10**9, 10**7),  # far apart
        (_LEAST, _LEAST + 1, -1, 0, 1, _MOST - 1, _MOST, None),  # every one there is
        (7,),
        (None,),
        (),
    ],
)
def test_the_half_message_of_each_row_is_found(offsets: range | tuple[int | None, ...]) -> None:
    random = Random(len(offsets))
    queues = (0, 1, 5, -(1 << 31), (1 << 31) - 1, None)
    keys = [(queue, offset) for queue in queues for offset in offsets]
    half = random.sample(keys, len(keys) // 2)
    others = [(queue, near(offset)) for queue, offset in keys for near in (_same, _next) if offset != _MOST]
    rows = [*half, *others, *keys, (3, 0), (None, None)]
    random.shuffle(rows)
    found = HalfIndex(_table(half)).find(_table(rows))
    known = {key: number for number, key in enumerate(half) if None not in key}
    assert found.tolist() == [known.get(row, -1) for row in rows]


def _same(offset: int | None) -> int | None:
    return offset


def _next(offset: int | None) -> int | None:
    return None if offset is None else offset + 1


def test_of_two_half_messages_at_an_offset_one_is_found() -> None:
    found = HalfIndex(_table([(0, 4), (0, 5), (0, 4)])).find(_table([(0, 4), (0, 4), (0, 5)]))
    assert found[0] == found[1] != 1
    assert found[2] == 1
