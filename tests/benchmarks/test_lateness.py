"""How late a scheduled message is: from its own time to its own row; one lost, doubled or early is no figure."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.lateness import late
from checkback.errors import CheckbackError

DELIVER_AT = np.array([1_000, 2_000, 3_000])


def test_lateness_is_each_messages_own() -> None:
    """By offset, whatever the order in which they are seen."""
    assert late(DELIVER_AT, np.array([2, 0, 1]), np.array([3.5, 1.25, 4.0])).tolist() == [0.25, 2.0, 0.5]


@pytest.mark.parametrize(
    ("offsets", "seen", "why"),
    [
        ([0, 1], [9.0, 9.0], "1 scheduled messages were not published, 2 rows were"),
        ([0, 1, 2, 2], [9.0] * 4, "0 scheduled messages were not published, 4 rows were"),
        ([0, 1, 2], [9.0, 1.5, 9.0], "visible 0.500 s before its time"),
    ],
)
def test_what_is_not_right_is_no_figure(offsets: list[int], seen: list[float], why: str) -> None:
    with pytest.raises(CheckbackError, match=why):
        late(DELIVER_AT, np.array(offsets), np.array(seen))
