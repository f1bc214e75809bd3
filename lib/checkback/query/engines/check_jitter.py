"""What transaction.check_jitter added to the interval after a check, as a function of SQL for both engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from xxhash import xxh64_intdigest

from checkback.reconcile.records.records import NOT_STATED, PENDING
from checkback.reconcile.segment import jitter

if TYPE_CHECKING:
    from collections.abc import Iterable

#: its name
NAME = "own_jitter"
#: of org.apache.spark.sql.catalyst.expressions.XxHash64
_SEED = 42


def own_jitter(transaction_ids: pa.Array, offsets: pa.Array, asked: pa.Array, most: pa.Array) -> pa.Array:
    """In ms, of the check after ``asked`` checks of each transaction; ``most``: transaction.check_jitter, ms."""
    records = np.zeros(len(offsets), PENDING)
    records["transaction"] = _hashes(transaction_ids.to_pylist())
    records["offset"] = offsets.fill_null(0).to_numpy(zero_copy_only=False)
    records["requested"] = asked.fill_null(0).to_numpy(zero_copy_only=False) + 1
    limits = most.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return pa.array(jitter(records, np.maximum(limits, 0)), pa.int64())


def _hashes(texts: Iterable[str | None]) -> list[int]:
    """As `event_columns.identity_columns`."""
    known: dict[str | None, int] = {None: NOT_STATED}
    for text in texts:
        if text is not None and text not in known:
            found = xxhash64(text)
            known[text] = ~NOT_STATED if found == NOT_STATED else found
    return [known[text] for text in texts]


def xxhash64(text: str) -> int:
    """Spark's function xxhash64 of a string: signed, seed 42."""
    found = xxh64_intdigest(text.encode(errors="surrogatepass"), _SEED)
    return found - (1 << 64) if found >> 63 else found
