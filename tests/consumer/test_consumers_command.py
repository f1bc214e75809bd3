"""`checkback group list` and `reconsume` as typed, on groups of real consumers."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from checkback.cli import main
from checkback.consumer.batch_listing import BatchListing, ListedBatch
from checkback.consumer.dead_letter_requests import Request, act, look, outcome
from checkback.consumer.group.group_state import GroupState, MessageQueue, QueueState
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.message import ConsumeResult
from checkback.consumer.position import BatchKey, MessageKey, Position
from checkback.consumer.push_consumer import PushConsumer
from checkback.consumer.reconsume import AGAIN, GONE, PENDING, RESUMED, Buried, judge, keys_of, with_retries
from checkback.consumer.retry_or_dead_letter import Retry
from checkback.storage.tables import Tables
from consumer.published import START, Published

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkback.consumer.message import MessageExt

SET = ("--set", "storage.root=data")
SIGNED = ("--actor", "alice", "--reason", "the database is back")


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Published:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    lake = Published(Tables(root=str(tmp_path / "data"), by_files=True, sync=False))
    lake.log("batches")  # `reconcile` makes it when it starts
    return lake


def printed(capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What a command prints: on stdout, or its line on stderr if it fails."""
    assert main([*arguments, *SET]) == code
    out, err = capfd.readouterr()
    assert err.count("\n") == (1 if code else 0)
    return str(err if code else out)


def listed(capfd: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(printed(capfd, *arguments, "-o", "json"))


def rows(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(f"data/{name}").to_pyarrow_table().to_pylist()
    return found


class Listener:
    """Consumes what ``works`` says; tells when it has consumed or given up ``wanted`` messages."""

    def __init__(self, works: Callable[[MessageExt], bool]) -> None:
        self.works = works
        self.got: list[int] = []
        self.called = threading.Condition()

    def __call__(self, message: MessageExt) -> ConsumeResult:
        works = self.works(message)
        with self.called:
            self.got += [message.half_queue_offset] if works else []
            self.called.notify_all()
        return ConsumeResult.SUCCESS if works else ConsumeResult.RECONSUME_LATER

    def wait(self, wanted: set[int]) -> None:
        with self.called:
            assert self.called.wait_for(lambda: wanted <= set(self.got), 30)


def wait_until(holds: Callable[[], bool]) -> None:
    """Look until it holds: what other threads write is seen in the tables only."""
    pause = threading.Event()
    for _ in range(600):
        if holds():
            return
        pause.wait(0.05)
    raise AssertionError("it never did")


def consumer(listener: Listener, **more: Any) -> PushConsumer:
    options: dict[str, Any] = {
        "threads": 2,
        "max_reconsume_times": 0,
        "commit_interval": timedelta(seconds=0.05),
        "session_timeout": timedelta(seconds=0.6),
    } | more
    return PushConsumer("credits", "data", listener, **options).subscribe("payments")


def buried(number: int) -> Callable[[], bool]:
    return lambda: Path("data/dead_letters/_delta_log").exists() and len(rows("dead_letters")) == number


@pytest.fixture
def dead(lake: Published) -> Published:
    """Six messages in two queues; of the group credits 1, 3 and 5 are dead letters, all others consumed."""
    lake.publish({"payments": [lake.messages(6, (0, 1))]})
    listener = Listener(lambda message: message.half_queue_offset % 2 == 0)
    with consumer(listener):
        listener.wait({0, 2, 4})
        wait_until(buried(3))
    return lake


@pytest.mark.slow
def test_what_is_shown_of_a_group(dead: Published, capfd: pytest.CaptureFixture[str]) -> None:
    dead.publish({"payments": [dead.messages(3, (0,))]})
    found = listed(capfd, "group", "describe", "credits")
    assert (found["group"], found["members"], found["lag_messages"]) == ("credits", [], 3)
    assert (found["dead_letters"], found["retries"], found["next_retry_at"]) == (3, 0, None)
    (topic,) = found["topics"]
    assert (topic["topic"], topic["owned"], topic["lag_messages"]) == ("payments", 0, 3)
    assert {queue["queue_id"]: queue["lag_messages"] for queue in topic["queues"] if queue["lag_messages"]} == {0: 3}
    assert topic["queues"][0]["position"]["consumed"]["a"] == 0
    lines = printed(capfd, "group", "list").splitlines()
    assert lines[0].startswith("credits: members 0, last written ")
    assert lines[1].split()[:3] == ["topic", "queues", "lag"]
    assert lines[2].split()[:3] == ["payments", "0/64", "3"]
    assert len(lines) == 3
    with_queues = printed(capfd, "group", "describe", "credits").splitlines()
    given_up = [line.split() for line in with_queues[4:7]]
    assert [(topic, place) for topic, _, place, *_ in given_up] == [("payments", f"0/{offset}") for offset in (1, 3, 5)]
    assert with_queues[7].endswith("checkback group reconsume credits --all --reason TEXT (shows it; --yes does it)")
    assert with_queues[9].split()[:2] == ["payments", "0"]
    assert with_queues[10:] == ["nothing to consume in 63 queues, 63 of them without an owner; -o json shows all"]
    assert [columns[4] for columns in given_up] == [f"key-{n}" for n in (1, 3, 5)]
    letters = found["first_dead_letters"]
    assert [one["keys"] for one in letters] == [f"key-{n}" for n in (1, 3, 5)]
    assert [(one["half_queue_offset"], one["error"]) for one in letters] == [(n, "RECONSUME_LATER") for n in (1, 3, 5)]
    assert "first_dead_letters" not in listed(capfd, "group", "list")


@pytest.mark.slow
def test_rows_of_another_writer_that_name_no_message_are_left_out(
    dead: Published, capfd: pytest.CaptureFixture[str]
) -> None:
    table = DeltaTable("data/dead_letters").to_pyarrow_table()
    for name in ("topic", "half_queue_id", "half_queue_offset", "transaction_id", "queue_id", "batch_id"):
        at = table.schema.get_field_index(name)
        write_deltalake(
            "data/dead_letters", table.set_column(at, name, pa.nulls(len(table), table[at].type)), mode="append"
        )
    letters = listed(capfd, "group", "describe", "credits")["first_dead_letters"]
    assert {one["half_queue_offset"] for one in letters} == {1, 3, 5}
    assert printed(capfd, "group", "reconsume", "credits", "--all", *SIGNED)


def owed(found: dict[str, Any]) -> dict[str, Any]:
    """The only queue with a retry."""
    (queue,) = (queue for topic in found["topics"] for queue in topic["queues"] if queue["retries"])
    return dict(queue)


@pytest.mark.slow
def test_the_message_that_holds_up_a_queue_is_shown(lake: Published, capfd: pytest.CaptureFixture[str]) -> None:
    """In order: on screen and as JSON, of one group and of all, while its members run and when none does."""
    lake.publish({"payments": [lake.messages(4, (2,))]})

    def held() -> dict[str, Any] | None:
        queue = listed(capfd, "group", "describe", "credits")["topics"][0]["queues"][2]
        return dict(queue["held"]) if queue["held"] else None

    with consumer(Listener(lambda message: message.half_queue_offset != 1), orderly=True, max_reconsume_times=None):
        wait_until(lambda: held() is not None)
        lines = printed(capfd, "group", "list").splitlines()
    found = held()
    assert found is not None
    assert " ".join(lines[3].split()) == "topic queue blocked by since failed tries next try last error"
    assert lines[4].split()[:3] == ["payments", "2", "0/1"]
    assert lines[4].split()[-1] == "RECONSUME_LATER"
    assert (found["half_queue_id"], found["half_queue_offset"], found["last_error"]) == (0, 1, "RECONSUME_LATER")
    assert found["failed_tries"] >= 1
    assert found["since"] < found["next_try_at"]
    assert "blocked by" in printed(capfd, "group", "describe", "credits")
    assert [queue["held"] for queue in listed(capfd, "group", "list")["topics"][0]["queues"] if queue["held"]] == [
        found
    ]


@pytest.mark.slow
def test_members_and_their_last_error_are_shown(lake: Published, capfd: pytest.CaptureFixture[str]) -> None:
    """While they are at work; the members' names and errors cannot drive the terminal."""
    lake.publish({"payments": [lake.messages(1)]})

    def told() -> bool:
        members = listed(capfd, "group", "list")["members"]
        return [each["last_error"] for each in members] == ["RECONSUME_LATER"]

    with consumer(Listener(lambda _: False), member="m\x1b[2J", max_reconsume_times=3):
        wait_until(told)
        found = listed(capfd, "group", "list")
        text = printed(capfd, "group", "describe", "credits")
    [shown] = found["members"]
    assert shown["member"].startswith("m\x1b[2J-")
    assert (shown["queues"], shown["topics"]) == (64, ["payments"])
    assert found["retries"] == 1
    assert found["next_retry_at"] is not None
    assert "\x1b" not in text
    shown_of_topic = [line.split() for line in text.splitlines() if line.startswith("payments")]
    assert [row[1] for row in shown_of_topic] == ["64/64", str(found["topics"][0]["queues"].index(owed(found)))]
    assert text.endswith("nothing to consume in 63 queues; -o json shows all\n")


def test_no_groups_and_unknown_groups(lake: Published, capfd: pytest.CaptureFixture[str]) -> None:
    assert printed(capfd, "group", "list") == "There are no consumer groups.\n"
    assert printed(capfd, "group", "list", "-o", "json") == ""
    assert "credits: there is no such consumer group" in printed(capfd, "group", "describe", "credits", code=2)
    assert "there is no such consumer group" in printed(
        capfd, "group", "reconsume", "credits", "--all", *SIGNED, code=2
    )
    assert os.listdir("data") == ["batches"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (SIGNED, "--transaction-id, --all: say which dead letters"),
        (("--all", "--transaction-id", "tx", *SIGNED), "give one of the two"),
        (("--all", "--reason", "r"), "Missing option '--actor'"),
        (("--all", "--actor", "a: b", "--reason", "r"), '--actor: has a ": "'),
        (("--transaction-id", "tx", *SIGNED), "--transaction-id tx: the group has no such dead letter"),
    ],
)
def test_wrong_usage_is_told_in_one_line(
    lake: Published, arguments: tuple[str, ...], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    GroupTable(lake.tables, "credits")
    assert told in printed(capfd, "group", "reconsume", "credits", *arguments, code=2)


@pytest.mark.slow
def test_dead_letters_are_shown_resumed_consumed_and_not_resumed_twice(
    dead: Published, capfd: pytest.CaptureFixture[str]
) -> None:
    """While a member is at work: it adopts the retries. Each is in the ledger once, with actor, reason and group."""
    version = DeltaTable("data/consumer_groups/credits").version()
    one = ("group", "reconsume", "credits", "--transaction-id", "tx-3", *SIGNED)
    shown = printed(capfd, *one).splitlines()
    assert shown[1].split()[:4] == ["payments", "1", "0/3", "tx-3"]
    assert shown[-1] == "Nothing was done. --yes does it."
    assert listed(capfd, *one)["done"] is False
    assert DeltaTable("data/consumer_groups/credits").version() == version
    assert not Path("data/operations").exists()
    listener = Listener(lambda _: True)
    with consumer(listener):
        done = listed(capfd, *one, "--yes")
        assert (done["done"], [each["transaction_id"] for each in done["messages"]]) == (True, ["tx-3"])
        listener.wait({3})
        wait_until(lambda: listed(capfd, "group", "list")["retries"] == 0)
        assert "is resumed already" in printed(capfd, *one, "--yes", code=1)
        told = printed(capfd, "group", "reconsume", "credits", "--all", *SIGNED, "--yes").splitlines()
        assert [line.split()[3] for line in told[1:4]] == ["tx-1", "tx-3", "tx-5"]
        assert told[-1] == "To be consumed again by the group credits: 2 messages."
        listener.wait({1, 3, 5})
        wait_until(lambda: listed(capfd, "group", "list")["retries"] == 0)
    assert sorted(listener.got) == [1, 3, 5]
    assert {(row["action"], row["actor"], row["reason"], row["real_topic"]) for row in rows("operations")} == {
        ("RESUME_DEAD_LETTER", "alice", "consumer group credits: the database is back", "payments")
    }
    assert sorted((row["transaction_id"], row["queue_offset"]) for row in rows("operations")) == [
        ("tx-1", 1),
        ("tx-3", 3),
        ("tx-5", 5),
    ]
    assert "has no dead letters to be consumed again" in printed(
        capfd, "group", "reconsume", "credits", "--all", *SIGNED
    )


@pytest.mark.slow
def test_what_dies_again_can_be_resumed_again(dead: Published, capfd: pytest.CaptureFixture[str]) -> None:
    for times in (1, 2):
        printed(capfd, "group", "reconsume", "credits", "--transaction-id", "tx-3", *SIGNED, "--yes")
        with consumer(Listener(lambda _: False)):
            wait_until(buried(3 + times))
        assert len(rows("operations")) == times


@pytest.mark.slow
def test_what_a_reset_brings_again_is_not_resumed(dead: Published, capfd: pytest.CaptureFixture[str]) -> None:
    """It would be consumed twice; one that is given up once more can be resumed."""
    dead.publish({"payments": [dead.messages(2, (0, 1))]})
    listener = Listener(lambda message: message.half_queue_offset not in (6, 7))
    with consumer(listener):
        wait_until(buried(5))
    reset = ("group", "reset", "credits", "--to", "1", *SIGNED)
    assert "their dead letters (2) count as resumed" in printed(capfd, *reset)
    printed(capfd, *reset, "--yes")
    assert {row["queue_offset"] for row in rows("operations") if row["action"] == "RESUME_DEAD_LETTER"} == {6, 7}
    assert GroupTable(dead.tables, "credits").state.resumed == {}
    listener = Listener(lambda message: message.half_queue_offset != 7)
    with consumer(listener):
        listener.wait({6})
        wait_until(buried(6))
    printed(capfd, "group", "reconsume", "credits", "--all", *SIGNED, "--yes")
    again = Listener(lambda _: True)
    with consumer(again):
        again.wait({1, 3, 5, 7})
    assert (listener.got, sorted(again.got)) == ([6], [1, 3, 5, 7])


@pytest.mark.slow
def test_a_ledger_that_a_crash_cut_short_is_completed(dead: Published, capfd: pytest.CaptureFixture[str]) -> None:
    """The retries are pending, the ledger has nothing of it: the same command writes the row and no second retry."""
    one = ("group", "reconsume", "credits", "--topic", "payments", "--all", *SIGNED, "--yes")
    printed(capfd, *one)
    before = GroupTable(dead.tables, "credits").state
    assert sum(len(each.retries) for each in before.queues.values()) == 3
    for file in Path("data/operations").rglob("*"):
        if file.is_file():
            file.unlink()
    printed(capfd, *one)
    assert len(rows("operations")) == 3
    assert GroupTable(dead.tables, "credits").state == before
    assert "no dead letters to be consumed again" in printed(capfd, *one)
    assert len(rows("operations")) == 3


@pytest.mark.slow
def test_of_two_operators_one_resumes_a_message(dead: Published) -> None:
    """Both have looked before either acted: there is one retry and one row, of the first."""
    requests = [Request.of("credits", None, (), True, actor, "r") for actor in ("alice", "bob")]
    seen = [look(dead.tables, request) for request in requests]
    assert [[one.fate for one in judged] for judged in seen] == [[AGAIN] * 3] * 2
    done = [
        act(dead.tables, request, judged, START + number)
        for number, (request, judged) in enumerate(zip(requests, seen, strict=True))
    ]
    assert [len(each) for each in done] == [3, 0]
    assert act(dead.tables, requests[0], seen[0], START + 2) == []
    assert {row["actor"] for row in rows("operations")} == {"alice"}
    assert len(rows("operations")) == 3
    state = GroupTable(dead.tables, "credits").state
    assert {(each.reason, each.due_at) for queue in state.queues.values() for each in queue.retries} == {
        ("resumed by alice", START)
    }


@pytest.mark.slow
def test_who_comes_after_it_was_consumed_does_not_resume_it(dead: Published) -> None:
    request = Request.of("credits", None, (), True, "bob", "r")
    seen = look(dead.tables, request)
    act(dead.tables, Request.of("credits", None, (), True, "alice", "r"), seen, START)
    listener = Listener(lambda _: True)
    with consumer(listener):
        listener.wait({1, 3, 5})
    assert act(dead.tables, request, seen, START + 1) == []
    assert not any(queue.retries for queue in GroupTable(dead.tables, "credits").state.queues.values())


_BATCHES = [
    ListedBatch(BatchKey("a", 0, START), START, None),
    ListedBatch(BatchKey("b", 0, START + 5), START, None),
]


@pytest.mark.parametrize(("batch_id", "time", "batch"), [(0, START, 0), (0, START + 5, 1), (7, START, None)])
def test_the_batch_of_a_dead_letter(batch_id: int, time: int, batch: int | None) -> None:
    one = Buried(MessageQueue("payments", 0), 0, 9, "tx", "orders", time, batch_id, 16, "x", START)
    expected = None if batch is None else MessageKey(_BATCHES[batch].key, 0, 9)
    listed = BatchListing()
    listed.extend(_BATCHES)
    assert keys_of([one], listed) == [expected]


@given(st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)))
def test_with_retries_adds_what_is_missing_and_keeps_the_rest(pending: set[int], chosen: set[int]) -> None:
    queue = MessageQueue("payments", 0)
    keys = [MessageKey(BatchKey("a", 0, START), 0, offset) for offset in range(6)]
    old = tuple(Retry(keys[number], 3, START, "x") for number in sorted(pending))
    state = GroupState({}, {queue: QueueState(Position(), old)})
    buried_ = {
        number: Buried(queue, 0, number, "tx", "orders", START, 0, 16, "x", START + 1) for number in sorted(chosen)
    }
    judged = [judge(each, keys[number], state, set(), "resumed by a") for number, each in buried_.items()]
    assert [one.fate for one in judged] == [PENDING if number in pending else AGAIN for number in buried_]
    after = with_retries(state, judged, START + 2, "resumed by a")
    assert after.queues[queue].retries == (
        *old,
        *(Retry(keys[number], 1, START + 2, "resumed by a") for number in sorted(chosen - pending)),
    )
    assert after.resumed == {death: "resumed by a" for one in judged for death in one.buried.deaths}
    assert with_retries(after, judged, START + 3, "resumed by a") is after


def test_the_ledger_and_the_group_decide() -> None:
    queue = MessageQueue("payments", 0)
    one = Buried(queue, 0, 1, "tx", "orders", START, 0, 16, "x", START + 10)
    key = MessageKey(BatchKey("a", 0, START), 0, 1)
    idle = GroupState({}, {queue: QueueState(Position())})
    [death] = one.deaths
    assert judge(one, key, idle, {death}, "resumed by a").fate == RESUMED
    assert judge(one, key, idle, {death._replace(dead_at=START + 11)}, "resumed by a").fate == AGAIN
    assert judge(one, None, idle, set(), "resumed by a").fate == GONE
    assert judge(one, key, GroupState(), set(), "resumed by a").fate == GONE
    kept = replace(idle, resumed={death: "resumed by a"})
    assert judge(one, key, kept, set(), "resumed by b").fate == RESUMED
    assert judge(one, key, kept, set(), "resumed by a").fate == AGAIN
    assert with_retries(kept, [judge(one, key, kept, set(), "resumed by a")], START, "resumed by a") is kept


@pytest.mark.slow
def test_who_is_late_is_told_that_nothing_was_done(dead: Published) -> None:
    request = Request.of("credits", None, (), True, "bob", "r")
    seen = look(dead.tables, request)
    act(dead.tables, Request.of("credits", None, (), True, "alice", "r"), seen, START)
    told = outcome(request, act(dead.tables, request, seen, START), len(seen))
    assert told == "Nothing was done: somebody else has resumed them meanwhile."
