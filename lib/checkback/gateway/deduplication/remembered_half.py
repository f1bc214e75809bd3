"""Half messages as the gateway remembers them: one, those of a start by column, and the names of transactions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkback.messages.op import STATES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

#: states by their code: of the first op, or of the decision
STATE_OF = (None, *STATES, "DISCARD", "CANCEL")
CODE_OF = {state: code for code, state in enumerate(STATE_OF)}
_PART = 10_000
#: longest transaction id, in characters, that is cached unhashed
_WHOLE = 64


class RememberedHalf(msgspec.Struct, gc=False):
    """The cache entry of a half message. ``state``: the decision's, else the first op's; None = none yet. Times in ms.

    ``fingerprint``: 0 = unknown, for one looked up by its offset. ``reason``, ``decided_at``: of the decision, if it
    was looked up; ``op_states``: of the ops in the table then.
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
    op_states: frozenset[str] = frozenset()


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


def name_of(producer_group: str, transaction_id: str) -> str:
    """The transaction's name across groups: a group's name contains no slash."""
    return f"{producer_group}/{transaction_id if len(transaction_id) <= _WHOLE else short(transaction_id)}"


def short(transaction_id: str | None) -> str | None:
    """The cached form of a transaction id: a hash of a long one, because millions are kept in memory.

    An id that looks like such a hash is long itself, so it is hashed, too: no collision. None = not stated.
    """
    if transaction_id is None or len(transaction_id) <= _WHOLE:
        return transaction_id
    return "#" + hashlib.sha256(transaction_id.encode("utf-8", "surrogatepass")).hexdigest()


def joined_names(groups: pa.ChunkedArray, transaction_ids: pa.ChunkedArray) -> pa.StringArray:
    """`name_of` of each row; null is empty text."""
    long = np.flatnonzero(np.asarray(pc.utf8_length(transaction_ids)) > _WHOLE).tolist()
    if long:
        ids = transaction_ids.to_pylist()
        for row in long:
            ids[row] = short(ids[row])
        transaction_ids = pa.chunked_array([ids], pa.string())
    texts = (column.fill_null("") if column.null_count else column for column in (groups, transaction_ids))
    names = pc.binary_join_element_wise(*texts, "/")
    return names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names


def whose(known: RememberedHalf) -> tuple[str, str]:
    """The group and the transaction id, in the form of `short`, of a half message."""
    group, _, transaction_id = known.name.partition("/")
    return group, transaction_id
