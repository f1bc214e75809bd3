"""Half messages that retention has removed, and that `half` has again: somebody took it back with RESTORE.

RESTORE brings the files back, but not the table's Delta transaction identifiers: `half` says the horizon still. What
ended before it seems to be pending: its producers are asked, and it is published again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from checkback.storage.horizon import floors, horizon
from checkback.storage.log.snapshot_files import Span

if TYPE_CHECKING:
    from checkback.query.engines.engine import Engine

_KEY = ("queue_id", "queue_offset")
_COLUMNS = ", ".join(_KEY)


def restored_half(engine: Engine) -> pa.Table:
    """KEY (queue_id, queue_offset) of those half messages, of the tables as they are now. Raises StorageError.

    They lie below their queue's floor, landed before a batch that was before the horizon, and were neither decided nor
    checked: of what is owed for so long a batch has requested checks. Cheap: only the files of `half` that have older
    rows than the horizon are read, and what the others have at these offsets.
    """
    since = horizon(engine.session, engine.tables)
    read_by = None if since is None else _last_batch(engine, since)
    old = "FALSE" if read_by is None else f"store_timestamp < timestamp_millis({read_by})"
    found = _rows(engine, f"SELECT {_COLUMNS} FROM {{half}}", "half", old).drop_null()
    queues = found.column("queue_id").unique().to_pylist()
    below = floors(engine.session, engine.tables, queues)
    floor = pa.array([below.get(queue, 0) for queue in queues], pa.int64())
    places = pc.index_in(found.column("queue_id"), pa.array(queues, pa.int32()))
    found = found.filter(pc.less(found.column("queue_offset"), floor.take(places.combine_chunks())))
    for name in ("decisions", "check_requests"):
        if not found.num_rows:
            break
        offsets = pc.min_max(found.column("queue_offset")).as_py()
        same = " AND ".join(f"t.{column} = o.{column}" for column in _KEY)
        sql = f"SELECT {_COLUMNS} FROM {{old}} AS o WHERE NOT EXISTS (SELECT 1 FROM {{{name}}} AS t WHERE {same})"
        within = Span("queue_offset", offsets["min"], offsets["max"] + 1)
        found = _rows(engine, sql, name, within.condition, within, old=engine.keep("old", found))
    return found.sort_by([(column, "ascending") for column in _KEY])


def _last_batch(engine: Engine, until: int) -> int | None:
    """Time of the last batch up to a time (ms): it has read what landed before; None = there was none."""
    sql = "SELECT max(unix_millis(batch_time)) AS ms FROM {batches}"
    rows = _rows(engine, sql, "batches", f"batch_time <= timestamp_millis({until})")
    found: int | None = rows.column("ms")[0].as_py()
    return found


def _rows(engine: Engine, sql: str, name: str, where: str, within: Span | None = None, **more: Any) -> pa.Table:
    """The rows of a question about one table, and ``more``."""
    version = engine.newest(name)
    table = engine.empty(name) if version is None else engine.read(name, version, where, within=within)
    return engine.arrow(engine.query(sql, {name: table, **more}, {}))
