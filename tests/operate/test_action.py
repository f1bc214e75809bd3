"""Actions on real tables, without Spark: what is appended, what is refused, and a crash in between."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkback.errors import CheckbackError, SettingsError
from checkback.messages.half import FIRST_PLACE, RESUMED_BY, RESUMED_FROM
from checkback.operate.action import act
from checkback.operate.lookup import find
from checkback.operate.permissions import RefusedError
from checkback.operate.request import ending
from checkback.operate.resume_all import resumable, resume_some
from checkback.operate.transaction import Asked, Place
from checkback.storage.valid_texts import OVERTAKEN
from operate.fixtures import ALICE, BOB, QUEUE, T0, Lakehouse, Watched
from support.examples import fewer

if TYPE_CHECKING:
    from checkback.operate.action import Outcome
    from checkback.operate.operations import OperatorSignature
    from checkback.operate.operator_tables import FileStore

pytestmark = pytest.mark.slow


class CrashError(Exception):
    """As a kill between two commits."""


class Crashing(Watched):
    """A store whose process dies before it appends to the table ``before``."""

    def __init__(self, store: FileStore, before: str) -> None:
        super().__init__(store)
        self._before = before

    def turn(self, name: str, appends: bool) -> None:
        if appends and name == self._before:
            raise CrashError


def discarded(lake: Lakehouse, offset: int = 12, transaction_id: str = "tx") -> Place:
    """A discarded message."""
    place = lake.half(offset, transaction_id)
    lake.decide(place, "DISCARD", "checkback")
    return place


@pytest.mark.parametrize("state", ["COMMIT", "ROLLBACK"])
def test_resolve_appends_an_op_and_a_row_of_the_ledger(lake: Lakehouse, state: str) -> None:
    """The op is the half message's own; nothing else is written."""
    lake.half(12)
    before = lake.versions()
    outcome = lake.resolve(state)
    assert not outcome.repeated
    (op,) = lake.rows("op")
    (operation,) = lake.rows("operations")
    assert op == {
        "queue_id": 0,
        "queue_offset": 12,
        "transaction_id": "tx",
        "producer_group": "orders",
        "state": state,
        "source": "operator",
        "remark": "alice: ticket 7: the database says so",
        "born_timestamp": outcome.operation.at,
        "store_timestamp": outcome.operation.at,
    }
    assert operation == {
        "at": outcome.operation.at,
        "action": f"RESOLVE_{state}",
        "actor": "alice",
        "reason": "ticket 7: the database says so",
        "queue_id": 0,
        "queue_offset": 12,
        "transaction_id": "tx",
        "producer_group": "orders",
        "real_topic": "payments",
        "new_queue_id": None,
        "new_queue_offset": None,
        "checkback_version": operation["checkback_version"],
    }
    changed = {name for name, version in lake.versions().items() if version != before.get(name)}
    assert changed == {"op", "operations"}


def test_resume_appends_a_half_message_and_a_row_of_the_ledger(lake: Lakehouse) -> None:
    """The same message, born now, in the queue kept for that; its decision and its row in `discarded` stay."""
    discarded(lake)
    before = lake.versions()
    outcome = lake.resume()
    old, new = lake.rows("half")
    now = outcome.operation.at
    properties = {"k": "v", RESUMED_FROM: "0/12", RESUMED_BY: "alice: ticket 7: the database says so"}
    changed = {"queue_id": QUEUE, "queue_offset": 0, "born_timestamp": now, "store_timestamp": now}
    assert dict(new["properties"]) == properties
    assert new | {"properties": None} == old | {"properties": None} | changed
    (operation,) = lake.rows("operations")
    assert (operation["action"], operation["actor"], operation["at"]) == ("RESUME", "alice", now)
    assert (operation["queue_id"], operation["queue_offset"]) == (0, 12)
    assert (operation["new_queue_id"], operation["new_queue_offset"]) == (QUEUE, 0)
    assert {name for name, version in lake.versions().items() if version != before.get(name)} == {
        "half",
        "operations",
    }


def test_resolved_transaction_is_refused_whatever_the_state(lake: Lakehouse) -> None:
    """Nothing is written again; nor when `reconcile` has decided by the op."""
    place = lake.half(12)
    lake.resolve("COMMIT")
    before = lake.versions()
    for state in ("COMMIT", "ROLLBACK"):
        with pytest.raises(RefusedError, match="COMMIT by operator \\(alice\\) has landed"):
            lake.resolve(state, signed=BOB)
    assert lake.versions() == before
    lake.decide(place, "COMMIT", "operator")
    with pytest.raises(RefusedError, match=r"is decided: COMMIT since .* by operator"):
        lake.resolve("COMMIT")


def test_resuming_twice_is_refused_until_it_is_discarded_again(lake: Lakehouse) -> None:
    """Then the newest is resumed, with the checks of none of them."""
    first = discarded(lake)
    lake.resume()
    with pytest.raises(RefusedError, match=r"2000000000/0: was resumed from 0/12 at .* by alice, and is pending"):
        lake.resume()
    lake.decide(Place(QUEUE, 0), "DISCARD", "checkback")
    with pytest.raises(RefusedError, match="was discarded, and resumed as 2000000000/0"):
        lake.resume(Asked("tx", place=first))
    assert lake.resume(signed=BOB).operation.new_place == Place(QUEUE, 1)
    assert dict(lake.rows("half")[-1]["properties"]) == {
        "k": "v",
        RESUMED_FROM: "2000000000/0",
        RESUMED_BY: "bob: no: it does not",
        FIRST_PLACE: "0/12",
    }
    lake.decide(Place(QUEUE, 1), "DISCARD", "checkback")
    lake.resume()
    assert dict(lake.rows("half")[-1]["properties"])[FIRST_PLACE] == "0/12"
    assert [row["actor"] for row in lake.rows("operations")] == ["alice", "bob", "alice"]


@pytest.mark.parametrize("name", [RESUMED_FROM, FIRST_PLACE])
def test_producer_is_asked_about_its_own_place_whatever_it_has_forwarded(lake: Lakehouse, name: str) -> None:
    """A service that consumes a resumed message may send its properties on, with a message of its own."""
    place = lake.half(12, properties=[(name, "3/7"), (RESUMED_BY, "eve: why not"), ("k", "v")])
    lake.decide(place, "DISCARD", "checkback")
    lake.resume()
    lake.decide(Place(QUEUE, 0), "DISCARD", "checkback")
    lake.resume()
    first, again = (dict(row["properties"]) for row in lake.rows("half")[1:])
    assert (first.get(FIRST_PLACE), first[RESUMED_FROM]) == (None, "0/12")
    assert (again[FIRST_PLACE], again[RESUMED_FROM], again["k"]) == ("0/12", f"{QUEUE}/0", "v")


def test_resumed_message_may_be_resolved(lake: Lakehouse) -> None:
    """It is a transaction like any other."""
    discarded(lake)
    lake.resume()
    lake.resolve("COMMIT")
    (op,) = lake.rows("op")
    assert (op["queue_id"], op["queue_offset"]) == (QUEUE, 0)


@pytest.mark.parametrize("named", [False, True], ids=["by its id", "by its place"])
@pytest.mark.parametrize("action", ["resolve", "resume"])
def test_crash_before_the_ledger_is_made_good_by_the_same_command(lake: Lakehouse, action: str, named: bool) -> None:
    """The row is the one of the first time: its actor, reason and time, not those of the repetition."""
    place = lake.half(12) if action == "resolve" else discarded(lake)
    asked = Asked("tx", place=place if named and action == "resolve" else None)

    def run(signed: Any, **more: Any) -> Outcome:
        return (
            lake.resolve("ROLLBACK", asked, signed, **more)
            if action == "resolve"
            else lake.resume(signed=signed, **more)
        )

    with pytest.raises(CrashError):
        run(ALICE, store=Crashing(lake.store(), before="operations"))
    assert lake.rows("operations") == []
    made = lake.rows("op" if action == "resolve" else "half")[-1]
    outcome = run(BOB)
    assert outcome.repeated
    assert outcome.operation.signed == ALICE
    (row,) = lake.rows("operations")
    assert (row["actor"], row["reason"], row["at"]) == (*ALICE, made["store_timestamp"])
    assert len(lake.rows("op")) == (action == "resolve")
    with pytest.raises(RefusedError):  # now it is only refused
        run(BOB)
    assert len(lake.rows("operations")) == 1


def test_crash_before_the_ledger_is_made_good_after_the_decision(lake: Lakehouse) -> None:
    """However late."""
    place = lake.half(12)
    with pytest.raises(CrashError):
        lake.resolve("COMMIT", store=Crashing(lake.store(), before="operations"))
    lake.decide(place, "COMMIT", "operator")
    assert lake.resolve("COMMIT").repeated
    assert len(lake.rows("operations")) == 1


def test_next_action_completes_the_ledger(lake: Lakehouse) -> None:
    """A resumption that the ledger lacks, and the message was discarded again: both are there, in order."""
    discarded(lake)
    with pytest.raises(CrashError):
        lake.resume(store=Crashing(lake.store(), before="operations"))
    lake.decide(Place(QUEUE, 0), "DISCARD", "checkback")
    assert not lake.resume(signed=BOB).repeated
    assert [(row["actor"], row["new_queue_offset"]) for row in lake.rows("operations")] == [
        ("alice", 0),
        ("bob", 1),
    ]


def test_action_that_is_refused_completes_the_ledger(lake: Lakehouse) -> None:
    """Whichever it is, of whichever operator: what was done is recorded, with who did it."""
    lake.half(12)
    with pytest.raises(CrashError):
        lake.resolve("COMMIT", store=Crashing(lake.store(), before="operations"))
    with pytest.raises(RefusedError):
        lake.resolve("ROLLBACK", signed=BOB)
    assert [(row["actor"], row["action"]) for row in lake.rows("operations")] == [("alice", "RESOLVE_COMMIT")]


@pytest.mark.parametrize(
    ("now", "done"),
    [
        ({}, True),
        ({"delay_ms": 60_000}, False),
        ({"real_topic": "refunds"}, False),
        ({"group": "pay"}, False),
        ({"offset": 13}, False),
    ],
)
def test_what_was_confirmed_is_done_as_it_was_shown_or_not_at_all(
    lake: Lakehouse, now: dict[str, Any], done: bool
) -> None:
    """Since then `half` was restored to an older state, and another message sent; a check more changes nothing."""
    lake.half(12)
    (shown,) = find(lake.store(), Asked("tx"), QUEUE).transactions
    if now:
        lake.remove("half")
        lake.half(**{"offset": 12} | now)
    else:
        lake.check(shown.place, 1, "UNKNOWN")
    action = ending("COMMIT", ALICE, lake.clock)
    if done:
        assert act(lake.store(), Asked("tx"), QUEUE, action, shown).operation.place == shown.place
    else:
        with pytest.raises((RefusedError, SettingsError), match=r"has changed since it was shown|no half message at"):
            act(lake.store(), Asked("tx"), QUEUE, action, shown)
    assert len(lake.rows("op")) == done


@pytest.mark.parametrize("before", ["op", "half"])
def test_crash_before_the_action_leaves_nothing(lake: Lakehouse, before: str) -> None:
    """The ledger does not tell of what was not done."""
    place = lake.half(12)
    if before == "half":
        lake.decide(place, "DISCARD", "checkback")
    versions = lake.versions()
    store = Crashing(lake.store(), before)
    with pytest.raises(CrashError):
        _ = lake.resolve("COMMIT", store=store) if before == "op" else lake.resume(store=store)
    assert lake.versions() == versions


class Meanwhile(Watched):
    """A store in whose way another operator comes once, before the ``turns``-th thing that is done with it."""

    def __init__(self, store: FileStore, turns: int, other: Callable[[], object]) -> None:
        super().__init__(store)
        self._other = other
        self.turns = turns

    def turn(self, name: str, appends: bool) -> None:  # noqa: ARG002 - whatever it is
        if self.turns == 0:
            self._other()
        self.turns -= 1


#: more than an action does with its store: in the last ones nobody comes
_TURNS = range(17)


@pytest.mark.parametrize("turn", _TURNS)
def test_contradicting_operators_are_told_apart(lake: Lakehouse, turn: int) -> None:
    """Whenever the other one comes: one of them finds the other's op. There is one op, and one row of the ledger."""
    lake.half(12)
    refused: list[str] = []

    def resolve(state: str, signed: OperatorSignature, **more: Any) -> None:
        try:
            lake.resolve(state, signed=signed, **more)
        except RefusedError as error:
            refused.append(str(error))

    store = Meanwhile(lake.store(), turn, lambda: resolve("ROLLBACK", BOB))
    resolve("COMMIT", ALICE, store=store)
    came = store.turns < 0
    (op,) = lake.rows("op")
    assert len(refused) == came
    assert all(f"{op['state']} by operator" in line for line in refused)
    assert [(row["action"], row["at"]) for row in lake.rows("operations")] == [
        (f"RESOLVE_{op['state']}", op["store_timestamp"])
    ]


@pytest.mark.parametrize("turn", _TURNS)
def test_operators_of_two_messages_take_two_offsets(lake: Lakehouse, turn: int) -> None:
    """Whenever the other one comes: who is second looks again and takes the next."""
    discarded(lake, 1, "a")
    discarded(lake, 2, "b")
    store = Meanwhile(lake.store(), turn, lambda: lake.resume(Asked("b"), BOB))
    lake.resume(Asked("a"), store=store)
    found = {row["transaction_id"]: row["queue_offset"] for row in lake.rows("half") if row["queue_id"] == QUEUE}
    assert found in ([{"a": 0, "b": 1}, {"a": 1, "b": 0}] if store.turns < 0 else [{"a": 0}])
    assert {row["transaction_id"]: row["new_queue_offset"] for row in lake.rows("operations")} == found


@pytest.mark.parametrize("turn", _TURNS)
def test_operators_of_one_message_resume_it_once(lake: Lakehouse, turn: int) -> None:
    """Whenever the other one comes."""
    discarded(lake)
    late: list[str] = []

    def resume(signed: OperatorSignature, **more: Any) -> None:
        try:
            if lake.resume(signed=signed, **more).repeated:
                late.append("before its row of the ledger")
        except RefusedError as error:
            late.append(str(error))

    store = Meanwhile(lake.store(), turn, lambda: resume(BOB))
    resume(ALICE, store=store)
    assert len(late) == (store.turns < 0)
    assert all("was resumed from 0/12" in line or "before its row" in line for line in late)
    assert len(lake.rows("half")) == 2
    assert len(lake.rows("operations")) == 1


def test_offsets_go_on_after_rows_that_others_wrote(lake: Lakehouse) -> None:
    """They should not; but no offset is taken twice."""
    lake.half(41, "other", queue=QUEUE)
    discarded(lake)
    assert lake.resume().operation.new_place == Place(QUEUE, 42)


def test_message_that_is_not_in_discarded_is_told(lake: Lakehouse) -> None:
    """`reconcile` died between two tables."""
    lake.decide(lake.half(12), "DISCARD", "checkback")
    from deltalake import DeltaTable

    table = DeltaTable(lake.tables.location("discarded"))
    table.delete()
    with pytest.raises(RefusedError, match="its message is not in `discarded`; run `checkback reconcile`"):
        lake.resume()


# Any order

_STEP = st.tuples(
    st.sampled_from(["COMMIT", "ROLLBACK", "resume"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["", "operations", "op", "half"]),
    st.sampled_from(["", "DISCARD", "first op"]),
)


@settings(fewer(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_STEP, min_size=3, max_size=6))
def test_ledger_has_what_was_done_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, str, str]]
) -> None:
    """Whatever is tried, crashes and is decided: one operator's op a place, no offset twice, a message resumed once."""
    lake = Lakehouse(tmp_path_factory.mktemp("any") / "data")
    open_places = {name: lake.half(offset, name) for offset, name in enumerate("ab")}
    for what, name, crash, decided in steps:
        store: Any = Crashing(lake.store(), crash) if crash else lake.store()
        try:
            one = Asked(name)
            outcome = lake.resume(one, store=store) if what == "resume" else lake.resolve(what, one, store=store)
        except (CheckbackError, CrashError):
            outcome = None
        halves = lake.rows("half")
        newest = next(row for row in reversed(halves) if row["transaction_id"] == name)
        place = open_places[name] = Place(newest["queue_id"], newest["queue_offset"])
        ops = [row for row in lake.rows("op") if (row["queue_id"], row["queue_offset"]) == place]
        known = {(row["queue_id"], row["queue_offset"]) for row in lake.rows("decisions")}
        if outcome is not None and place not in known:
            assert ops or place.queue_id == QUEUE
        if place not in known and decided == "DISCARD" and not ops:
            lake.decide(place, "DISCARD", "checkback")
        elif place not in known and decided == "first op" and ops:
            lake.decide(place, ops[0]["state"], "operator")
    for name in "ab":  # the same command again makes the ledger whole
        for again in ("COMMIT", "ROLLBACK", "resume"):
            with suppress(CheckbackError):
                _ = lake.resume(Asked(name)) if again == "resume" else lake.resolve(again, Asked(name))
    done = {("RESUME", row["queue_id"], row["queue_offset"]) for row in lake.rows("half") if row["queue_id"] == QUEUE}
    done |= {(f"RESOLVE_{row['state']}", row["queue_id"], row["queue_offset"]) for row in lake.rows("op")}
    ledger = [
        (row["action"], row["new_queue_id"], row["new_queue_offset"])
        if row["action"] == "RESUME"
        else (row["action"], row["queue_id"], row["queue_offset"])
        for row in lake.rows("operations")
    ]
    assert sorted(ledger) == sorted(done)
    places = [(row["queue_id"], row["queue_offset"]) for row in lake.rows("half")]
    assert len(set(places)) == len(places)
    ended = [(row["queue_id"], row["queue_offset"]) for row in lake.rows("op")]
    assert len(set(ended)) == len(ended)
    origins = [dict(row["properties"]).get(RESUMED_FROM) for row in lake.rows("half") if row["queue_id"] == QUEUE]
    assert len(set(origins)) == len(origins)


@pytest.mark.parametrize(("before", "group"), [("before", "orders"), ("tx", "pay")])
def test_what_operators_did_with_another_transaction_at_the_offset_does_not_count(
    lake: Lakehouse, before: str, group: str
) -> None:
    """`half` was restored to an older state, `op` was not, and the offset assigned again: resolved, then cancelled."""
    due = lake.clock() + timedelta(days=1)
    for transaction_id, its_group in ((before, group), ("tx", "orders")):
        lake.remove("half")
        lake.remove("decisions")
        place = lake.half(12, transaction_id, its_group)
        asked = Asked(transaction_id)
        assert not lake.resolve("COMMIT", asked).repeated
        with pytest.raises(RefusedError, match="COMMIT by operator"):
            lake.resolve("COMMIT", asked)
        lake.decide(place, "COMMIT", "operator", due)
        assert not lake.cancel(asked).repeated
        with pytest.raises(RefusedError, match="CANCEL by alice has landed"):
            lake.cancel(asked)
    names = [(row["transaction_id"], row["producer_group"], row["state"]) for row in lake.rows("op")]
    assert names == [
        (before, group, "COMMIT"),
        (before, group, "CANCEL"),
        ("tx", "orders", "COMMIT"),
        ("tx", "orders", "CANCEL"),
    ]
    done = {"COMMIT": "RESOLVE_COMMIT", "CANCEL": "CANCEL"}
    ledger = [(row["transaction_id"], row["producer_group"], row["action"]) for row in lake.rows("operations")]
    assert ledger == [(name, whose, done[state]) for name, whose, state in names]


def test_last_answer_is_the_transactions_own(lake: Lakehouse) -> None:
    """Not that of the one whose offset it has."""
    lake.check(lake.half(12, "before"), 3, "UNKNOWN")
    lake.remove("half")
    lake.check(lake.half(12), 1, "NO_ANSWER", "too late")
    (one,) = find(lake.store(), Asked("tx"), QUEUE).transactions
    assert (one.check_times, one.last_outcome, one.last_error) == (1, "NO_ANSWER", "too late")


def test_last_answer_is_not_that_the_check_was_requested_twice(lake: Lakehouse) -> None:
    place = lake.half(12)
    lake.check(place, 3, "UNKNOWN")
    lake.check(place, 3, "SKIPPED", OVERTAKEN)
    (one,) = find(lake.store(), Asked("tx"), QUEUE).transactions
    assert (one.check_times, one.last_outcome, one.last_error) == (3, "UNKNOWN", None)


@pytest.mark.parametrize("everybody", [False, True], ids=["one", "all"])
@pytest.mark.parametrize("known_by", ["decisions", "check_requests", "operations"])
def test_an_offset_that_another_table_knows_is_not_used_again(lake: Lakehouse, known_by: str, everybody: bool) -> None:
    """`half` was put back from a backup, with its versions: what is known of a lost half message is no other's."""
    lake.discarded()
    half = lake.tables.location("half")
    shutil.copytree(half, f"{half}-backup")
    assert lake.resume().operation.new_place == Place(QUEUE, 0)
    if known_by == "decisions":
        lake.decide(Place(QUEUE, 0), "COMMIT", "check")
    if known_by == "check_requests":
        lake.check(Place(QUEUE, 0), 1, "UNKNOWN")
    if known_by != "operations":
        lake.remove("operations")
    shutil.rmtree(half)
    shutil.move(f"{half}-backup", half)
    if everybody:
        resume_some(lake.store(), resumable(lake.store(), QUEUE), QUEUE, ALICE, lake.clock)
    else:
        lake.resume()
    assert [row["queue_offset"] for row in lake.rows("half") if row["queue_id"] == QUEUE] == [1]


@pytest.mark.parametrize("ledger", [False, True], ids=["ledger kept", "ledger restored"])
def test_what_a_restore_has_undone_is_done_again(lake: Lakehouse, ledger: bool) -> None:
    """RESTORE keeps the applications' versions and drops the rows. Each is done once more, once, and recorded."""
    lake.discarded()
    lake.half(13, "open")
    lake.decide(lake.half(14, "due"), "COMMIT", deliver_at=T0 + timedelta(days=1))
    lake.op(Place(0, 0))
    names = ["half", "op"]
    if ledger:
        lake.resolve("COMMIT", Asked("first", place=lake.half(20, "first")))
        names.append("operations")
    before = lake.versions()

    def act_on_all() -> None:
        assert not lake.resume().repeated
        assert not lake.resolve("COMMIT", Asked("open")).repeated
        assert not lake.cancel(Asked("due")).repeated

    act_on_all()
    for name in names:
        DeltaTable(lake.tables.location(name)).restore(before[name])
    act_on_all()
    again = (lake.resume, partial(lake.resolve, "COMMIT", Asked("open")), partial(lake.cancel, Asked("due")))
    for action in again:
        with pytest.raises(RefusedError):
            action()
    assert [row["queue_offset"] for row in lake.rows("half") if row["queue_id"] == QUEUE] == [1]
    assert sorted(row["transaction_id"] for row in lake.rows("op") if row["queue_offset"] in (13, 14)) == [
        "due",
        "open",
    ]
    done = [row["action"] for row in lake.rows("operations") if row["transaction_id"] != "first"]
    assert done == ["RESUME", "RESOLVE_COMMIT", "CANCEL"] * (1 if ledger else 2)
    assert [row["new_queue_offset"] for row in lake.rows("operations") if row["action"] == "RESUME"][-1] == 1
    assert resumable(lake.store(), QUEUE) == []
