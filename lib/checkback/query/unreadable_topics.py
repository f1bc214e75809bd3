"""Topics that have a table; an unreadable table does not affect the answers about the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from checkback.errors import SettingsError
from checkback.query.engines.question import Question
from checkback.storage.failure_scope import own_failure
from checkback.storage.schemas import TOPIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from checkback.query.versions.view import View

_Answer = TypeVar("_Answer")


def beside_unreadable(
    topics: Sequence[str],
    answer: Callable[[Mapping[str, str]], _Answer],
    look: Callable[[Sequence[str]], object],
) -> tuple[_Answer, Mapping[str, str]]:
    """``answer`` without the topics' tables that cannot be read, which it is given, by name with the reason; and these.

    ``look`` reads some of the topics' tables, also none; it is called only if the answer fails. Raises what the answer
    raises without them.
    """
    try:
        return answer({}), {}
    except SettingsError:
        raise
    except Exception as error:
        own_failure(error)
        look([])  # raises if nothing can be read
        faults = _faults(topics, look)
        if not faults:
            raise
    return answer(faults), faults


def _faults(topics: Sequence[str], look: Callable[[Sequence[str]], object]) -> dict[str, str]:
    """Few of many cannot be read: they are looked at half by half."""
    try:
        look(topics)
    except Exception as error:  # noqa: BLE001 - re-raised unless the table's own
        fault = own_failure(error)
        if len(topics) <= 1:
            return dict.fromkeys(topics, fault)
        middle = len(topics) // 2
        return _faults(topics[:middle], look) | _faults(topics[middle:], look)
    return {}


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


def _rows(view: View, names: Sequence[str]) -> pa.Table:
    sql = """
        SELECT k.topic, count(t.topic) AS messages, max(t.published_at) AS last_published_at
        FROM {known} AS k LEFT JOIN (SELECT topic, published_at FROM {topics}) AS t ON t.topic = k.topic
        GROUP BY k.topic"""
    known = pa.table({"topic": pa.array([name.removeprefix(TOPIC_PREFIX) for name in names], pa.string())})
    read = {"known": view.engine.keep("known", known), "topics": view.read_topics(names)}
    return view.engine.arrow(view.ask(Question(sql, "topic"), read)).cast(_SCHEMA)
