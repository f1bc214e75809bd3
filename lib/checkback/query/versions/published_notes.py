"""Which rows of `unpublished` were published late, as noted with the table (`published_notes`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.query.engines.question import Question
from checkback.reconcile.publish.unpublished import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from checkback.query.engines.engine import Engine

#: the notes as a table: real_topic, application, last (batch); one row of each topic and application
NAME = "published_notes"
_SCHEMA = pa.schema([("real_topic", pa.string()), ("application", pa.string()), ("last", pa.int64())])
#: by whom, and for which topic, messages were put into the table
WRITERS = Question("SELECT DISTINCT real_topic, application FROM {unpublished}", "real_topic, application")


def no_notes() -> pa.Table:
    """Nothing is noted. Not a constant: pyarrow would import pandas for it as soon as this module is imported."""
    return _SCHEMA.empty_table()


def with_noted(rows: str) -> str:
    """SQL: rows of `unpublished`, with ``noted``: whether they were published late. It reads the notes, `NAME`."""
    same = "n.real_topic = u.real_topic AND n.application = u.application"
    return f"""(SELECT u.*, coalesce(u.batch_id <= n.last, FALSE) AS noted
        FROM {rows} AS u LEFT JOIN {{{NAME}}} AS n ON {same})"""


def read_notes(engine: Engine) -> pa.Table:
    """All notes, as they are now. Raises StorageError."""
    if not engine.newest(TABLE):  # there is none, or it was never written
        return no_notes()
    writers = engine.query(WRITERS.text, {TABLE: engine.read(TABLE)}, {})
    return notes_about(engine, engine.arrow(writers).to_pylist())


def notes_about(engine: Engine, writers: Iterable[dict[str, str | None]]) -> pa.Table:
    """The notes, as they are now, about the messages of these `WRITERS`. Raises StorageError."""
    from checkback.reconcile.publish.published_notes import notes_of

    found = ((row["real_topic"], row["application"]) for row in writers)
    keys = [(topic, application) for topic, application in found if topic is not None and application is not None]
    notes = notes_of(engine.session, engine.tables, keys) if keys else {}
    rows = [{"real_topic": topic, "application": name, "last": last} for (topic, name), last in notes.items()]
    return pa.Table.from_pylist(rows, _SCHEMA)
