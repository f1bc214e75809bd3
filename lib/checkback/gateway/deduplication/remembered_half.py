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


class RememberedHalf(msgspec.Struct, gc=False):
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
class RememberedColumns:
    """Half messages to be remembered, in the order of landing. ``states``: codes; otherwise as in `RememberedHalf`."""

    queue_ids: Integers
    offsets: Integers
    names: pa.StringArray
    fingerprints: Integers
    topics: list[str]
    born: Integers
    stored: Integers
    states: bytes

    def __iter__(self) -> Iterator[RememberedHalf]:
        """One by one; their Python objects are made in parts."""
        for first in range(0, len(self.topics), _PART):
            part = slice(first, first + _PART)
            yield from map(
                RememberedHalf,
                self.queue_ids[part].tolist(),
                self.offsets[part].tolist(),
                self.names[part].to_pylist(),
                self.fingerprints[part].tolist(),
                self.topics[part],
                self.born[part].tolist(),
                self.stored[part].tolist(),
                map(STATE_OF.__getitem__, self.states[part]),
            )
