"""A group has one subscription: what differs among its members is told, and so is a topic that none subscribes to."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.consumer.dead_letter_requests import Request, follows
from checkback.consumer.group.group_lag import group_lag
from checkback.consumer.group.group_rows import from_rows, to_rows
from checkback.consumer.group.group_state import GroupState, Member, MessageQueue, QueueState
from checkback.consumer.group.lag_reader import consumer_lag
from checkback.consumer.group.lag_screen import as_json, facts_of, heading, member_rows, topic_rows
from checkback.consumer.message_rows import Unread
from checkback.consumer.metrics import ConsumerMetrics
from checkback.consumer.position import Position
from checkback.consumer.push_consumer import PushConsumer
from checkback.consumer.reconsume import Buried, judge
from checkback.filter import MessageSelector
from checkback.query.status.screen import _consumers
from consumer.heard import Heard, until
from consumer.published import START

if TYPE_CHECKING:
    from consumer.published import Published

SUBSCRIPTIONS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["*", "TAG x", "SQL92 n > 1"]))


def member(name: str, subscription: dict[str, str]) -> Member:
    selectors = {topic: said for topic, said in subscription.items() if said != "*"}
    return Member(name, 1, START, frozenset(subscription), selectors=selectors)


@given(st.lists(SUBSCRIPTIONS, min_size=1, max_size=4))
def test_members_are_unlike_if_their_topics_or_selectors_are(subscriptions: list[dict[str, str]]) -> None:
    state = GroupState({f"m{number}": member(f"m{number}", each) for number, each in enumerate(subscriptions)})
    assert from_rows(to_rows(state)) == state
    for number, mine in enumerate(subscriptions):
        others = {each.name for each in state.unlike(f"m{number}")}
        assert others == {f"m{at}" for at, each in enumerate(subscriptions) if each != mine}
    found = group_lag("g", state, START, {}, START)
    assert found.differs == any(each != subscriptions[0] for each in subscriptions)
    assert as_json(found)["subscriptions_differ"] == found.differs
    assert state.unlike("nobody") == []


def consumer(lake: Published, running: list[PushConsumer], name: str, selector: MessageSelector | str) -> PushConsumer:
    made = PushConsumer(
        "g",
        lake.tables.root,
        Heard(),
        session_timeout=timedelta(seconds=2.0),
        commit_interval=timedelta(seconds=0.05),
        threads=1,
        member=name,
    )
    running.append(made.subscribe("pay", selector))
    return made.start()


def differing(one: PushConsumer) -> float | None:
    return ConsumerMetrics(one).registry.get_sample_value("checkback_consumer_differing_members", {"group": "g"})


@pytest.mark.slow
def test_members_with_other_selectors_are_logged_shown_and_counted(
    lake: Published, running: list[PushConsumer], caplog: pytest.LogCaptureFixture
) -> None:
    lake.publish({"pay": [lake.messages(1)]})
    first = consumer(lake, running, "old", "A||B")
    same = consumer(lake, running, "same", " B || A")
    assert differing(first) == differing(same) == 0
    other = consumer(lake, running, "new", MessageSelector.by_sql("amount > 5"))
    assert differing(other) == 2
    until(lambda: differing(first) == differing(same) == 1)
    until(lambda: len([line for line in caplog.messages if "subscribe differently" in line]) == 3)
    said = [line for line in caplog.messages if "subscribe differently" in line]
    assert f"{other.member} to {{'pay': 'SQL92 amount > 5'}}, this one to {{'pay': 'TAG A || B'}}" in said[1]
    (found,) = consumer_lag(lake.tables, START, "g")
    assert "members subscribe differently" in heading(found, START)
    assert {row[0].partition("-")[0]: row[3] for row in member_rows(found)} == {
        **dict.fromkeys(("old", "same"), "pay (TAG A || B)"),
        "new": "pay (SQL92 amount > 5)",
    }
    assert {each["selectors"]["pay"] for each in as_json(found)["members"]} == {"TAG A || B", "SQL92 amount > 5"}
    other.close()
    until(lambda: differing(first) == differing(same) == 0)
    (found,) = consumer_lag(lake.tables, START, "g")
    assert "members subscribe differently" not in heading(found, START)


def _group(*members: Member) -> Any:
    """A group with a message of `old` and of `pay` not consumed, the first with a retry."""
    queues = {MessageQueue(topic, 0): QueueState(Position()) for topic in ("old", "pay")}
    unread = dict.fromkeys(queues, Unread(1, START))
    return group_lag("g", GroupState({each.name: each for each in members}, queues), START, unread, START)


def test_a_topic_that_no_living_member_subscribes_is_marked() -> None:
    lives = member("m", {"pay": "*"})
    found = _group(lives)
    assert [(row[0], row[1]) for row in topic_rows(found, START)] == [("old", "not subscribed"), ("pay", "0/1")]
    assert [topic["subscribed"] for topic in as_json(found)["topics"]] == [False, True]
    assert _consumers(facts_of(found, START), 0).text.endswith("; not subscribed: old")
    assert facts_of(_group(lives, member("n", {"old": "TAG a"})), START).unsubscribed == ()
    nobody = _group()
    assert [topic["subscribed"] for topic in as_json(nobody)["topics"]] == [None, None]
    assert facts_of(nobody, START).unsubscribed == ()


def test_reconsume_says_that_nobody_subscribes_to_the_topic() -> None:
    request = Request.of("g", None, (), True, "alice", "why")
    queue = MessageQueue("old", 0)
    buried = Buried(queue, 0, 1, "tx", "orders", START, 0, 16, "x", START)
    state = GroupState({"m": member("m", {"pay": "*"})}, {queue: QueueState(Position())})
    told = follows(request, [judge(buried, None, state, (), "resumed by alice")])
    assert "No member subscribes to old now: until one does nothing happens." in told
    for known in (replace(state, members={}), replace(state, members={"m": member("m", {"old": "TAG a"})})):
        assert "No member" not in follows(request, [judge(buried, None, known, (), "resumed by alice")])
