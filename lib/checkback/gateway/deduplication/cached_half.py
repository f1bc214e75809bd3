"""The cache entries of half messages: one, and those of a start, by column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from checkback.messages.op import STATES

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

#: states by their code: of the first op, or of the decision
STATE_OF = (None, *STATES, "DISCARD", "CANCEL")
CODE_OF = {state: code for code, state in enumerate(STATE_OF)}
_PART = 10_000


class CachedHalf(msgspec.Struct, gc=False):
    """The cache entry of a half message. ``state``: the decision's, else the first op's; None = none yet. Times in ms.

    ``fingerprint``: 0 = unknown, for one looked up by its offset. ``reason``, ``decided_at``: of the decision, if it
    was looked up.
    """

    queue_id: int
    queue_offset: int
    name: str
    fingerprint: int
    real_topic: str
    born_timestamp: int
    stored: int
    state: str | None = None
    reason: str | None = None
    decided_at: int | None = None


@dataclass(frozen=True)
class HalfEntries:
    """Half messages to be remembered, in the order of landing. ``states``: codes; otherwise as in `CachedHalf`.

    ``names``: an Arrow array for those of a start, which need less memory then.
    """

    queue_ids: Integers
    offsets: Integers
    names: list[str] | pa.StringArray
    fingerprints: Integers
    topics: list[str]
    born: Integers
    stored: Integers
    states: bytes

    def __iter__(self) -> Iterator[CachedHalf]:
        """One by one; their Python objects are made in parts."""
        for first in range(0, len(self.topics), _PART):
            part = slice(first, first + _PART)
            columns = (column[part].tolist() for column in (self.queue_ids, self.offsets, self.fingerprints))
            queue_ids, offsets, prints = columns
            names = self.names[part]
            yield from map(
                CachedHalf,
                queue_ids,
                offsets,
                names if isinstance(names, list) else names.to_pylist(),
                prints,
                self.topics[part],
                self.born[part].tolist(),
                self.stored[part].tolist(),
                map(STATE_OF.__getitem__, self.states[part]),
            )
