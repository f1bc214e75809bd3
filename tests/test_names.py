"""Topics as names of a catalog's tables: legal there, and each of its own, also where case does not count."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from checkback.messages import is_topic
from checkback.names import TABLE_PREFIX, is_plain, table_name
from checkback.schemas import SCHEMAS, TOPIC_PREFIX

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
