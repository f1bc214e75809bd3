"""`python -m examples.outbox.copier URL TABLE POSITION`: copies new rows of the outbox into a Delta table.

As change data capture does, at least once: it notes its position after it has appended, and a kill in between makes it
append the rows again.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psycopg
import pyarrow as pa
from deltalake import write_deltalake

#: Only transactions before the oldest that is still open: one with a smaller number may commit later.
_NEW = """
SELECT transaction::text::bigint, id, aggregatetype, aggregateid, type, payload, "timestamp", seq FROM outbox
WHERE transaction > %s::text::xid8 AND transaction < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY transaction, seq
"""
_COLUMNS = ("id", "aggregatetype", "aggregateid", "type", "payload", "timestamp", "seq")
_EVERY_S = 0.2


def copy(url: str, table: str, position: Path) -> None:
    """Copy for ever."""
    with psycopg.connect(url, autocommit=True) as database:
        while True:
            last = int(position.read_text()) if position.exists() else 0
            rows = database.execute(_NEW, (last,)).fetchall()
            if rows:
                found = [dict(zip(_COLUMNS, row[1:], strict=True)) for row in rows]
                write_deltalake(table, pa.Table.from_pylist(found), mode="append")
                beside = position.with_suffix(".new")  # a kill leaves the old or the new one
                beside.write_text(str(rows[-1][0]))
                beside.replace(position)
            time.sleep(_EVERY_S)


if __name__ == "__main__":
    copy(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
