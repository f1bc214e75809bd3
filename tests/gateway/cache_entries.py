"""What a deduplication cache is given: half messages that land, and those that a start reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from checkback.gateway.deduplication.cached_half import CODE_OF, HalfEntries, HalfRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checkback.gateway.deduplication.cache import DeduplicationCache
    from checkback.gateway.deduplication.cached_half import CachedHalf


def entries(halves: Sequence[CachedHalf], as_arrow: bool = False) -> HalfEntries:
    """By column; at one place twice, too. A start has the names as Arrow."""
    names = [half.name for half in halves]
    numbers = ("queue_id", "queue_offset", "fingerprint", "born_timestamp", "stored")
    queue_ids, offsets, prints, born, stored = (
        np.array([getattr(half, name) for half in halves], np.int64) for name in numbers
    )
    kept = pa.array(names, pa.string()) if as_arrow else names
    return HalfEntries(
        queue_ids, offsets, kept, prints, [half.real_topic for half in halves], born, stored, _states(halves)
    )


def run(halves: Sequence[CachedHalf], *reservations: tuple[int, int]) -> HalfRun:
    """Half messages at offsets that follow one another, stored at one time, and the reservations of their names."""
    return HalfRun(
        halves[0].queue_id,
        halves[0].queue_offset,
        [half.name for half in halves],
        [half.fingerprint for half in halves],
        [half.real_topic for half in halves],
        [half.born_timestamp for half in halves],
        halves[0].stored,
        _states(halves),
        reservations,
    )


def land(cache: DeduplicationCache, half: CachedHalf) -> None:
    """A new half message at its queue's next offset."""
    reservation = cache.reserve([half.name])
    assert reservation is not None, "it is known"
    cache.landed(run([half], (reservation, 1)))


def _states(halves: Sequence[CachedHalf]) -> bytes:
    return bytes(CODE_OF[half.state] for half in halves)
