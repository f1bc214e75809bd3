"""`checkback group` as typed, on groups of real consumers: positions are set or dropped, once, and none is lost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine

from checkback.cli import main
from checkback.consumer import PushConsumer, SqlPositions
from checkback.consumer.group.group_state import GroupState, MessageQueue, QueueState
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.group.membership import Membership
from checkback.consumer.group_positions import RESET, Request, act, look
from checkback.consumer.position import BatchKey, MessageKey, Position
from checkback.consumer.retry_or_dead_letter import DeadLetter, Retry
from checkback.operate.operations import OperatorSignature
from checkback.operate.permissions import RefusedError
from checkback.storage.timestamps import iso
from consumer.heard import Heard
from consumer.published import START
from consumer.test_push_consumer import FAST

if TYPE_CHECKING:
    from pathlib import Path

    from consumer.published import Published

SIGNED = ("--actor", "alice", "--reason", "why")


def command(lake: Published, capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What it prints: on stdout, or its line on stderr if it fails."""
    assert main(["group", *arguments, *SIGNED, "--set", f"storage.root={lake.tables.root}"]) == code
    out, err = capfd.readouterr()
    assert err.count("\n") == (1 if code else 0)
    return str(err if code else out)


def operations(lake: Published) -> list[tuple[str, str, str, str, int | None]]:
    rows = DeltaTable(lake.tables.location("operations")).to_pyarrow_table().to_pylist()
    return [(*(row[name] for name in ("action", "actor", "reason", "real_topic")), row["queue_id"]) for row in rows]


def consumed(lake: Published, offsets: set[int], *topics: str, **options: Any) -> Heard:
    """What a member hears that runs until it has heard these messages."""
    heard = Heard()
    consumer = PushConsumer("g", lake.tables.root, heard, **FAST | options)
    for topic in topics or ("pay",):
        consumer.subscribe(topic)
    with consumer:
        heard.wait_for(*offsets)
    return heard


@pytest.fixture
def three(lake: Published) -> Published:
    """Three batches of two messages, consumed by g."""
    for _ in range(3):
        lake.publish({"pay": [lake.messages(2, (0, 1))]})
    consumed(lake, set(range(6)))
    return lake


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "again"), [("first", range(6)), ("1", range(2, 6)), (iso(START + 2500), range(4, 6)), ("last", range(0))]
)
def test_a_group_goes_on_where_it_is_set(
    three: Published, capfd: pytest.CaptureFixture[str], to: str, again: range
) -> None:
    """The preview says how many come again, and does nothing."""
    asked = ("reset", "g", "--to", to)
    shown = json.loads(command(three, capfd, *asked, "-o", "json"))
    count = {"lag_messages": 0, "again": len(again), "skipped": 0, "lag_messages_then": len(again)}
    assert shown["topics"] == [{"topic": "pay", **count, "retries": 0, "retries_dropped": 0}]
    assert not shown["done"]
    assert "Nothing was done. --yes does it." in command(three, capfd, *asked)
    assert not DeltaTable.is_deltatable(three.tables.location("operations"))
    assert json.loads(command(three, capfd, *asked, "-o", "json", "--yes"))["done"]
    three.publish({"pay": [three.messages(1)]})
    assert sorted(consumed(three, {*again, 6}).offsets) == [*again, 6]
    assert operations(three) == [(RESET, "alice", f"consumer group g: to {to}: why", "pay", None)]


@pytest.mark.slow
def test_messages_are_skipped_and_the_other_topic_stays(three: Published, capfd: pytest.CaptureFixture[str]) -> None:
    three.publish({"pay": [three.messages(3, (0, 1))], "old": [three.messages(2)]})
    consumed(three, {9, 10}, "old")
    shown = command(three, capfd, "reset", "g", "--to", "last", "--topic", "pay", "--yes")
    assert [line.split() for line in shown.splitlines() if line.startswith("pay")] == [["pay", *"303000"]]
    three.publish({"pay": [three.messages(1)], "old": [three.messages(1)]})
    assert sorted(consumed(three, {11, 12}, "pay", "old").offsets) == [11, 12]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("reset", "g", "--to", "yesterday"), "--to: 'yesterday' is not a time; write first, last, a batch id, or a"),
        (("reset", "g", "--to", "99"), "--to: there is no batch 99; see the table batches"),
        (("reset", "g", "--to", "first", "--topic", "no"), "no: the group has consumed no such topic; it has pay"),
        (("reset", "x", "--to", "first"), "x: there is no such consumer group; there are g"),
        (("remove-topic", "g", "no"), "no: the group has consumed no such topic; it has pay"),
        (("remove", "x"), "x: there is no such consumer group; there are g"),
    ],
)
@pytest.mark.slow
def test_wrong_usage_is_told_in_one_line(
    lake: Published, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    lake.publish({"pay": [lake.messages(1)]})
    GroupTable(lake.tables, "g").update(lambda _: GroupState({}, {MessageQueue("pay", 0): QueueState(Position())}))
    assert command(lake, capfd, *arguments, "--yes", code=2).startswith(f"checkback: {said}")


@pytest.mark.slow
def test_what_a_living_member_consumes_is_refused(three: Published, capfd: pytest.CaptureFixture[str]) -> None:
    """A topic that it does not subscribe to may go meanwhile."""
    three.publish({"old": [three.messages(1)]})
    consumed(three, {6}, "old")
    heard = Heard()
    with PushConsumer("g", three.tables.root, heard, **FAST).subscribe("pay") as consumer:
        for asked in (("reset", "g", "--to", "first"), ("remove-topic", "g", "pay"), ("remove", "g")):
            said = command(three, capfd, *asked, "--yes", code=1)
            assert f"is being consumed by {consumer.member}; stop the members, then run it again" in said
        assert not DeltaTable.is_deltatable(three.tables.location("operations"))
        assert "The topic old is removed" in command(three, capfd, "remove-topic", "g", "old", "--yes")
        three.publish({"pay": [three.messages(1)]})
        heard.wait_for(7)
    assert {queue.topic for queue in GroupTable(three.tables, "g").state.queues} == {"pay"}
    assert heard.offsets == [7]
    assert consumed(three, {6}, "old").offsets == [6]


def asked(to: int) -> Request:
    return Request(RESET, "g", None, OperatorSignature.of("alice", "why"), to, str(to))


def test_a_member_that_was_taken_for_dead_does_not_undo_it(three: Published) -> None:
    """It slept, wakes up, and finds that it is no member: it goes on at the new position, under another epoch."""
    clock = [0.0]
    sleeper = Membership(GroupTable(three.tables, "g"), "m", ["pay"], 10.0, lambda _: {}, lambda: clock[0])
    sleeper.join()
    mine = sleeper.owned()
    now = 10**13
    with pytest.raises(RefusedError):
        look(three.tables, asked(1), 0)
    plan = look(three.tables, asked(1), now)
    assert plan.silent == {"m": 1}
    sleeper.step(mine, (), True, None)
    with pytest.raises(RefusedError):  # it has beaten since
        act(three.tables, asked(1), plan, now)
    act(three.tables, asked(1), look(three.tables, asked(1), now), now)
    assert not sleeper.step(mine, (), True, None)
    sleeper.join()
    assert {queue.position.consumed["a"] for queue in sleeper.owned().values()} == {0}
    assert all(sleeper.owned()[queue].epoch > each.epoch for queue, each in mine.items())


KEYS = st.builds(MessageKey, st.builds(BatchKey, st.just("a"), st.integers(0, 9), st.just(0)), st.just(0), st.just(0))


@given(st.lists(KEYS, unique=True), st.lists(KEYS, unique=True), st.integers(0, 9))
def test_what_comes_again_is_no_retry_and_no_dead_letter(
    retries: list[MessageKey], dead: list[MessageKey], last: int
) -> None:
    """Else it would be consumed twice, or left out; what does not come again is kept."""
    position = Position({"a": last}, times={"a": 0})
    state = QueueState(
        Position({"a": 9}, times={"a": 0}),
        tuple(Retry(each, 1, 0, "x") for each in retries),
        tuple((number, DeadLetter(each, 16, 0, "x")) for number, each in enumerate(dead, 1)),
        len(dead),
    )
    found = state.reset(position, "id")
    assert [each.message for each in found.retries] == [each for each in retries if each.batch.batch_id <= last]
    assert [each[1].message for each in found.dead] == [each for each in dead if each.batch.batch_id <= last]
    assert (found.position, found.dead_letters, found.reset_id) == (position, len(dead), "id")


@pytest.mark.slow
def test_positions_in_a_database_are_set_too(
    lake: Published, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The members take the new position over, once: also if they die before the group's table says so."""
    positions = SqlPositions(create_engine(f"sqlite:///{tmp_path}/p.db"))
    lake.publish({"pay": [lake.messages(4, (0, 1))]})
    consumed(lake, set(range(4)), positions=positions)
    assert "delete the rows of consumer_group 'g' there" in command(lake, capfd, "remove", "g")
    command(lake, capfd, "reset", "g", "--to", "first", "--yes")
    queue = MessageQueue("pay", 0)
    table = GroupTable(lake.tables, "g")
    start = table.state.queues[queue]
    first = positions.load("g", queue, start, table.table_id)
    assert (first.state.position.consumed, first.state.reset_id) == ({}, start.reset_id)
    with positions.engine.begin() as connection:
        done = QueueState(Position({"a": 0}, None, lake.time, {"a": lake.time}), reset_id=first.state.reset_id)
        positions.keep(connection, "g", queue, first.version, done)
    assert positions.load("g", queue, start, table.table_id).state == done
    assert sorted(consumed(lake, {1, 3}, positions=positions).offsets) == [1, 3]
    assert {each.reset_id for each in GroupTable(lake.tables, "g").state.queues.values()} == {None}
    lake.publish({"pay": [lake.messages(2, (0, 1))]})
    assert sorted(consumed(lake, {4, 5}, positions=positions).offsets) == [4, 5]


@pytest.mark.slow
def test_a_position_that_was_set_begins_a_row_that_is_gone(lake: Published, tmp_path: Path) -> None:
    """Else it waits for the row's restoration."""
    positions = SqlPositions(create_engine(f"sqlite:///{tmp_path}/p.db"))
    positions.create_table()
    start = QueueState(Position({"a": 3}), kept_by="gone").reset(Position({"a": 1}), "id")
    assert positions.load("g", MessageQueue("pay", 0), start, "id").state.position == Position({"a": 1})


@pytest.mark.slow
def test_a_group_that_was_removed_begins_anew(three: Published, capfd: pytest.CaptureFixture[str]) -> None:
    command(three, capfd, "remove", "g", "--yes")
    root = ("--set", f"storage.root={three.tables.root}")
    assert main(["group", "list", *root]) == 0
    assert capfd.readouterr().out == "There are no consumer groups.\n"
    assert main(["group", "describe", "g", *root]) == 2
    assert "g: there is no such consumer group" in capfd.readouterr().err
    assert "there is no such consumer group" in command(three, capfd, "reset", "g", "--to", "first", code=2)
    assert operations(three) == [("REMOVE_GROUP", "alice", "consumer group g: why", "pay", None)]
    assert sorted(consumed(three, {4, 5}, start_from=2).offsets) == [4, 5]


@pytest.mark.slow
def test_a_start_that_does_not_matter_is_logged(three: Published, caplog: pytest.LogCaptureFixture) -> None:
    three.publish({"pay": [three.messages(1)]})
    assert consumed(three, {6}, start_from="first").offsets == [6]
    (said,) = [line for line in caplog.messages if "start_from" in line]
    assert said.endswith("it goes on where it is in pay: see `checkback group reset`")
    three.publish({"pay": [three.messages(1)]})
    caplog.clear()
    consumed(three, {7})
    assert not [line for line in caplog.messages if "start_from" in line]
