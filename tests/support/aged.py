"""Tables that look as if what has ended in them had ended long ago: their files are rewritten with earlier times."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from checkback.maintain.compaction import rows_of, write_rows
from checkback.maintain.maintenance import names

if TYPE_CHECKING:
    from checkback.storage.tables import Tables

_KEY = ["queue_id", "queue_offset"]


def age(tables: Tables, by: timedelta) -> None:
    """Set all times of decided transactions, their messages and all batches back.

    What is pending stays as it is: the state of `reconcile` names its rows by their times.
    """
    decided = _all(tables, "decisions").select(_KEY).combine_chunks()
    ended = set(zip(*(decided.column(name).to_pylist() for name in _KEY), strict=True))
    for name in names(tables.root):
        log, place = tables.open_log(name), tables.location(name)
        for file in log.data_files():
            rows = rows_of(file.path, name)
            keys = ["half_queue_id", "half_queue_offset"] if "half_queue_id" in rows.schema.names else _KEY
            mask: list[bool] = [True] * len(rows)
            if set(keys) <= set(rows.schema.names):
                mask = [key in ended for key in zip(*(rows.column(one).to_pylist() for one in keys), strict=True)]
            earlier = pa.table([_earlier(rows.column(one.name), mask, by) for one in rows.schema], schema=rows.schema)
            assert log.replace([file.path.removeprefix(f"{place}/")], write_rows(name, tables.root, earlier))


def _earlier(column: pa.ChunkedArray, mask: list[bool], by: timedelta) -> pa.ChunkedArray:
    if not pa.types.is_timestamp(column.type):
        return column
    return pc.if_else(pa.array(mask), pc.subtract(column, pa.scalar(by, pa.duration("us"))), column)


def _all(tables: Tables, name: str) -> pa.Table:
    return pa.concat_tables([rows_of(file.path, name) for file in tables.open_log(name).data_files()])
