"""What a deduplication cache is given: half messages that land."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checkback.gateway.deduplication.cache import DeduplicationCache
    from checkback.gateway.deduplication.remembered_half import RememberedHalf


def land(cache: DeduplicationCache, half: RememberedHalf) -> None:
    """A new half message at its queue's next offset."""
    assert cache.reserve([half.name], half), "it is known"
    cache.stored([half])
