"""Ops that `reconcile` has put in `rejected` although they may fit their half message (docs/protocol.md, 3 and 11).

It came too late, too many ops waited, or there was nothing to cancel yet. Such an op stands in `op` like any other, and
decides nothing: what predicts a decision from `op`, or takes no second op where there is one, leaves it out.
`reconcile` writes the op as JSON (`rejected.raw_op`); its row is about all ops that are equal in that, and had landed
by then: an equal one that landed later has not been judged (as in `rebuild`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from checkback.storage.timestamps import us_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Row: TypeAlias = Mapping[str, Any]

#: the columns of `rejected` that are used; file is null: lines of files are not in `op`
COLUMNS = ("raw", "rejected_at", "source", "file")
_TEXTS = ("producer_group", "transaction_id", "state")
#: an offset, and an op's place, as `reconcile` writes them; in a text its quotes would be escaped
_OFFSET = r'"queue_offset":(?P<offset>-?[0-9]+)'
PLACE = r'^\{"queue_id": ?(?P<queue_id>-?[0-9]+), ?"queue_offset": ?(?P<queue_offset>-?[0-9]+)'


class RejectedOps:
    """Tells which ops were rejected, by rows of `rejected` whose source is op, and which came from no file."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._until: dict[tuple[object, ...], int] = {}
        for row in rows:
            key = _key_of_raw(row["raw"])
            if key is not None and row["rejected_at"] is not None:
                self._until[key] = max(self._until.get(key, 0), us_of(row["rejected_at"]))

    def __bool__(self) -> bool:
        return bool(self._until)

    @property
    def offsets(self) -> list[int]:
        """Where these ops are: others need not be looked at."""
        return sorted({key[1] for key in self._until if isinstance(key[1], int)})

    def __contains__(self, op: Row) -> bool:
        """Whether a row of `op` was rejected; it has queue_id, queue_offset and the columns of `first_op`."""
        born, stored = op["born_timestamp"], op["store_timestamp"]
        until = self._until.get(_key(op, None if born is None else us_of(born) // 1000))
        return until is not None and (0 if stored is None else us_of(stored)) <= until


def about(rows: pa.Table, offsets: Sequence[int] | NDArray[np.int64]) -> list[dict[str, Any]]:
    """The rows of `rejected`, with COLUMNS, that are about ops at these offsets: of a million few are parsed."""
    found = pc.struct_field(pc.extract_regex(rows.column("raw"), _OFFSET), "offset")
    wanted: list[dict[str, Any]] = rows.filter(
        pc.is_in(found, pa.array(offsets, pa.int64()).cast(pa.string()))
    ).to_pylist()
    return wanted


def _key(op: Row, born_ms: int | None) -> tuple[object, ...]:
    return op["queue_id"], op["queue_offset"], born_ms, *(op[name] for name in _TEXTS)


def _key_of_raw(raw: str | None) -> tuple[object, ...] | None:
    """The key of an op as `reconcile` has written it; None: it is no such op."""
    try:
        op = json.loads(raw or "")
    except (ValueError, RecursionError):
        return None
    if not isinstance(op, dict):
        return None
    values = [op.get(name) for name in ("queue_id", "queue_offset", "born_timestamp", *_TEXTS)]
    if not all(value is None or type(value) is int for value in values[:3]):
        return None
    if not all(value is None or isinstance(value, str) for value in values[3:]):
        return None
    return tuple(values)
