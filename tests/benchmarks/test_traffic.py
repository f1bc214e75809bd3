"""The delay of a transaction is from its own op landed to its own row seen; one lost or doubled is no figure."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.traffic import delays
from checkback.errors import CheckbackError

#: two ticks of two transactions each
LANDED = np.array([10.0, 20.0])
SEEN = {0: 11.0, 1: 12.0, 2: 23.0, 3: 24.0}


def of(offsets: list[int], begin: float = 0, end: float = 100) -> list[float]:
    seen = np.array([SEEN[offset] for offset in offsets])
    return sorted(delays(LANDED, 2, np.array(offsets), seen, begin, end).tolist())


def test_delays_are_each_transactions_own() -> None:
    assert of([3, 0, 2, 1]) == [1, 2, 3, 4]


def test_delays_are_of_what_landed_in_the_time() -> None:
    assert of([0, 1, 2, 3], begin=20) == [3, 4]
    assert of([0, 1, 2, 3], end=20) == [1, 2]


@pytest.mark.parametrize("offsets", [[0, 1, 2], [0, 1, 2, 3, 3], [0, 1, 2, 2]])
def test_delays_of_lost_or_doubled_transactions_are_refused(offsets: list[int]) -> None:
    with pytest.raises(CheckbackError, match="published"):
        of(offsets)
