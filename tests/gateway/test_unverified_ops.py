"""Ops through another gateway than their half messages: taken before these can be looked up, within bounds."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.gateway.deduplication.remembered_half import RememberedHalf, name_of
from checkback.gateway.metrics import Metrics
from checkback.gateway.problems import Problem
from checkback.gateway.service import GatewayService
from checkback.gateway.unverified_ops import UnverifiedOps
from checkback.messages.op import Op
from checkback.settings import Settings
from gateway.process import PATIENCE_S, half, op, rows
from gateway.services import half_sent, op_sent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection
    from pathlib import Path

    from checkback.gateway.deduplication.history import Place

KEEP_MS = 1000
MINE = frozenset({"orders"})


@asynccontextmanager
async def _running(root: Path, queue: int, journal: bool) -> AsyncIterator[GatewayService]:
    own: dict[str, Any] = {"linger": "0s", "queues": [queue], "acknowledge": "table"}
    if journal:
        own |= {"acknowledge": "journal", "journal": f"{root}/_journal-{queue}", "flush": "1h"}
    settings = Settings.model_validate({"storage": {"root": str(root)}, "gateway": own})
    service = GatewayService(settings, Metrics(), lambda error: pytest.fail(str(error)))
    committing = asyncio.create_task(service.run())
    try:
        yield service
    finally:
        service.hurry()
        service.close()
        await committing


def with_two(
    root: Path, act: Callable[[GatewayService, GatewayService], Awaitable[None]], journals: bool = False
) -> None:
    """Two gateways of the same tables while ``act`` runs: of queue 0 and of queue 1.

    ``journals``: what they acknowledge is in the tables when they end.
    """

    async def run() -> None:
        async with AsyncExitStack() as stack:
            services = [await stack.enter_async_context(_running(root, queue, journals)) for queue in (0, 1)]
            await asyncio.wait_for(act(*services), PATIENCE_S)

    asyncio.run(run())


async def told(service: GatewayService, *ops: dict[str, Any]) -> list[Any]:
    """Of each op whether it is repeated, or the problem's code and the first state."""
    answers = await service.ops.take([op_sent(one, 1) for one in ops], None)
    return [
        (answer.code, answer.more.get("first_state")) if isinstance(answer, Problem) else answer["repeated"]
        for answer in answers
    ]


class OnItsWay:
    """Half messages of a gateway that have their offsets, and are not in `half` before `land`."""

    def __init__(self, service: GatewayService) -> None:
        self._service, self._write = service, service.halves.write
        self._assigned, self._go_on = threading.Event(), threading.Event()
        self._sent: asyncio.Future[Any] | None = None
        service.halves.write = self._slow  # type: ignore[method-assign]

    def _slow(self, prepared: Any) -> None:
        self._assigned.set()
        assert self._go_on.wait(PATIENCE_S)
        self._write(prepared)

    async def send(self, *transaction_ids: str) -> None:
        """They are being committed."""
        messages = [half_sent(half(name), 1) for name in transaction_ids]
        self._sent = asyncio.ensure_future(self._service.halves.take(messages, None))
        await asyncio.to_thread(self._assigned.wait, PATIENCE_S)

    async def land(self) -> None:
        """They are in `half`."""
        assert self._sent is not None
        self._go_on.set()
        assert all(isinstance(answer, dict) for answer in await self._sent)


def test_op_before_its_half_message_is_in_the_tables(tmp_path: Path) -> None:
    """It is stored once; what repeats or contradicts it is told so, before and after the half message is there."""

    async def act(first: GatewayService, second: GatewayService) -> None:
        sent = OnItsWay(first)
        await sent.send("t-1")
        answers = [False, True, ("contradiction", "COMMIT")]
        for expected, state in zip(answers, ("COMMIT", "COMMIT", "ROLLBACK"), strict=True):
            assert await told(second, op(0, state=state)) == [expected]
        assert "checkback_gateway_unverified_ops 1.0" in second._metrics.text().decode()
        await sent.land()
        assert await told(second, op(0), op(0, state="ROLLBACK")) == answers[1:]
        assert await told(first, op(0), op(0, state="ROLLBACK"), op(1)) == [False, answers[2], ("unknown_offset", None)]

    with_two(tmp_path, act)
    # The owner had remembered the half message before: both ops land, and reconcile takes the first.
    assert [row["state"] for row in rows(tmp_path, "op")] == ["COMMIT", "COMMIT"]


def test_op_of_a_half_message_that_is_in_a_journal(tmp_path: Path) -> None:
    """Acknowledged by both gateways; the op lands before the half message, or after it."""

    async def act(first: GatewayService, second: GatewayService) -> None:
        for name, offset in (("t-1", 0), ("t-2", 1)):
            (stored,) = await first.halves.take([half_sent(half(name), 1)], None)
            assert stored == {"transaction_id": name, "queue_id": 0, "queue_offset": offset}
        assert await told(second, op(0), op(0), op(1, "t-2", "ROLLBACK")) == [False, True, False]
        assert await told(first, op(1, "t-2", "ROLLBACK")) == [False]
        assert not rows(tmp_path, "half")

    with_two(tmp_path, act, journals=True)
    assert [row["transaction_id"] for row in rows(tmp_path, "half")] == ["t-1", "t-2"]
    assert [(row["queue_offset"], row["state"]) for row in rows(tmp_path, "op")] == [
        (0, "COMMIT"),
        (1, "ROLLBACK"),
        (1, "ROLLBACK"),
    ]


def test_op_of_a_half_message_that_landed_since_the_start_is_verified(tmp_path: Path) -> None:
    async def act(first: GatewayService, second: GatewayService) -> None:
        await first.halves.take([half_sent(half("t-1"), 1)], None)
        wrong = [op(0, producer_group="stock"), op(0, "t-2"), op(0)]
        assert await told(second, *wrong) == [("wrong_group", None), ("wrong_transaction_id", None), False]

    with_two(tmp_path, act)
    assert len(rows(tmp_path, "op")) == 1


def test_op_of_another_group_takes_no_ones_place(tmp_path: Path) -> None:
    """Nobody can tell yet whose half message it is: each is stored, `reconcile` knows."""

    async def act(first: GatewayService, second: GatewayService) -> None:
        sent = OnItsWay(first)
        await sent.send("t-1")
        hostile = op(0, "t-9", "ROLLBACK", producer_group="stock")
        assert await told(second, hostile, op(0)) == [False, False]
        await sent.land()
        assert await told(second, hostile, op(0)) == [("wrong_group", None), True]

    with_two(tmp_path, act)


def test_op_of_another_group_that_lands_during_a_look_up_ends_nothing(tmp_path: Path) -> None:
    """The half message lands meanwhile, too: the look-up finds it, and no op of its own."""

    async def act(first: GatewayService, second: GatewayService) -> None:
        sent = OnItsWay(first)
        await sent.send("t-1")
        write, find = second.ops.write, second.ops._older._find
        looking, look_on = threading.Event(), threading.Event()

        def slow_find(places: Collection[Place]) -> dict[Place, RememberedHalf]:
            looking.set()
            assert look_on.wait(PATIENCE_S)
            return find(places)

        release = threading.Event()

        def slow_write(prepared: Any) -> None:
            assert release.wait(PATIENCE_S)
            write(prepared)

        second.ops.write = slow_write  # type: ignore[method-assign]
        hostile = asyncio.ensure_future(told(second, op(0, "t-9", "ROLLBACK", producer_group="stock")))
        while not second.ops._unverified_in_flight:
            await asyncio.sleep(0)
        second.ops._older._find = slow_find
        mine = asyncio.ensure_future(told(second, op(0)))
        await asyncio.to_thread(looking.wait, PATIENCE_S)
        release.set()
        assert await hostile == [False]
        await sent.land()
        look_on.set()
        assert await mine == [False]

    with_two(tmp_path, act)


@pytest.mark.parametrize("journals", [False, True])
def test_ops_of_other_names_hold_up_none(tmp_path: Path, journals: bool) -> None:
    """A thousand for one place, each of another transaction, are one commit, and so is the one that is right."""

    async def act(_: GatewayService, second: GatewayService) -> None:
        prepare, commits = second.ops.prepare, list[int]()

        def counted(batch: Any) -> Any:
            commits.append(len(batch))
            return prepare(batch)

        second.ops.prepare = counted  # type: ignore[method-assign]
        hostile = [op(0, f"t-{n}", "ROLLBACK", producer_group="stock") for n in range(1000)]
        many, mine = await asyncio.gather(told(second, *hostile), told(second, op(0)))
        assert many == [False] * 1000
        assert mine == [False]
        assert len(commits) <= 2
        assert sum(commits) == 1001
        for other in (hostile[7], hostile[8] | {"state": "COMMIT"}, op(0)):
            expected = ("contradiction", "ROLLBACK") if other["transaction_id"] == "t-8" else True
            assert await told(second, other) == [expected]

    async def with_half(first: GatewayService, second: GatewayService) -> None:
        if journals:
            await first.halves.take([half_sent(half("t-1"), 1)], None)
            await act(first, second)
            return
        sent = OnItsWay(first)
        await sent.send("t-1")
        await act(first, second)
        await sent.land()
        assert await told(second, op(0, "t-7", producer_group="stock"), op(0)) == [("wrong_group", None), True]

    with_two(tmp_path, with_half, journals)
    assert len(rows(tmp_path, "op")) == 1001


@pytest.mark.parametrize("state", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("fails", [False, True])
def test_op_behind_one_that_came_before_the_half_message_landed(tmp_path: Path, fails: bool, state: str) -> None:
    """Of the same transaction: the first stands, once it is stored, though only the second could be verified."""

    async def act(first: GatewayService, second: GatewayService) -> None:
        sent = OnItsWay(first)
        await sent.send("t-1")
        write, admit = second.ops.write, second.ops._admit
        writing, write_on, judged = threading.Event(), threading.Event(), asyncio.Event()

        def slow_write(prepared: Any) -> None:
            writing.set()
            assert write_on.wait(PATIENCE_S)
            if fails:
                raise OSError("no space")
            write(prepared)

        def admitted(*arguments: Any) -> Any:
            judged.set()
            return admit(*arguments)

        second.ops.write = slow_write  # type: ignore[method-assign]
        unverified = asyncio.ensure_future(told(second, op(0)))
        await asyncio.to_thread(writing.wait, PATIENCE_S)
        await sent.land()
        second.ops._admit = admitted  # type: ignore[method-assign, assignment]
        behind = asyncio.ensure_future(told(second, op(0, state=state)))
        await judged.wait()
        write_on.set()
        failed = ("storage_unavailable", None)
        assert await unverified == [failed if fails else False]
        assert await behind == [failed if fails else True if state == "COMMIT" else ("contradiction", "COMMIT")]

    with_two(tmp_path, act)
    assert [row["state"] for row in rows(tmp_path, "op")] == ([] if fails else ["COMMIT"])


def test_places_where_no_half_message_can_come_are_refused(tmp_path: Path) -> None:
    """Passed over by their queue, or in a queue that no gateway has: nothing is stored."""

    async def act(first: GatewayService, second: GatewayService) -> None:
        await first.halves.take([half_sent(half(f"t-{n}"), 1) for n in range(3)], None)
        unknown = [op(offset, queue_id=queue) for queue, offset in ((7, 0), (2_000_000_000, 0), (1, 0))]
        assert await told(second, *unknown) == [("unknown_offset", None)] * 3

    with_two(tmp_path, act)
    assert not rows(tmp_path, "op")


def test_token_that_sends_ops_for_nothing_has_its_bound(tmp_path: Path) -> None:
    """Beyond it 503, for that token alone; half messages that land give the room back, those of others do not."""

    async def act(first: GatewayService, second: GatewayService) -> None:
        sent = OnItsWay(first)
        await sent.send("t-0", "t-1", "t-2")
        second.ops._unverified = second.ops._older._unverified = UnverifiedOps(KEEP_MS * 1000, most=4)
        await told(second, op(0, "t-0"), op(1, "junk"))
        assert await told(second, op(2, "t-2"), op(10, "junk")) == [False, False]
        assert await told(second, op(11, "junk"), op(10, "junk")) == [("queue_full", None), True]
        await sent.land()
        # Looks up the others, too.
        await told(second, op(2, "t-2"))
        assert await told(second, op(12, "junk"), op(13, "junk")) == [False, False]
        assert await told(second, op(14, "junk")) == [("queue_full", None)]

    with_two(tmp_path, act)


def test_op_that_could_not_be_stored_may_be_sent_again(tmp_path: Path) -> None:
    async def act(first: GatewayService, second: GatewayService) -> None:
        sent = OnItsWay(first)
        await sent.send("t-1")
        write = second.ops.write

        def no_disk(prepared: Any) -> None:
            raise OSError("no space")

        second.ops.write = no_disk  # type: ignore[method-assign]
        assert await told(second, op(0)) == [("storage_unavailable", None)]
        second.ops.write = write  # type: ignore[method-assign]
        assert await told(second, op(0), op(0)) == [False, True]
        await sent.land()

    with_two(tmp_path, act)


_PLACES = st.tuples(st.sampled_from([0, 1]), st.integers(0, 5))
_ADDED = st.tuples(_PLACES, st.sampled_from(["t", "u"]), st.sampled_from(["COMMIT", "ROLLBACK"]))


@given(st.lists(st.one_of(_ADDED, _PLACES, st.integers(1, KEEP_MS)), max_size=40), st.integers(1, 6))
def test_room_is_given_back_for_half_messages_that_land_and_after_a_time(steps: list[Any], most: int) -> None:
    """A token's ops that count: those whose half message is not there, or is another's, until they are too old."""
    unverified, now = UnverifiedOps(KEEP_MS, most), 0
    landed: dict[tuple[int, int], RememberedHalf] = {}
    waiting: dict[tuple[tuple[int, int], str], tuple[str, int]] = {}
    unfit: list[int] = []
    for step in steps:
        if isinstance(step, int):
            now += step
        elif len(step) == 2:
            name = name_of("orders", "t")
            landed.setdefault(step, RememberedHalf(step[0], step[1], name, 0, "payments", 0, now))
        else:
            place, name, state = step
            asked = unverified.to_look_up(MINE)
            assert bool(asked) == (bool(waiting) and len(waiting) + len(unfit) > most // 2)
            unverified.looked_up(MINE, asked, {at: landed[at] for at in asked if at in landed}, now)
            if asked:
                unfit += [at for (of, named), (_, at) in waiting.items() if of in landed and named == "u"]
                left = {key: taken for key, taken in waiting.items() if key[0] not in landed}
                waiting = {key: taken for key, taken in left.items() if taken[1] >= now - KEEP_MS}
            unfit = [at for at in unfit if at >= now - KEEP_MS]
            if place in landed:
                continue
            op_sent = Op(place[0], place[1], name, "orders", state, 0)
            first = unverified.state(op_sent, MINE)
            assert first == (waiting[place, name][0] if (place, name) in waiting else None)
            assert unverified.full(MINE) == (len(waiting) + len(unfit) >= most)
            if first is None and not unverified.full(MINE):
                unverified.add(op_sent, MINE, now)
                waiting[place, name] = (state, now)
    assert not unverified.full(frozenset({"stock"}))
