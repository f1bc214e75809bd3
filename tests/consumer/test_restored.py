"""Tables restored from a backup: batch ids are used again, and no group loses or repeats a batch by it."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine

from checkback.consumer import PushConsumer, SqlPositions
from checkback.consumer.batch_listing import ListedBatch
from checkback.consumer.batch_log import BatchLog
from checkback.consumer.browse import Browser
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.group.lag_reader import consumer_lag
from checkback.consumer.position import BatchKey, Position, last_of
from consumer.heard import Heard, until
from consumer.published import START, Published
from consumer.test_push_consumer import FAST, start


class Backup:
    """The whole root as it is now. Groups' tables are left where they are, unless ``groups``."""

    def __init__(self, lake: Published) -> None:
        self._lake = lake
        self._root = Path(lake.tables.root)
        self._copy = self._root.with_name("backup")
        self._batch_id = lake.batch_id
        # What a running consumer is about to write has another name a moment later.
        shutil.copytree(self._root, self._copy, ignore=shutil.ignore_patterns(".*.tmp"))

    def restore(self, groups: bool) -> None:
        """As somebody does who copies it back; later batches of the application have its ids again."""
        shutil.copytree(self._copy, self._root.with_name("restored"))
        old = self._root.rename(self._root.with_name("old"))
        self._root.with_name("restored").rename(self._root)
        for name in () if groups else ("consumer_groups", "dead_letters"):
            shutil.rmtree(self._root / name, ignore_errors=True)
            if (old / name).exists():
                (old / name).rename(self._root / name)
        self._lake._logs.clear()
        self._lake.batch_id = self._batch_id


def publish(lake: Published, batches: int) -> None:
    for _ in range(batches):
        lake.publish({"pay": [lake.messages(2, (0, 1))]})


def is_settled(lake: Published) -> bool:
    """The group has kept all that it will of what is published: it writes nothing until there is more."""
    kept = [queue.position for queue in GroupTable(lake.tables, "g").state.queues.values()]
    return bool(kept) and all(each.part is None and each.consumed.get("a") == lake.batch_id for each in kept)


def heard_in_all(heard: list[Heard]) -> list[int]:
    return sorted(offset for each in heard for offset in each.offsets)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [True, False])
@pytest.mark.parametrize("behind", [1, 3, 5])
def test_a_running_group_gets_what_is_published_after_a_restore(
    lake: Published, running: list[PushConsumer], groups: bool, behind: int
) -> None:
    """``behind``: batches published after it; 3 were consumed and are gone."""
    publish(lake, 2)
    heard = Heard()
    start(
        lake, running, heard, commit_interval=timedelta(seconds=0.02), session_timeout=timedelta(seconds=60)
    )  # no heartbeat, either, in the middle of the restore
    heard.wait_for(*range(4))
    until(lambda: is_settled(lake))
    backup = Backup(lake)
    publish(lake, 3)
    heard.wait_for(*range(10))
    until(lambda: is_settled(lake))
    backup.restore(groups)
    publish(lake, behind)
    heard.wait_for(*range(10, 10 + 2 * behind))
    running.pop().close()
    rest = Heard()
    publish(lake, 1)
    start(lake, running, rest)
    rest.wait_for(10 + 2 * behind, 11 + 2 * behind)
    running.pop().close()
    assert heard_in_all([heard, rest]) == list(range(12 + 2 * behind))


@pytest.mark.slow
@pytest.mark.parametrize("sql", [True, False])
@pytest.mark.parametrize("behind", [1, 3, 5])
def test_a_stopped_group_whose_positions_are_newer_than_the_tables(
    lake: Published, running: list[PushConsumer], tmp_path: Path, sql: bool, behind: int
) -> None:
    """It gets what was published after the restore once, and says once that it is newer."""
    engine: Engine = create_engine(f"sqlite:///{tmp_path / 'books'}", connect_args={"timeout": 30})
    options: dict[str, Any] = {"positions": SqlPositions(engine)} if sql else {}
    publish(lake, 2)
    backup, heard = Backup(lake), [Heard() for _ in range(3)]
    publish(lake, 3)
    start(lake, running, heard[0], **options)
    heard[0].wait_for(*range(10))
    running.pop().close()
    backup.restore(groups=False)
    between = start(lake, running, heard[1], **options)
    until(lambda: "restored from a backup" in str(between.last_error))
    running.pop().close()
    publish(lake, behind)
    start(lake, running, heard[2], **options)
    heard[2].wait_for(*range(10, 10 + 2 * behind))
    running.pop().close()
    assert heard_in_all(heard) == list(range(10 + 2 * behind))
    if not sql:
        [lag] = consumer_lag(lake.tables, lake.time)
        assert lag.messages == 0


@pytest.mark.slow
def test_the_newest_tables_are_put_back_after_a_restore(lake: Published, running: list[PushConsumer]) -> None:
    """What was consumed of them stays consumed, though the group has run with older ones."""
    publish(lake, 2)
    backup = Backup(lake)
    publish(lake, 2)
    heard = Heard()
    consumer = start(
        lake, running, heard, commit_interval=timedelta(seconds=0.02), session_timeout=timedelta(seconds=60)
    )
    heard.wait_for(*range(8))
    until(lambda: is_settled(lake))
    root = Path(lake.tables.root)
    newest = {root / name: root.with_name(f"newest-{name}") for name in ("batches", "topics")}
    for place, copy in newest.items():
        shutil.copytree(place, copy)
    backup.restore(groups=False)
    until(lambda: "restored from a backup" in str(consumer.last_error))
    lake.batch_id = 3
    for place, copy in newest.items():
        shutil.rmtree(place)
        copy.rename(place)
    lake._logs.clear()
    publish(lake, 1)
    heard.wait_for(8, 9)
    assert heard_in_all([heard]) == list(range(10))


@pytest.mark.slow
@pytest.mark.parametrize("sql", [True, False])
def test_two_batches_of_unknown_application_with_one_id(
    lake: Published, running: list[PushConsumer], tmp_path: Path, sql: bool
) -> None:
    """`rebuild` has concluded them: each was an application's first one. Also read at once, by another group."""
    engine: Engine = create_engine(f"sqlite:///{tmp_path / 'books'}", connect_args={"timeout": 30})
    options: dict[str, Any] = {"positions": SqlPositions(engine)} if sql else {}
    lake.application = None  # type: ignore[assignment]
    heard, late = Heard(), Heard()
    start(lake, running, heard, **options)
    for _ in range(3):
        lake.batch_id = -1
        publish(lake, 1)
        heard.wait_for(lake.offset - 1)
    other = PushConsumer("late", lake.tables.root, late, **FAST).subscribe("pay")
    running.append(other.start())
    late.wait_for(*range(6))
    assert other.last_error is None
    assert (heard_in_all([heard]), heard_in_all([late])) == (list(range(6)), list(range(6)))


@pytest.mark.slow
def test_the_browser_goes_on_after_a_restore(lake: Published) -> None:
    publish(lake, 1)
    backup, browser = Backup(lake), Browser(lake.tables, "pay")
    publish(lake, 2)
    found = [message.half_queue_offset for message in browser.read()]
    backup.restore(groups=True)
    publish(lake, 2)
    found += [message.half_queue_offset for message in browser.read()]
    assert found == list(range(10))


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 3)),
        st.tuples(st.just("rebuild"), st.just(0)),
        st.tuples(st.just("backup"), st.just(0)),
        st.tuples(st.just("restore"), st.just(0)),
        st.tuples(st.just("interrupted"), st.just(0)),
        st.tuples(st.just("consume"), st.integers(1, 4)),
        st.tuples(st.just("start"), st.just(0)),
    ),
    max_size=30,
)


@given(EVENTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_batch_is_consumed_once_whatever_is_restored(lake: Published, events: list[tuple[str, int]]) -> None:
    """Of those that are there; consumed run by run, by a process that goes on or starts anew."""
    there: list[ListedBatch] = []
    kept: list[ListedBatch] = []
    application, batch_id, time, saved = "a", -1, START, ("a", -1)
    log, position, consumed = BatchLog(lake.tables), Position(), list[BatchKey]()

    def consume(most: int) -> None:
        nonlocal position
        first = log.listed.first_unconsumed(position)
        run = [batch.key for batch in log.batches[first : first + most]]
        consumed.extend(key for key in run if not position.has_batch(key) and key.batch_id >= 0)
        if run:
            position = position.after_batches(last_of(run).values(), run[-1].batch_time)

    for event, count in [*events, ("start", 0)]:
        if event == "publish":
            for _ in range(count):
                batch_id, time = batch_id + 1, time + 10
                there.append(ListedBatch(BatchKey(application, batch_id, time), time + 1, None))
        elif event == "rebuild":
            application, batch_id = application + "'", -1
        elif event == "interrupted":  # an application's first batch, of which nobody knows the application
            time += 10
            there.append(ListedBatch(BatchKey("", 0, time), time + 1, None))
        elif event == "backup":
            kept, saved = list(there), (application, batch_id)
        elif event == "restore":
            there, (application, batch_id) = list(kept), saved
        elif event == "consume":
            consume(count)
        elif event == "start":
            log = BatchLog(lake.tables)
        log._list_again(there)
    while log.listed.first_unconsumed(position) < len(log):
        consume(2)
    assert len(consumed) == len(set(consumed))
    assert {batch.key for batch in there} <= set(consumed)
