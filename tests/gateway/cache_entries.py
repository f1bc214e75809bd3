"""What a deduplication cache is given: half messages that land."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checkback.gateway.deduplication.cache import DeduplicationCache
    from checkback.gateway.deduplication.cached_half import CachedHalf


def land(cache: DeduplicationCache, half: CachedHalf) -> None:
    """A new half message at its queue's next offset."""
    assert cache.reserve([half.name], half), "it is known"
    cache.landed([half])
