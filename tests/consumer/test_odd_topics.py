"""Topics that cannot be read, are made anew, or have odd rows hold up no consumer of another one."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import create_engine

from checkback.consumer import ConsumeResult, MessageSelector, PushConsumer, SqlPositions
from checkback.consumer.batch_log import BatchLog
from checkback.errors import StorageError
from checkback.storage.schemas import arrow_schema
from checkback.storage.timestamps import time_of
from consumer.heard import Heard, until
from consumer.test_push_consumer import FAST, dead_letters, start
from support.odd_rows import REPLACED, bad_texts

if TYPE_CHECKING:
    from consumer.published import Published

pytestmark = pytest.mark.slow


def test_a_topic_that_cannot_be_read_holds_up_no_other(lake: Published, running: list[PushConsumer]) -> None:
    lake.publish({"pay": [lake.messages(3)], "refunds": [lake.messages(3)]})
    [file] = Path(lake.tables.location("topics/pay")).glob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(b"PAR1 is not enough")
    heard = Heard()
    consumer = PushConsumer("g", lake.tables.root, heard, **FAST).subscribe("pay").subscribe("refunds")
    running.append(consumer.start())
    heard.wait_for(3, 4, 5)
    until(lambda: consumer.last_error)
    assert "topics/pay" in str(consumer.last_error)
    file.write_bytes(whole)
    heard.wait_for(*range(6))
    assert set(heard.times.values()) == {1}


@pytest.mark.parametrize("more", [0, 5])
def test_a_topic_table_that_was_made_anew_is_read_from_its_beginning(
    lake: Published, running: list[PushConsumer], more: int
) -> None:
    """Whatever version the new one has."""
    for _ in range(3):
        lake.publish({"pay": [lake.messages(1)]})
    heard = Heard()
    start(lake, running, heard)
    heard.wait_for(0, 1, 2)
    shutil.rmtree(lake.tables.location("topics/pay"))
    lake._logs.clear()
    for _ in range(1 + more):
        lake.publish({"pay": [lake.messages(1)]})
    heard.wait_for(*range(4 + more))
    assert set(heard.times.values()) == {1}


def test_a_batch_that_could_not_be_read_is_read_later(lake: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.publish({"pay": [lake.messages(1)]})
    log = BatchLog(lake.tables)
    assert log.refresh()
    lake.publish({"pay": [lake.messages(1)]})
    with monkeypatch.context() as patch:

        def fail(*_: Any) -> None:
            raise OSError(24, os.strerror(24))

        patch.setattr("checkback.consumer.batch_log.actions_of_kind", fail)
        with pytest.raises(StorageError):
            log.refresh()
    assert log.refresh()
    assert len(log) == 2


def test_text_that_is_not_utf8_holds_up_nothing(lake: Published, running: list[PushConsumer]) -> None:
    """Another writer's."""
    lake.publish({"pay": [lake.messages(3)]}, concluded=False)
    [file] = Path(lake.tables.location("topics/pay")).glob("*.parquet")
    rows = pq.read_table(file)
    bad = pa.array([b"\xff\xfe", b"ok", None], pa.binary()).view(pa.string())
    place = arrow_schema("topics/pay").get_field_index("keys")
    pq.write_table(rows.set_column(place, "keys", bad), file)
    lake.conclude({"topics/pay": 1})
    heard = Heard()
    start(lake, running, heard)
    heard.wait_for(0, 1, 2)
    keys = {message.half_queue_offset: message.keys for message in heard.messages}
    assert keys == {0: "\ufffd\ufffd", 1: "ok", 2: None}


def test_text_that_is_not_utf8_is_filtered_and_becomes_a_dead_letter(
    lake: Published, running: list[PushConsumer]
) -> None:
    """Another writer's: a filter by number meets it, and a retry that fails."""
    rows = lake.messages(1, tags="bad", properties=[("number", "bad")]) + lake.messages(2)
    lake.publish({"pay": []}, concluded=False)
    named = {"batch_id": lake.batch_id, "published_at": time_of(lake.time)}
    lake.write("topics/pay", bad_texts(pa.Table.from_pylist([row | named for row in rows], arrow_schema("topics/pay"))))
    lake.conclude({"topics/pay": lake.log("topics/pay").version()})
    heard = Heard()
    numbers = PushConsumer("numbers", lake.tables.root, heard)
    numbers.subscribe("pay", MessageSelector.by_sql("number > 1"))
    numbers.start()
    running.append(numbers)
    heard.wait_for(2)
    assert {message.half_queue_offset for message in heard.messages} == {2}
    start(
        lake,
        running,
        lambda _: ConsumeResult.RECONSUME_LATER,
        max_reconsume_times=1,
        retry_levels=[timedelta(seconds=0.02)],
    )
    until(lambda: len(dead_letters(lake)) == 3)
    (dead,) = (row for row in dead_letters(lake) if row["half_queue_offset"] == rows[0]["half_queue_offset"])
    assert (dead["tags"], dead["properties"]) == (REPLACED, [("number", REPLACED)])


def test_a_topic_s_table_that_is_away_is_waited_for(lake: Published, running: list[PushConsumer]) -> None:
    lake.publish({"pay": [lake.messages(3)]})
    place = lake.tables.location("topics/pay")
    shutil.move(place, f"{place}.away")
    heard = Heard()
    consumer = start(lake, running, heard)
    until(lambda: "topics/pay" in str(consumer.last_error))
    shutil.move(f"{place}.away", place)
    heard.wait_for(0, 1, 2)


def test_of_a_property_that_is_there_twice_the_first_counts(lake: Published, running: list[PushConsumer]) -> None:
    """For the filter and for the listener."""
    rows = lake.messages(2, properties=[("a", "1"), ("b", "2"), ("a", "3")])
    lake.publish({"pay": [rows]})
    heard = Heard()
    start(lake, running, heard, selector=MessageSelector.by_sql("a = '1'"))
    heard.wait_for(0, 1)
    assert heard.messages[0].properties == {"a": "1", "b": "2"}


@pytest.mark.parametrize("options", [{}, {"orderly": True, "suspend": timedelta(seconds=0.02)}, {"sql": True}])
def test_a_message_that_a_topic_has_twice_holds_up_nothing(
    lake: Published,
    running: list[PushConsumer],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
) -> None:
    """Each of the rows is consumed; a retry is of the message, once, and the others' are read beside it."""
    rows = lake.messages(4)
    lake.publish({"pay": [rows, [rows[1]], [rows[1]]]})
    listener: Any = Heard(fails=dict.fromkeys(range(4), 3))
    if options.pop("sql", False):
        options = {"positions": SqlPositions(create_engine(f"sqlite:///{tmp_path}/positions.db"))}
    consumer = start(
        lake,
        running,
        listener,
        retry_levels=[timedelta(seconds=0.02)],
        commit_interval=timedelta(seconds=0.02),
        **options,
    )
    lake.publish({"pay": [lake.messages(1)]})
    listener.wait(lambda heard: all(heard.times[offset] >= 4 for offset in (0, 1, 2, 3)) and heard.times[4])
    consumer.close()
    assert "KeyError" not in caplog.text
