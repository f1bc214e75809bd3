"""Unpublished messages: committed, and not in their topic's table yet; which, since when, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from checkback.messages.durations import span
from checkback.query.engines.question import Question
from checkback.query.versions.published_notes import NAME, WRITERS, no_notes, notes_about, with_noted
from checkback.reconcile.publish.unpublished import LONGEST_PAUSE, TABLE, unfit
from checkback.storage.own_failure import own_failure
from checkback.storage.schemas import TOPIC_PREFIX

if TYPE_CHECKING:
    from checkback.query.engines.engine import Rows, Value
    from checkback.query.versions.view import View

#: columns that identify a message in `unpublished` and in its topic's table (`topic_tables.IDENTITY`)
_IDENTITY = ("half_queue_id", "half_queue_offset", "half_store_timestamp", "transaction_id", "producer_group")


class UnpublishedTopic(NamedTuple):
    """Unpublished messages of a topic (None = they have none): how many, since when (ms), and the newest's reason.

    None = another writer's rows do not tell.
    """

    topic: str | None
    messages: int
    since: int | None
    reason: str | None


def retry_of(topic: str | None) -> str:
    """When the topic's table is tried next, in words; empty = never: the topic can have none."""
    longest = LONGEST_PAUSE // 1000
    return "" if unfit(topic) else f"tried again within {span(longest)}, at once when reconcile starts"


def count_unpublished(view: View) -> list[UnpublishedTopic]:
    """Unpublished messages by topic, the oldest first."""
    if not view.version(TABLE):  # never written
        return []
    question, tables = unpublished_question(view)
    sql = f"""
        SELECT real_topic, count(*) AS messages, min(unix_millis(unpublished_at)) AS since,
            max_by(reason, (unpublished_at, reason)) FILTER (
                WHERE unpublished_at IS NOT NULL AND reason IS NOT NULL) AS reason
        FROM ({question.sql}) GROUP BY real_topic"""
    rows = view.engine.arrow(view.ask(Question(sql, "since, real_topic", question.values), tables))
    return [
        UnpublishedTopic(row["real_topic"], row["messages"], row["since"], row["reason"]) for row in rows.to_pylist()
    ]


def unpublished_question(view: View) -> tuple[Question, dict[str, Rows]]:
    """The committed messages that their topic's table does not have yet, the oldest first; and the tables it names.

    Columns: queue_id INT, queue_offset BIGINT, transaction_id, producer_group, real_topic, reason, unpublished_at
    TIMESTAMP (time of the batch that decided it), batch_id. Reads only identity columns of the tables of the topics
    concerned. A topic table that cannot be read counts as empty. Without a point in time, messages also count as
    published if their table has been moved away since.
    """
    writers = view.engine.arrow(view.ask(WRITERS)).to_pylist()
    # The notes are those of now.
    tables: dict[str, Rows] = {
        NAME: view.engine.keep(NAME, no_notes() if view.at is not None else notes_about(view.engine, writers))
    }
    conditions = ["turn = 1", "NOT noted"]
    values: dict[str, Value] = {}
    topics_ = sorted({row["real_topic"] for row in writers if row["real_topic"] is not None})
    view.look(*(TOPIC_PREFIX + topic for topic in topics_))
    for topic in topics_:
        there = _published(view, TOPIC_PREFIX + topic)
        if there is not None:
            place = f"topic{len(values)}"
            tables[place], values[place] = there, topic
            same = " AND ".join(f"t.{name} IS NOT DISTINCT FROM u.{name}" for name in _IDENTITY)
            conditions.append(f"NOT EXISTS (SELECT 1 FROM {{{place}}} AS t WHERE u.real_topic = :{place} AND {same})")
    sql = f"""
        SELECT half_queue_id AS queue_id, half_queue_offset AS queue_offset, transaction_id, producer_group, real_topic,
            reason, unpublished_at, batch_id
        FROM (
            SELECT *, row_number() OVER (
                PARTITION BY {", ".join(_IDENTITY)}, real_topic ORDER BY unpublished_at, batch_id, reason) AS turn
            FROM {with_noted(f"{{{TABLE}}}")} AS rows) AS u
        WHERE {" AND ".join(conditions)}"""
    return Question(sql, "unpublished_at, queue_id, queue_offset", values), tables


def _published(view: View, name: str) -> Rows | None:
    """The topic's rows; None if there is no table, or it cannot be read."""
    try:
        if view.version(name) is None:
            return None
        rows = view.read(name)
        one = Question(f"SELECT {_IDENTITY[0]} FROM {{rows}}", _IDENTITY[0]).page(1)
        view.engine.arrow(view.ask(one, {"rows": rows}))  # a damaged table is detected only here
    except Exception as error:  # noqa: BLE001 - re-raised unless it is the table's own failure
        own_failure(error)
        return None
    return rows
