"""Topics as names of a catalog's tables: legal there, and each of its own, also where case does not count."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.errors import StorageError
from checkback.messages.names import is_topic
from checkback.storage.catalog_names import TABLE_PREFIX, is_plain, table_name, whose_folder
from checkback.storage.files import table_files
from checkback.storage.schemas import SCHEMAS, TOPIC_PREFIX
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pathlib import Path

#: what RocketMQ takes for a topic
TOPICS = st.from_regex(r"[%|a-zA-Z0-9_-]{1,127}", fullmatch=True).filter(is_topic)


def _named(topic: str) -> str:
    return table_name(TOPIC_PREFIX + topic)


@given(TOPICS)
def test_name_is_legal_in_every_catalog(topic: str) -> None:
    """Spark's own takes small letters, digits and underscores only, Hive's at most 128 of them."""
    assert re.fullmatch(r"topic_[a-z0-9_]{1,122}", _named(topic))
    assert _named(topic) not in SCHEMAS


@given(st.sets(TOPICS, min_size=2))
def test_topics_share_no_table(topics: set[str]) -> None:
    """In particular not with one that is named as another's table."""
    topics |= {_named(topic).removeprefix(TABLE_PREFIX) for topic in topics} | {topic.upper() for topic in topics}
    assert len({_named(topic) for topic in topics}) == len(topics)


@given(TOPICS)
def test_folder_is_that_of_who_came_first_where_case_is_ignored(topic: str) -> None:
    """And the topic's own wherever the file system lists it."""
    assert whose_folder(topic, []) is None
    assert whose_folder(topic, [topic + "x"]) is None
    assert whose_folder(topic, [topic.swapcase(), topic]) == topic
    assert whose_folder(topic.upper(), [topic.lower()]) == topic.lower()


def test_table_is_not_made_in_the_folder_of_another_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that ignores case lists a folder as whoever made it spelt it. The one that came first goes on."""
    tables = Tables(root=str(tmp_path), by_files=True)
    tables.create(None, "topics/orders", "topics/paid")  # type: ignore[arg-type]  # no Spark is needed for files
    monkeypatch.setattr(table_files, "names", lambda place: [name.lower() for name in os.listdir(place)])
    tables.create(None, "topics/orders")  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="ignores case, and the table is that of the topic orders; give the topics"):
        tables.create(None, "topics/Orders")  # type: ignore[arg-type]


@given(TOPICS)
def test_plain_topic_is_read_off_its_table(topic: str) -> None:
    assert is_plain(topic) == (_named(topic) == TABLE_PREFIX + topic)
    assert is_plain(_named(topic).removeprefix(TABLE_PREFIX)) == is_plain(topic)


def test_names_in_use_stay() -> None:
    """They are in people's queries: a change would begin new tables."""
    assert {
        topic: _named(topic) for topic in ("orders", "order_paid_2", "Orders", "orders-", "%RETRY%a|b", "a__b")
    } == {
        "orders": "topic_orders",
        "order_paid_2": "topic_order_paid_2",
        "Orders": "topic_orders__b7e8acdd52",
        "orders-": "topic_orders___3cd3259874",
        "%RETRY%a|b": "topic__retry_a_b__f653e9a7dc",
        "a__b": "topic_a__b__63e5c1c455",
    }
    assert {table_name(name) for name in SCHEMAS} == set(SCHEMAS)
