"""Ops at the door: of half messages that are forgotten, of one that fails, and of many tokens."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from checkback.errors import StorageError
from checkback.gateway.health import now_ms
from checkback.gateway.problems import Problem
from checkback.messages.limits import BATCH_MAX
from checkback.storage.schemas import arrow_schema
from gateway.process import PATIENCE_S, half, op, rows
from gateway.services import SlowHistory, code, half_sent, op_sent, with_service
from gateway.test_deduplication_history import T0, T0_MS, land

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from checkback.gateway.deduplication.history import Place
    from checkback.gateway.deduplication.remembered_half import RememberedHalf
    from checkback.gateway.half_lookups import LookedUp
    from checkback.gateway.service import GatewayService


def test_late_op_leaves_the_name_to_the_half_message_that_was_sent_last(tmp_path: Path) -> None:
    """A transaction id that is used anew: sent again, the new half message keeps its offset."""

    async def act(service: GatewayService, _: SlowHistory) -> None:
        places = []
        for tags in ("old", "new"):
            (stored,) = await service.halves.take([half_sent(half("t-1", tags=tags), 1)], None)
            assert isinstance(stored, dict)
            places.append(stored["queue_offset"])
            if tags == "old":
                service.cache.forget(2**62, 0)
        (late,) = await service.ops.take([op_sent(op(places[0], state="ROLLBACK"), 1)], None)
        assert isinstance(late, dict)
        assert late["repeated"] is False
        (again,) = await service.halves.take([half_sent(half("t-1", tags="new"), 1)], None)
        assert isinstance(again, dict)
        assert again["queue_offset"] == places[1] != places[0]
        for offset, state, repeated in ((places[0], "ROLLBACK", True), (places[1], "COMMIT", False)):
            (ended,) = await service.ops.take([op_sent(op(offset, state=state), 1)], None)
            assert isinstance(ended, dict)
            assert ended["repeated"] is repeated

    with_service(tmp_path, act, dedup_window="1h", dedup_max=100)


def test_clock_that_is_set_forward_makes_nothing_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half message that is sent again keeps its offset: it landed a moment ago."""
    now = time.time_ns

    async def act(service: GatewayService, _: SlowHistory) -> None:
        places = []
        for ahead in (0, 11 * 60 * 10**9, 0):
            monkeypatch.setattr(time, "time_ns", lambda ahead=ahead: now() + ahead)
            service.forget()
            (stored,) = await service.halves.take([half_sent(half("t-1"), 1)], None)
            assert isinstance(stored, dict)
            places.append(stored["queue_offset"])
        assert places == [0, 0, 0]

    with_service(tmp_path, act, dedup_window="10m", dedup_max=100)


def test_look_ups_of_one_token_leave_room_to_others(tmp_path: Path) -> None:
    """One request's worth of older half messages at a time; a failed look-up gives its room back."""

    async def act(service: GatewayService, _: SlowHistory) -> None:
        stored = await service.halves.take([half_sent(half(f"t-{n}"), 1) for n in range(BATCH_MAX + 1)], None)
        assert all(isinstance(answer, dict) for answer in stored)
        service.cache.forget(2**62, 0)
        begun, end, find = threading.Event(), threading.Event(), service.ops._older._find

        def slow(places: Collection[Place]) -> dict[Place, RememberedHalf]:
            begun.set()
            assert end.wait(PATIENCE_S)
            return find(places)

        service.ops._older._find = slow
        ops = [op_sent(op(n, f"t-{n}"), 1) for n in range(BATCH_MAX + 1)]
        mine, other = frozenset({"orders"}), frozenset({"orders", "more"})
        first = asyncio.ensure_future(service.ops.take(ops[:-1], mine))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        assert [code(answer) for answer in await service.ops.take(ops[-1:], mine)] == ["queue_full"]
        behind = asyncio.ensure_future(service.ops.take(ops[-1:], other))
        end.set()
        assert {code(answer) for answer in [*await first, *await behind]} == {None}
        service.cache.forget(2**62, 0)
        assert [code(answer) for answer in await service.ops.take(ops[-1:], mine)] == [None]

    with_service(tmp_path, act)


def test_half_message_that_is_sent_again_is_known_whatever_others_send(tmp_path: Path) -> None:
    """Of the groups in `producers` the one that sends the most is forgotten first."""

    async def act(service: GatewayService, _: SlowHistory) -> None:
        mine = half_sent(half("t-1"), 1)
        others = [half_sent(half(f"x-{n}", producer_group="many"), 1) for n in range(20)]
        (first,) = await service.halves.take([mine], None)
        await service.halves.take(others, None)
        service.cache.forget(0, 10)
        assert await service.halves.take([mine], None) == [first]

    with_service(tmp_path, act, {"orders": {}, "many": {}}, dedup_window="1h", dedup_max=100)


async def sent(service: GatewayService, state: str, **fields: Any) -> tuple[str | None, Any]:
    """The problem's code, and the first state or whether it is repeated, of an op for the half message t-1 at 0."""
    (answer,) = await service.ops.take([op_sent(op(0, **{"state": state} | fields), 1)], None)
    if isinstance(answer, Problem):
        return answer.code, answer.more.get("first_state")
    return None, answer["repeated"]


@pytest.mark.parametrize("ended", [False, True])
def test_half_message_that_is_forgotten_while_others_are_looked_up_is_known(tmp_path: Path, ended: bool) -> None:
    """Of the same request: one was forgotten before, the other is during the look-up, which is not for it."""

    async def act(service: GatewayService, _: SlowHistory) -> None:
        async def stored(name: str) -> dict[str, Any]:
            (place,) = await service.halves.take([half_sent(half(name), 1)], None)
            service.forget()
            assert isinstance(place, dict)
            return place

        places = {name: await stored(name) for name in ("t-0", "t-1")}
        ops = [op_sent(op(place["queue_offset"], name), 1) for name, place in places.items()]
        look_up = service.ops._older._lookups.of

        async def slowly(wanted: Collection[Place]) -> LookedUp:
            found = await look_up(wanted)
            if not service.cache.named("orders/t-2"):
                if ended:
                    (other,) = await service.ops.take([op_sent(op(1, "t-1", "ROLLBACK"), 1)], None)
                    assert code(other) is None
                await stored("t-2")
            return found

        service.ops._older._lookups.of = slowly  # type: ignore[method-assign, assignment]
        first, second = await service.ops.take(ops, None)
        assert (code(first), code(second)) == (None, "contradiction" if ended else None)

    with_service(tmp_path, act, dedup_window="10m")


@pytest.mark.parametrize("forgotten_again", [False, True])
def test_op_that_lands_while_another_is_looked_up_stands(tmp_path: Path, forgotten_again: bool) -> None:
    """The look-up has read `op` before it; by the time that it ends, the gateway may have forgotten both."""

    async def act(service: GatewayService, _: SlowHistory) -> None:
        await service.halves.take([half_sent(half("t-1"), 1)], None)
        write, find = service.ops.write, service.ops._older._find
        writing, write_on, found, find_on = (threading.Event() for _ in range(4))

        def slow_write(prepared: Any) -> None:
            writing.set()
            assert write_on.wait(PATIENCE_S)
            write(prepared)

        def slow_find(places: Collection[Place]) -> dict[Place, RememberedHalf]:
            halves = find(places)
            found.set()
            assert find_on.wait(PATIENCE_S)
            return halves

        # What looks it up came before the op that is on its way, and waits behind another look-up.
        service.ops._older._find = slow_find
        service.cache.forget(2**62, 0)
        second = asyncio.ensure_future(sent(service, "ROLLBACK"))
        await asyncio.to_thread(found.wait, PATIENCE_S)
        service.ops.write = slow_write  # type: ignore[method-assign]
        service.cache.recalled(find([(0, 0)]).values(), now_ms())
        first = asyncio.ensure_future(sent(service, "COMMIT"))
        await asyncio.to_thread(writing.wait, PATIENCE_S)
        service.cache.forget(2**62, 0)
        write_on.set()
        assert await first == (None, False)
        if forgotten_again:
            service.cache.forget(2**62, 0)
        find_on.set()
        assert await second == ("contradiction", "COMMIT")
        for state, answer in (("ROLLBACK", ("contradiction", "COMMIT")), ("COMMIT", (None, True))):
            assert await sent(service, state) == answer
        assert [row["state"] for row in rows(tmp_path, "op")] == ["COMMIT"]

    with_service(tmp_path, act, dedup_window="1h", dedup_max=100)


def test_half_message_of_an_op_on_its_way_is_not_forgotten(tmp_path: Path) -> None:
    """Nothing is looked up for the ops behind it."""

    async def act(service: GatewayService, _: SlowHistory) -> None:
        await service.halves.take([half_sent(half("t-1"), 1)], None)
        write, writing, write_on = service.ops.write, threading.Event(), threading.Event()

        def slow_write(prepared: Any) -> None:
            writing.set()
            assert write_on.wait(PATIENCE_S)
            write(prepared)

        service.ops.write = slow_write  # type: ignore[method-assign]
        find, looked_up = service.ops._older._find, list[tuple[int, int]]()

        def noted_find(places: Collection[Place]) -> dict[Place, RememberedHalf]:
            looked_up.extend(places)
            return find(places)

        service.ops._older._find = noted_find
        first = asyncio.ensure_future(sent(service, "COMMIT"))
        await asyncio.to_thread(writing.wait, PATIENCE_S)
        service._dedup_window_ms = -(1 << 40)
        service.forget()
        assert len(service.cache) == 1
        second = asyncio.ensure_future(sent(service, "COMMIT"))
        assert await sent(service, "ROLLBACK", transaction_id="t-2") == ("wrong_transaction_id", None)
        write_on.set()
        assert (await first, await second) == ((None, False), (None, True))
        assert looked_up == []
        assert await sent(service, "ROLLBACK") == ("contradiction", "COMMIT")
        assert looked_up == [(0, 0)]  # why and when it was decided

    with_service(tmp_path, act, dedup_window="1h", dedup_max=100)


@pytest.mark.parametrize("wrong", [{"producer_group": "other"}, {"transaction_id": "t-2"}, {}])
def test_refused_op_does_not_hide_a_decision(tmp_path: Path, wrong: dict[str, str]) -> None:
    """A half message that was looked up in vain is looked up again: it may have been discarded since."""

    async def act(service: GatewayService, _: SlowHistory) -> None:
        await service.halves.take([half_sent(half("t-1"), 1)], None)
        service.cache.forget(2**62, 0)
        if wrong:
            refused, _first = await sent(service, "COMMIT", **wrong)
            assert refused in ("wrong_group", "wrong_transaction_id")
        else:
            write = service.ops.write
            service.ops.write = _no_disk  # type: ignore[method-assign]
            assert await sent(service, "COMMIT") == ("storage_unavailable", None)
            service.ops.write = write  # type: ignore[method-assign]
        assert len(service.cache) == 0
        land(tmp_path, "decisions", DISCARDED)
        for state in ("COMMIT", "ROLLBACK"):
            assert await sent(service, state) == ("contradiction", "DISCARD")

    with_service(tmp_path, act, dedup_window="1h", dedup_max=100)


@pytest.mark.parametrize("known", ["cached", "forgotten", "restarted"])
@pytest.mark.parametrize("first", [None, "COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("decided", ["COMMIT", "ROLLBACK", "DISCARD", "CANCEL"])
def test_op_against_the_decision_is_told_it(tmp_path: Path, decided: str, first: str | None, known: str) -> None:
    """Whoever has decided it, also against an op that came too late; alone, and beside others."""
    decision = DISCARDED | {"state": decided, "reason": "CHECK_MAX" if decided == "DISCARD" else None}
    decisions = [decision | {"state": "COMMIT", "deliver_at": T0}, decision] if decided == "CANCEL" else [decision]

    async def store(service: GatewayService, _: SlowHistory) -> None:
        await service.halves.take([half_sent(half(name), 1) for name in ("t-1", "t-2")], None)
        await service.follow()
        if first is not None:
            assert await sent(service, first) == (None, False)
        if known != "restarted":
            await tell(service, _)

    async def tell(service: GatewayService, _: SlowHistory) -> None:
        if known == "forgotten":
            service.cache.forget(2**62, 0)
        if known != "restarted":
            land(tmp_path, "decisions", *decisions)
            await service.follow()
        for state in ("COMMIT", "ROLLBACK"):
            ops = [op_sent(op(place, name, state), 1) for place, name in enumerate(("t-1", "t-2"))]
            answer, other = await service.ops.take(ops, None)
            alone = await service.ops.take(ops[:1], None)
            assert alone == [answer]
            assert isinstance(other, dict) is (state == "COMMIT")  # the first op of t-2 stands
            if state == decided:
                assert isinstance(answer, dict)
                assert (answer["state"], answer["repeated"]) == (state, True)
            else:
                assert isinstance(answer, Problem)
                said = {
                    "first_state": decided,
                    "reason": decision["reason"],
                    "decided_at": T0_MS,
                }
                assert (answer.code, answer.more) == ("contradiction", said)
                assert answer.detail.startswith(f"the transaction has ended with {decided}")
                assert answer.detail.endswith("decided at 2026-03-01T00:00:00.000Z")
        stored = [row["state"] for row in rows(tmp_path, "op") if row["transaction_id"] == "t-1"]
        contradicting = {"COMMIT", "ROLLBACK"} - {decided} if decided != "CANCEL" else set[str]()  # each is stored once
        assert sorted(stored) == sorted(contradicting | ({first} if first is not None else set()))
        assert len(rows(tmp_path, "op")) == 1 + len(stored)

    with_service(tmp_path, store, dedup_window="1h", dedup_max=100)
    if known == "restarted":
        land(tmp_path, "decisions", *decisions)
        with_service(tmp_path, tell, dedup_window="1h", dedup_max=100)


@pytest.mark.parametrize("ended", [None, "COMMIT", "ROLLBACK", "DISCARD", "CANCEL"])
def test_half_message_that_is_sent_again_after_its_end_is_told_it(tmp_path: Path, ended: str | None) -> None:
    """Else its local transaction would run, whose COMMIT cannot count. Of a batch the others are stored."""

    async def act(service: GatewayService, _: SlowHistory) -> None:
        (first,) = await service.halves.take([half_sent(half("t-1"), 1)], None)
        if ended in ("COMMIT", "ROLLBACK"):
            assert await sent(service, ended) == (None, False)
        elif ended is not None:
            land(tmp_path, "decisions", DISCARDED | {"state": ended})
            await service.follow()
        halves = [half_sent(half(name), 2) for name in ("t-1", "t-2")]
        again, other = await service.halves.take(halves, None)
        assert isinstance(other, dict)
        if ended in ("ROLLBACK", "DISCARD", "CANCEL"):
            assert isinstance(again, Problem)
            assert (again.code, again.more["first_state"]) == ("contradiction", ended)
        else:
            assert again == first
        assert len(rows(tmp_path, "half")) == 2

    with_service(tmp_path, act, dedup_window="1h", dedup_max=100)


def _no_disk(prepared: Any) -> None:
    raise StorageError("no space", "op")


DISCARDED = dict.fromkeys(arrow_schema("decisions").names) | {
    "queue_id": 0,
    "queue_offset": 0,
    "transaction_id": "t-1",
    "producer_group": "orders",
    "real_topic": "payments",
    "state": "DISCARD",
    "source": "checkback",
    "check_times": 15,
    "decided_at": T0,
    "batch_id": 1,
}


def test_ops_behind_one_that_failed_are_not_tried_one_by_one(tmp_path: Path) -> None:
    """All ops of a request for one half message fail with the first: each try would be a commit."""

    async def act(service: GatewayService, _: SlowHistory) -> None:
        (stored,) = await service.halves.take([half_sent(half("t-1"), 1)], None)
        assert isinstance(stored, dict)
        (tmp_path / "op").rename(tmp_path / "away")
        (tmp_path / "op").write_text("no folder")
        ops = [op_sent(op(stored["queue_offset"], state=state), 1) for state in ("COMMIT", "ROLLBACK") * 50]
        tries: list[int] = []
        write = service.ops.write

        def counted(prepared: Any) -> None:
            tries.append(len(prepared.ops))
            write(prepared)

        service.ops.write = counted  # type: ignore[method-assign]
        assert {code(answer) for answer in await service.ops.take(ops, None)} == {"storage_unavailable"}
        assert tries == [1]

    with_service(tmp_path, act)
