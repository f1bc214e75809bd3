"""From messages and marks to the rows of the tables: Arrow in, Arrow out."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from checkback.reconcile.publish.tasks import selector, table_rows
from checkback.reconcile.publish.unpublished import UnpublishedTopics
from checkback.reconcile.records.segment_records import Action, Reason, Source
from checkback.storage.schemas import arrow_schema
from reconcile.messages import BATCH_ID, T0, T1, T1_US, action, half, halves, wanted

if TYPE_CHECKING:
    from checkback.reconcile.publish.half_lookup import HalfLookup


def _rows(messages: list[dict[str, Any]], chosen: HalfLookup) -> dict[str, list[dict[str, Any]]]:
    """Table name to its rows, for messages that stand in the order of the records."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, rows in table_rows(
        halves(*messages), np.arange(len(messages)), chosen.records, chosen, UnpublishedTopics()
    ):
        found.setdefault(name, []).extend(rows.to_pylist())
    return found


def test_commit_becomes_a_row_of_its_topic_only() -> None:
    """All of the message, under the names of the topic table, and a decision."""
    messages = [half(1, "a"), half(2, "b"), half(3, "a")]
    chosen = wanted(action(Action.COMMIT, 1), action(Action.COMMIT, 2), action(Action.ROLLBACK, 3))
    found = _rows(messages, chosen)
    assert sorted(found) == ["decisions", "topics/a", "topics/b"]
    assert found["topics/a"] == [
        {
            "half_queue_id": 0,
            "half_queue_offset": 1,
            "queue_id": 3,
            "transaction_id": "tx-1",
            "producer_group": "orders",
            "tags": "tag",
            "keys": "key",
            "properties": [("k", "v")],
            "body": b"\x01",
            "erased_at": None,
            "born_timestamp": T0,
            "half_store_timestamp": T0,
            "published_at": T1,
            "batch_id": BATCH_ID,
        }
    ]
    assert [row["half_queue_offset"] for row in found["topics/b"]] == [2]


def test_messages_of_many_topics_keep_their_bodies() -> None:
    """Sorting by topic moves whole rows."""
    messages = [half(offset, f"t{offset % 3}") for offset in range(30)]
    found = _rows(messages, wanted(*(action(Action.COMMIT, offset) for offset in range(30))))
    for topic in range(3):
        rows = found[f"topics/t{topic}"]
        assert [row["half_queue_offset"] for row in rows] == list(range(topic, 30, 3))
        assert all(row["body"] == bytes([row["half_queue_offset"]]) for row in rows)


def test_decisions_say_state_source_and_reason() -> None:
    """One row a decision; a check is none."""
    chosen = wanted(
        action(Action.COMMIT, 1, detail=Source.CHECK),
        action(Action.ROLLBACK, 2, detail=Source.OPERATOR),
        action(Action.DISCARD, 3, detail=Reason.EXPIRED),
        action(Action.CHECK, 4),
    )
    found = _rows([half(offset) for offset in (1, 2, 3, 4)], chosen)
    names = ("queue_offset", "state", "source", "reason", "check_times", "decided_at", "batch_id")
    assert [tuple(row[name] for name in names) for row in found["decisions"]] == [
        (1, "COMMIT", "check", None, 2, T1, BATCH_ID),
        (2, "ROLLBACK", "operator", None, 2, T1, BATCH_ID),
        (3, "DISCARD", "checkback", "EXPIRED", 2, T1, BATCH_ID),
    ]
    (request,) = found["check_requests"]
    assert (request["queue_offset"], request["check_times"], request["requested_at"]) == (4, 2, T1)
    (discarded,) = found["discarded"]
    assert (discarded["body"], discarded["reason"], discarded["check_times"]) == (b"\x03", "EXPIRED", 2)


@pytest.mark.parametrize("table", ["topics/a", "decisions", "discarded", "check_requests"])
def test_rows_have_the_columns_and_types_of_their_table(table: str) -> None:
    """In the table's order, as Spark expects them."""
    chosen = wanted(action(Action.COMMIT, 1), action(Action.DISCARD, 2), action(Action.CHECK, 3))
    rows = list(selector(chosen, table, UnpublishedTopics())(iter([halves(half(1), half(2), half(3))])))
    assert [batch.schema for batch in rows] == [arrow_schema(table)]


def test_row_is_the_one_that_the_segment_took() -> None:
    """A second row of the same offset, landed later, is not published."""
    chosen = wanted(action(Action.COMMIT, 1, store_us=T1_US))
    rows = list(selector(chosen, "topics/b", UnpublishedTopics())(iter([halves(half(1, "a", T0), half(1, "b", T1))])))
    assert [row["half_store_timestamp"] for batch in rows for row in batch.to_pylist()] == [T1]
    assert not list(
        selector(chosen, "topics/a", UnpublishedTopics())(iter([halves(half(1, "a", T0), half(1, "b", T1))]))
    )


def test_only_the_rows_that_are_named_are_taken_whatever_lies_between() -> None:
    """Some follow one another, some do not; of each table its own."""
    messages = [half(offset, f"t{offset % 2}") for offset in range(12)]
    for named in ([0, 1, 2, 3], [1, 2, 3], [0, 2, 5, 11], [7]):
        acts = [Action.COMMIT if offset % 3 else Action.DISCARD for offset in named]
        chosen = wanted(*(action(act, offset) for act, offset in zip(acts, named, strict=True)))
        found: dict[str, list[int]] = {}
        for name, rows in table_rows(halves(*messages), np.array(named), chosen.records, chosen, UnpublishedTopics()):
            key = "half_queue_offset" if name.startswith("topics/") else "queue_offset"
            found.setdefault(name, []).extend(row[key] for row in rows.to_pylist())
            if "body" in rows.schema.names:
                assert [row["body"] for row in rows.to_pylist()] == [bytes([row[key]]) for row in rows.to_pylist()]
        assert found.pop("decisions") == named
        assert found.pop("discarded", []) == [offset for offset in named if not offset % 3]
        assert sorted(chain.from_iterable(found.values())) == [offset for offset in named if offset % 3]
