"""`checkback tx resume --all`: which messages it takes, and that each is resumed once. Without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkback.cli import main
from checkback.operate.permissions import RefusedError
from checkback.operate.resume_all import resumable, resume_some
from checkback.operate.transaction import Asked, Place
from operate.fixtures import ALICE, BOB, QUEUE, T0, Lakehouse, Watched

if TYPE_CHECKING:
    from checkback.errors import CheckbackError
    from checkback.operate.action import Outcome
    from checkback.operate.operator_tables import OperatorTables

pytestmark = pytest.mark.slow

SIGNED = ("--actor", "bob", "--reason", "the endpoint is back")


@pytest.fixture(scope="module")
def evening(tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Discarded messages of two groups, one of them resumed; a cancelled, a pending, a committed one. For copies."""
    made = Lakehouse(tmp_path_factory.mktemp("evening") / "data")
    for offset, group in ((0, "orders"), (1, "orders"), (2, "pay"), (3, "orders")):
        made.decide(made.half(offset, f"tx-{offset}", group), "DISCARD", "checkback")
    made.decide(made.half(4, "tx-4"), "CANCEL", "operator")
    made.half(5, "tx-5")
    made.decide(made.half(6, "tx-6"), "COMMIT")
    made.resume(Asked("tx-1"), ALICE)
    return made


@pytest.fixture
def lake(evening: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lakehouse:
    """In ./data."""
    monkeypatch.chdir(tmp_path)
    return evening.copied(tmp_path / "data")


def offsets(made: Lakehouse) -> list[str]:
    """The origins of the resumed messages, in the order in which they were resumed."""
    rows = [row for row in made.rows("half") if row["queue_id"] == QUEUE]
    return [dict(row["properties"])["CHECKBACK_RESUMED_FROM"] for row in sorted(rows, key=lambda r: r["queue_offset"])]


def test_all_that_were_discarded_are_resumed_once(lake: Lakehouse, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert main(["tx", "resume", "--all", *SIGNED, "--yes"]) == 0
        assert offsets(lake) == ["0/1", "0/0", "0/2", "0/3"]
    out, err = capfd.readouterr()
    assert "Resumed 3 messages." in out
    assert "No discarded message is left to be resumed." in out
    assert err == ""
    recorded = {(row["queue_offset"], row["actor"]) for row in lake.rows("operations")}
    assert recorded == {(1, "alice"), (0, "bob"), (2, "bob"), (3, "bob")}


def test_one_that_was_discarded_again_is_resumed_again(lake: Lakehouse) -> None:
    lake.decide(Place(QUEUE, 0), "DISCARD", "checkback")
    assert main(["tx", "resume", "--all", *SIGNED, "--yes"]) == 0
    assert offsets(lake) == ["0/1", "0/0", "0/2", "0/3", f"{QUEUE}/0"]


def test_a_group_and_a_time(lake: Lakehouse, capfd: pytest.CaptureFixture[str]) -> None:
    assert [one.key.place.queue_offset for one in resumable(lake.store(), QUEUE, "orders")] == [0, 3]
    since = resumable(lake.store(), QUEUE)[-1].discarded_at
    assert [one.key.place.queue_offset for one in resumable(lake.store(), QUEUE, since=since)] == [3]
    before = lake.versions()
    assert main(["tx", "resume", "--all", "--group", "orders", "--since", T0.isoformat(), *SIGNED]) == 0
    out = capfd.readouterr().out
    assert "RESUME: 2 messages, each becomes a new half message" in out
    assert "Nothing was done. --yes does it." in out
    assert lake.versions() == before


@pytest.mark.parametrize("column", ["discarded_at", "reason", "real_topic", "transaction_id", "queue_id"])
def test_a_row_of_another_writer_that_lacks_something_is_left_out(lake: Lakehouse, column: str) -> None:
    lake._append("discarded", lake.rows("discarded")[0] | {column: None})
    assert main(["tx", "resume", "--all", "--since", T0.isoformat(), *SIGNED, "--yes"]) == 0
    assert offsets(lake) == ["0/1", "0/0", "0/2", "0/3"]


def test_json_shows_the_groups_and_then_each_message(lake: Lakehouse, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tx", "resume", "--all", "-o", "json", *SIGNED]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert (shown["done"], shown["messages"]) == (False, 3)
    assert [(group["producer_group"], group["messages"]) for group in shown["groups"]] == [("orders", 2), ("pay", 1)]
    assert main(["tx", "resume", "--all", "-o", "json", "--yes", *SIGNED]) == 0
    done = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(one["transaction"]["transaction_id"], one["new_queue_offset"]) for one in done] == [
        ("tx-0", 1),
        ("tx-2", 2),
        ("tx-3", 3),
    ]


def test_what_cannot_be_resumed_holds_up_no_other(lake: Lakehouse, capfd: pytest.CaptureFixture[str]) -> None:
    """One whose half message is gone."""
    place = lake.half(7, "tx-7")
    lake.decide(place, "DISCARD", "checkback")
    rows = [row for row in lake.rows("half") if row["queue_offset"] != 0 or row["queue_id"] == QUEUE]
    lake.remove("half")
    for row in rows:
        lake._append("half", row)
    assert main(["tx", "resume", "--all", *SIGNED, "--yes"]) == 1
    assert offsets(lake) == ["0/1", "0/2", "0/3", "0/7"]
    err = capfd.readouterr().err
    assert "1 message not resumed, the first: its half message is gone" in err


def test_a_row_that_the_ledger_lacks_is_added(lake: Lakehouse) -> None:
    """As after a crash between the half message and the ledger."""
    lake.remove("operations")
    assert [one.key.place.queue_offset for one in resumable(lake.store(), QUEUE)] == [0, 1, 2, 3]
    assert main(["tx", "resume", "--all", *SIGNED, "--yes"]) == 0
    assert offsets(lake) == ["0/1", "0/0", "0/2", "0/3"]
    assert {row["queue_offset"]: row["actor"] for row in lake.rows("operations")}[1] == "alice"


def test_the_message_is_its_own_whoever_had_its_offset_before(lake: Lakehouse) -> None:
    """`half` was restored from a backup, and its offsets assigned again: to 1/0 and 1/1 twice, the first resumed."""
    again = [lake.half(offset, f"old-{offset}", queue=1) for offset in (0, 1)]
    for place in again:
        lake.decide(place, "DISCARD", "checkback")
    lake.resume(Asked("old-0"), ALICE)
    kept = [row for row in lake.rows("half") if row["queue_id"] != 1]
    before = [row for row in lake.rows("discarded") if row["queue_id"] == 1]
    for name in ("half", "decisions", "discarded"):
        lake.remove(name)
    lake._append("discarded", before[0])
    for row in kept:
        lake._append("half", row)
    for offset, place in enumerate(again):
        lake.decide(lake.half(place.queue_offset, f"new-{offset}", queue=1), "DISCARD", "checkback")
    lake._append("discarded", before[1])
    assert {one.key.transaction_id for one in resumable(lake.store(), QUEUE)} == {"old-1", "new-0", "new-1"}
    assert main(["tx", "resume", "--all", *SIGNED, "--yes"]) == 1  # the half message of old-1 is gone
    bodies = {row["transaction_id"]: row["body"] for row in lake.rows("half") if row["queue_id"] == QUEUE}
    assert bodies.items() >= {"new-0": b"body of new-0", "new-1": b"body of new-1"}.items()
    assert {one.key.transaction_id for one in resumable(lake.store(), QUEUE)} == {"old-1"}  # the ledger has the others


def resume_all(lake: Lakehouse, store: OperatorTables) -> list[Outcome | CheckbackError]:
    """As the command with --yes, by Bob."""
    return resume_some(store, resumable(lake.store(), QUEUE), QUEUE, BOB, lake.clock)


def proven(lake: Lakehouse) -> None:
    """Each is resumed once, at an offset of its own, and recorded once."""
    places = [row["queue_offset"] for row in lake.rows("half") if row["queue_id"] == QUEUE]
    assert sorted(places) == [0, 1, 2, 3]
    assert sorted(offsets(lake)) == ["0/0", "0/1", "0/2", "0/3"]
    recorded = {(row["queue_offset"], row["new_queue_offset"]) for row in lake.rows("operations")}
    assert recorded == {(int(origin[2:]), number) for number, origin in enumerate(offsets(lake))}
    assert len(lake.rows("operations")) == 4


@pytest.mark.parametrize("when", range(20))
def test_another_operator_comes_meanwhile(lake: Lakehouse, when: int) -> None:
    """Whenever he comes, with one of them."""
    late = []

    class Meanwhile(Watched):
        turns = when

        def turn(self, name: str, appends: bool) -> None:  # noqa: ARG002 - whatever it is
            if self.turns == 0:
                try:
                    late.append(lake.resume(Asked("tx-2"), ALICE).repeated)
                except RefusedError:
                    late.append(True)
            self.turns -= 1

    outcomes = resume_all(lake, Meanwhile(lake.store()))
    proven(lake)
    refused = [one for one in outcomes if isinstance(one, RefusedError)]
    assert len(refused) == late.count(False)


@pytest.mark.parametrize("before", ["half", "operations"])
def test_what_was_interrupted_goes_on(lake: Lakehouse, before: str) -> None:
    """A kill before a commit."""

    class Crashing(Watched):
        def turn(self, name: str, appends: bool) -> None:
            if appends and name == before:
                raise InterruptedError

    with pytest.raises(InterruptedError):
        resume_all(lake, Crashing(lake.store()))
    assert len(lake.rows("operations")) == 1
    resume_all(lake, lake.store())
    proven(lake)
    assert not resumable(lake.store(), QUEUE)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "TX, --all: say which discarded messages; give one of the two"),
        (("tx", "--all"), "give one of the two"),
        (("tx", "--since", "1h ago"), "--since: is for all discarded messages"),
        (("--all", "--queue-id", "1", "--queue-offset", "2"), "are of one message; give them with TX, without --all"),
        (("--all", "--since", "then"), "--since"),
    ],
)
def test_wrong_usage_is_told(arguments: tuple[str, ...], told: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tx", "resume", *arguments, *SIGNED]) == 2
    err = capfd.readouterr().err
    assert told in err
    assert err.count("\n") == 1
