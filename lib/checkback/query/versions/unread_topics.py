"""What stands for the rows of topics' tables that cannot be read: the messages that the other tables say are published.

So the audit judges all else, and finds no fault with what it could not see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.query.versions.published_notes import with_noted
from checkback.storage.schemas import HALF, TOPIC, TOPIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from checkback.query.engines.engine import Engine, Rows

#: the tables that tell it, besides the notes
TOLD_BY = ("half", "decisions", "deliveries", "unpublished")
_PLACE = ("queue_id", "queue_offset")
_TOPIC = [column.name for column in TOPIC]
#: the columns that a topic has otherwise than `half`
_OTHERS = {
    "half_queue_id": "c.queue_id",
    "half_queue_offset": "c.queue_offset",
    "queue_id": "h.real_queue_id",
    "half_store_timestamp": "h.store_timestamp",
    "committed_at": "coalesce(w.at, d.at, c.at)",
    "batch_id": "CASE WHEN w.at IS NOT NULL THEN w.batch_id WHEN d.at IS NOT NULL THEN d.batch_id ELSE c.batch_id END",
}


def with_untold(engine: Engine, topics: Rows, unread: Iterable[str], tables: Mapping[str, Rows]) -> Rows:
    """The rows of ``topics``, and for those of the tables ``unread`` what ``tables`` (`TOLD_BY`, the notes) tell.

    That is each transaction that was decided COMMIT, and delivered if it was scheduled, unless it is outstanding in
    `unpublished`: its half message, as published by the batch that decided or delivered it, or put it there.
    """
    known = pa.table({"name": [name.removeprefix(TOPIC_PREFIX) for name in unread]})
    return engine.select(_TOLD, {**tables, "topics": topics, "unread": engine.keep("unread", known)})


def _first(table: str, time: str, more: Iterable[str] = (), key: tuple[str, str] = _PLACE) -> str:
    """SQL: the first row of each transaction: queue_id, queue_offset, at (its ``time``), and ``more``."""
    queue, offset = key
    columns = ", ".join([f"{queue} AS queue_id", f"{offset} AS queue_offset", f"{time} AS at", *more])
    turn = f"row_number() OVER (PARTITION BY {queue}, {offset} ORDER BY {time})"
    return f"(SELECT * FROM (SELECT {columns}, {turn} AS turn FROM {table}) AS ordered WHERE turn = 1)"


def _told() -> str:
    half = _first("{half}", "store_timestamp", [column.name for column in HALF if column.name not in _PLACE])
    committed = _first("{decisions} WHERE state = 'COMMIT'", "decided_at", ("batch_id", "deliver_at", "real_topic"))
    delivered = _first("{deliveries}", "delivered_at", ("batch_id",))
    key = ("half_queue_id", "half_queue_offset")
    waiting = _first(with_noted("{unpublished}") + " AS noted", "unpublished_at", ("batch_id", "noted"), key)
    columns = ", ".join(f"{_OTHERS.get(name, f'h.{name}')} AS {name}" for name in _TOPIC)
    h, d, w = (f"{row}.queue_id = c.queue_id AND {row}.queue_offset = c.queue_offset" for row in "hdw")
    return f"""
        SELECT {", ".join(_TOPIC)}, topic FROM {{topics}}
        UNION ALL
        SELECT {columns}, coalesce(h.real_topic, c.real_topic) AS topic
        FROM {committed} AS c JOIN {{unread}} AS u ON u.name = c.real_topic LEFT JOIN {half} AS h ON {h}
            LEFT JOIN {delivered} AS d ON {d} LEFT JOIN {waiting} AS w ON {w}
        WHERE (c.deliver_at IS NULL OR d.at IS NOT NULL) AND coalesce(w.noted, TRUE)"""


_TOLD = _told()
