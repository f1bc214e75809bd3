"""Tables that are older than they are: their files are rewritten with earlier times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from checkback.maintain.compaction import rows_of, write_rows
from checkback.maintain.maintenance import names

if TYPE_CHECKING:
    from datetime import timedelta

    from checkback.storage.tables import Tables


def age(tables: Tables, by: timedelta) -> None:
    """Set all times back. The state of `reconcile` does not find what is pending any more, until a rebuild."""
    earlier = pa.scalar(by, pa.duration("us"))
    for name in names(tables.root):
        log, place = tables.open_log(name), tables.location(name)
        for file in log.data_files():
            rows = rows_of(file.path, name)
            columns = [
                pc.subtract(each, earlier) if pa.types.is_timestamp(each.type) else each for each in rows.columns
            ]
            aged = write_rows(name, tables.root, pa.Table.from_arrays(columns, schema=rows.schema))
            assert log.replace([file.path.removeprefix(f"{place}/")], aged)
