"""Groups that sleep for longer than retention.topics go on at the first message left; what they missed is told."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkback.consumer import PushConsumer
from checkback.consumer.group.lag_reader import consumer_lag
from checkback.consumer.group.lag_screen import TOPICS, as_json, topic_rows
from checkback.maintain.row_retention import RowRetention
from checkback.settings import Settings
from consumer.heard import Heard, until
from consumer.test_push_consumer import FAST

if TYPE_CHECKING:
    from consumer.published import Published

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000


def consume(lake: Published, group: str, count: int) -> list[int]:
    """The offsets that a member hears, which is closed once it has so many and the group has consumed all."""
    heard = Heard()
    with PushConsumer(group, lake.tables.root, heard, **FAST).subscribe("pay"):
        heard.wait_for_count(count)
        until(lambda: not consumer_lag(lake.tables, lake.time, group)[0].messages)
    return sorted(heard.offsets)


def remove(lake: Published, before: int) -> int:
    """Remove the messages published before then (ms); how many."""
    settings = Settings.model_validate({"storage": {"root": lake.tables.root}, "retention": {"topics": "1h"}})
    run = RowRetention.by_files(lake.tables, settings, ["topics/pay"], before + HOUR_MS, False)
    return run.run()["topics/pay"].rows


def missed(lake: Published, group: str) -> int | None:
    (found,) = consumer_lag(lake.tables, lake.time, group)
    (topic,) = found.topics
    assert as_json(found)["topics"][0]["missed_messages"] == topic.missed
    assert topic_rows(found, lake.time)[0][TOPICS.index("missed")] == str(topic.missed)
    return topic.missed


@pytest.mark.parametrize("compacted", [False, True])
def test_group_that_slept_is_told_how_many_messages_it_missed(
    lake: Published, caplog: pytest.LogCaptureFixture, compacted: bool
) -> None:
    for _ in range(2):
        lake.publish({"pay": [lake.messages(3, (0, 1, 2))]})
    assert consume(lake, "sleeps", 6) == [*range(6)]
    for _ in range(4):
        lake.publish({"pay": [lake.messages(3, (0, 1, 2))]})
    assert len(consume(lake, "awake", 18)) == 18
    if compacted:
        lake.compact("topics/pay")
    assert missed(lake, "sleeps") == 0
    assert remove(lake, lake.time - 1000) == 12
    assert remove(lake, lake.time - 1000) == 0
    assert (missed(lake, "sleeps"), missed(lake, "awake")) == (6, 0)
    lake.publish({"pay": [lake.messages(3)]})
    assert consume(lake, "sleeps", 9) == [*range(12, 21)]
    assert consume(lake, "awake", 3) == [18, 19, 20]
    told = [line for line in caplog.messages if "retention has removed" in line]
    assert [line.partition(" of the topic pay")[0] for line in told] == [
        "group sleeps: retention has removed 6 messages"
    ]
    lake.publish({"pay": [lake.messages(5)]})
    lake.publish({"pay": [lake.messages(1)]})
    assert remove(lake, lake.time + 1) == 14  # the last batch's stay: another one may be under way
    assert (missed(lake, "sleeps"), missed(lake, "awake")) == (11, 5)
    assert consume(lake, "sleeps", 1) == [26]
    assert sum("removed 11 messages" in line for line in caplog.messages) == 1


def test_messages_stay_while_it_cannot_be_read_what_a_group_misses(lake: Published) -> None:
    """They would be counted nowhere. `maintain` says why."""
    lake.publish({"pay": [lake.messages(3)]})
    assert consume(lake, "sleeps", 3) == [0, 1, 2]
    for _ in range(2):
        lake.publish({"pay": [lake.messages(3)]})
    newest = max(Path(lake.tables.location("consumer_groups/sleeps")).glob("_delta_log/*.json"))
    content = newest.read_bytes()
    newest.write_bytes(b"{not json")
    settings = Settings.model_validate({"storage": {"root": lake.tables.root}, "retention": {"topics": "1h"}})
    found = RowRetention.by_files(lake.tables, settings, ["topics/pay"], lake.time - 1 + HOUR_MS, False).run()[
        "topics/pay"
    ]
    assert found.rows == 0
    assert "consumer_groups/sleeps" in found.kept[0]
    newest.write_bytes(content)
    assert remove(lake, lake.time - 1) == 6
    assert missed(lake, "sleeps") == 3
