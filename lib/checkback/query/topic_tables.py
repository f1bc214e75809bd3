"""The topics that have a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.query.engines.question import Question
from checkback.query.unreadable_topics import beside_unreadable
from checkback.storage.schemas import TOPIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection

    from checkback.query.versions.view import View

_SCHEMA = pa.schema(
    {"topic": pa.string(), "messages": pa.int64(), "last_published_at": pa.timestamp("us", "UTC")},
)


def topic_rows(view: View) -> pa.Table:
    """The topics by name: how many messages, when the last was published, why the table cannot be read (null: it can).

    Columns: topic, messages BIGINT, last_published_at TIMESTAMP (time of the batch), unreadable. Reads one column of
    each topic's table. Raises StorageError.
    """
    names = view.topics()
    view.look(*names)
    found, faults = beside_unreadable(
        names,
        lambda faults: _rows(view, [name for name in names if name not in faults]),
        lambda some: _rows(view, some),
    )
    found = found.append_column("unreadable", pa.nulls(found.num_rows, pa.string()))
    rows = [{"topic": name.removeprefix(TOPIC_PREFIX), "unreadable": why} for name, why in faults.items()]
    return pa.concat_tables([found, pa.Table.from_pylist(rows, found.schema)]).sort_by("topic")


def _rows(view: View, names: Collection[str]) -> pa.Table:
    if not names:
        return _SCHEMA.empty_table()
    places = {f"topic{number}": name for number, name in enumerate(names)}
    sql = " UNION ALL ".join(
        f"SELECT :name_of_{at} AS topic, count(*) AS messages, max(committed_at) AS last_published_at FROM {{{at}}}"
        for at in places
    )
    values = {f"name_of_{place}": name.removeprefix(TOPIC_PREFIX) for place, name in places.items()}
    tables = {place: view.read(name) for place, name in places.items()}
    return view.engine.arrow(view.ask(Question(sql, "topic", values), tables)).cast(_SCHEMA)
