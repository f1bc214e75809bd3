"""Empties the bodies of half messages in place, as an erasure does: of a file at least half of those that it has.

So a file is rewritten once, or each time half as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq

from checkback.maintain.compaction import rows_of, write_rows
from checkback.maintain.erasure_selection import emptied
from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.files.object_store import concurrently
from checkback.storage.horizon import BODIES, never_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from checkback.maintain.retained_rows import FileGroup
    from checkback.reconcile.ended_transactions import Mask
    from checkback.storage.log.snapshot_files import DataFile
    from checkback.storage.parquet.parquet_files import ParquetFile
    from checkback.storage.tables import Tables

#: Bodies that are a smaller part of their file stay: of transactions that are not over yet, or none at all.
_WORTH = 1 / 20


def empty(
    tables: Tables,
    files: Sequence[DataFile],
    grouped: Callable[[Iterable[DataFile]], Iterator[FileGroup]],
    before: int,
    over: Callable[[pa.Table], Mask],
    dry_run: bool,
) -> Iterator[tuple[int, int]]:
    """Empty the bodies that no one needs, see RetainedRows.empty_bodies; yield how many, and their bytes, by group.

    ``files``: those of `half` that may have some.
    """
    log = tables.open_log("half")
    sizes = zip(files, concurrently(tables.root, _size_of_bodies, files), strict=True)
    bodies = {file.path: taken for file, taken in sizes if taken > _WORTH * file.size}
    place = f"{tables.location('half')}/"
    for group in grouped([file for file in files if file.path in bodies]):
        old: list[str] = []
        new: list[ParquetFile] = []
        count = size = 0
        for file, mask in zip(group.files, np.split(over(group.rows), np.cumsum(group.sizes)[:-1]), strict=True):
            if not mask.any():
                continue
            rows = rows_of(file.path, "half")
            there = rows.column("body").is_valid().to_numpy()
            number, left = int((there & mask).sum()), int(there.sum())
            if 2 * number < max(1, left):
                continue
            count, size = count + number, size + bodies[file.path] * number // left
            if not dry_run:
                old.append(file.path.removeprefix(place))
                new += write_rows("half", tables.root, emptied(rows, "body", mask))
        if not old or log.remove(old, new, never_back(log, {BODIES: before}), changes=False):
            yield count, size


def _size_of_bodies(file: DataFile) -> int:
    """Bytes of a file of `half` that are bodies, by its footer."""
    with reading(file.path):
        metadata = pq.read_metadata(table_files.source(file.path))
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = (group.column(place) for group in groups for place in range(group.num_columns))
    return sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema == "body")
