"""Names of transactions across producer groups, as the gateway caches them. No I/O, no clock."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from checkback.gateway.deduplication.remembered_half import RememberedHalf

#: longest transaction id, in characters, that is cached unhashed
_WHOLE = 64


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
