"""The half messages of one request, before those of them that are new become a block. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.gateway.requests.half_blocks import ColumnBlock, MessageBlock, block_size

if TYPE_CHECKING:
    from checkback.messages.half import Half

#: Approximate memory overhead of a message besides its texts and body, and of each property.
_OVERHEAD, _PROPERTY = 1024, 256


class SentMessages:
    """Messages of a request that came as JSON."""

    def __init__(self, halves: list[Half], sizes: list[int] | None = None) -> None:
        self._halves = halves
        self._sizes = list(map(_size, halves)) if sizes is None else sizes

    @property
    def transaction_ids(self) -> list[str]:
        """Of each."""
        return [half.transaction_id for half in self._halves]

    def chosen(self, rows: list[int]) -> SentMessages:
        """Those of these rows."""
        return SentMessages([self._halves[row] for row in rows], [self._sizes[row] for row in rows])

    def size(self, count: int) -> int:
        """Approximate memory of the first ``count`` in bytes."""
        return sum(self._sizes if count == len(self._sizes) else self._sizes[:count])

    def block(self, names: list[str], prints: list[int], reservation: int) -> MessageBlock:
        """The first of them, as many as there are names."""
        count = len(names)
        return MessageBlock(names, prints, reservation, self.size(count), self._halves[:count])


class SentColumns:
    """Messages of a request that came as columns; ``size``: of all, in bytes."""

    def __init__(self, rows: pa.Table, size: int) -> None:
        self._rows, self._size = rows, size

    @property
    def transaction_ids(self) -> list[str]:
        """Of each."""
        found: list[str] = self._rows["transaction_id"].to_pylist()
        return found

    def chosen(self, rows: list[int]) -> SentColumns:
        """Those of these rows."""
        chosen = self._rows.take(pa.array(rows, pa.int64()))
        return SentColumns(chosen, chosen.nbytes)

    def size(self, count: int) -> int:
        """Approximate memory of the first ``count`` in bytes."""
        return block_size(count, self._size if count == len(self._rows) else self._rows.slice(0, count).nbytes)

    def block(self, names: list[str], prints: list[int], reservation: int) -> ColumnBlock:
        """The first of them, as many as there are names."""
        count = len(names)
        rows = self._rows if count == len(self._rows) else self._rows.slice(0, count)
        return ColumnBlock(names, prints, reservation, self.size(count), rows)


def _size(half: Half) -> int:
    """The approximate memory a message needs: its body is not always the largest part."""
    size = _OVERHEAD + len(half.body) + len(half.transaction_id) + len(half.tags or "") + len(half.keys or "")
    if half.properties:
        size += _PROPERTY * len(half.properties) + sum(map(len, half.properties))
        size += sum(map(len, half.properties.values()))
    return size
