"""The add actions of a Delta table's snapshot: a row for each file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from deltalake import DeltaTable


def add_actions(table: DeltaTable, flatten: bool = False) -> pa.Table:
    """As `DeltaTable.get_add_actions`: path, size_bytes and so on, with ``flatten`` a column for each statistic.

    Not by ``pa.table``, which imports pandas where it is installed: 0.4 s, more than most answers take.
    """
    rows: pa.Table = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=flatten)).read_all()
    return rows
