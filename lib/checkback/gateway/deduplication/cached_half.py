"""The cache entries of half messages: one, those of a start, and those that have just landed, by column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from checkback.messages.op import STATES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

#: states by their code: of the first op, or of the decision
STATE_OF = (None, *STATES, "DISCARD", "CANCEL")
CODE_OF = {state: code for code, state in enumerate(STATE_OF)}


class CachedHalf(msgspec.Struct, frozen=True, gc=False):
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


@dataclass(frozen=True)
class HalfRun:
    """Half messages that have landed at a queue's next offsets, from ``first`` on; otherwise as in `HalfEntries`.

    ``reservations``: those of the names, in their order, each with the number of its names. ``stored``: of all.
    """

    queue_id: int
    first: int
    names: list[str]
    fingerprints: list[int]
    topics: list[str]
    born: list[int]
    stored: int
    states: bytes
    reservations: Sequence[tuple[int, int]]
