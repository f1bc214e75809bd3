"""Questions that take long delay only those who ask: not ops, not the end of the process; and there is a limit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkback.gateway import bodies
from checkback.gateway.door import Door
from checkback.gateway.metrics import Metrics
from checkback.gateway.older import Older
from checkback.gateway.problems import Answer, Problem
from checkback.gateway.questions import WAITING_MAX, WAITING_SHARE, Questions
from checkback.gateway.quick import BATCH_MAX
from checkback.settings import Settings
from gateway.process import PATIENCE_S, half, op

if TYPE_CHECKING:
    from checkback.gateway.ledger import Kept
    from checkback.gateway.older import Place


class SlowOlder(Older):
    """Tables in which to look for a name takes until it is told to end."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.begun, self.end = threading.Event(), threading.Event()
        self.read = 0

    def named(self, producer_group: str, transaction_id: str) -> Kept | None:
        self.begun.set()
        assert self.end.wait(PATIENCE_S)
        self.read += 1
        return super().named(producer_group, transaction_id)


def with_door(root: Path, act: Callable[[Door, SlowOlder], Awaitable[None]]) -> SlowOlder:
    """A real door on real tables, whose questions are slow, while ``act`` runs; it forgets half messages at once."""
    settings = Settings.model_validate(
        {"storage": {"root": str(root)}, "gateway": {"gather": "0s", "remember": "1ms", "remember_max": 1}}
    )
    older = SlowOlder(root)

    async def run() -> None:
        door = Door(settings, Metrics(), lambda error: pytest.fail(str(error)))
        door.questions = Questions(older, door.ledger, door.tokens, door.condition)
        committing = asyncio.create_task(door.run())
        try:
            await asyncio.wait_for(act(door, older), PATIENCE_S)
        finally:
            older.end.set()
            door.hurry()
            door.close()
            await committing

    asyncio.run(run())
    return older


def ask(door: Door, name: str) -> asyncio.Task[Answer]:
    return asyncio.ensure_future(door.questions.transaction(name, "orders", None))


def code(answer: Answer) -> str | None:
    return answer.code if isinstance(answer, Problem) else None


def test_op_of_a_forgotten_half_message_does_not_wait_for_a_question(tmp_path: Path) -> None:
    """Both are looked up in the tables, each on its own."""

    async def act(door: Door, older: SlowOlder) -> None:
        first = bodies.half(half("t-1"), 1)
        (stored,) = await door.halves.take([first], None)
        assert isinstance(stored, dict)
        door.ledger.forget(2**62, 0)
        question = ask(door, "none")
        await asyncio.to_thread(older.begun.wait, PATIENCE_S)
        (ended,) = await door.ops.take([bodies.op(op(stored["queue_offset"]), 1)], None)
        assert isinstance(ended, dict)
        assert not question.done()
        older.end.set()
        assert code(await question) == "unknown_transaction"
        known = await ask(door, "t-1")
        assert isinstance(known, dict)
        assert (known["state"], known["queue_offset"]) == ("COMMIT", stored["queue_offset"])

    with_door(tmp_path, act)


def test_questions_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    """Also when those who asked have gone: what is read for them goes on. Later ones are taken again."""

    async def act(door: Door, older: SlowOlder) -> None:
        waiting = [ask(door, f"t-{number}") for number in range(WAITING_MAX)]
        await asyncio.to_thread(older.begun.wait, PATIENCE_S)
        for gone in waiting[1:]:
            gone.cancel()
        await asyncio.wait(waiting[1:])
        assert code(await ask(door, "one more")) == "queue_full"
        older.end.set()
        assert code(await waiting[0]) == "unknown_transaction"
        while code(answer := await ask(door, "later")) == "queue_full":
            await asyncio.sleep(0)
        assert code(answer) == "unknown_transaction"

    assert with_door(tmp_path, act).read == WAITING_MAX + 1


def test_questions_of_one_token_leave_room_to_others(tmp_path: Path) -> None:
    async def act(door: Door, older: SlowOlder) -> None:
        orders, stock = frozenset({"orders"}), frozenset({"stock"})
        waiting = [
            asyncio.ensure_future(door.questions.transaction(f"t-{number}", "orders", orders))
            for number in range(WAITING_SHARE)
        ]
        await asyncio.to_thread(older.begun.wait, PATIENCE_S)
        assert code(await door.questions.transaction("one more", "orders", orders)) == "queue_full"
        other = asyncio.ensure_future(door.questions.transaction("t", "stock", stock))
        older.end.set()
        answers = await asyncio.gather(*waiting, other)
        assert {code(answer) for answer in answers} == {"unknown_transaction"}

    with_door(tmp_path, act)


def test_look_ups_of_one_token_leave_room_to_others(tmp_path: Path) -> None:
    """One request's worth of older half messages at a time; a failed look-up gives its room back."""

    async def act(door: Door, _: SlowOlder) -> None:
        stored = await door.halves.take([bodies.half(half(f"t-{n}"), 1) for n in range(BATCH_MAX + 1)], None)
        assert all(isinstance(answer, dict) for answer in stored)
        door.ledger.forget(2**62, 0)
        begun, end, find = threading.Event(), threading.Event(), door.ops._find

        def slow(places: Collection[Place]) -> dict[Place, Kept]:
            begun.set()
            assert end.wait(PATIENCE_S)
            return find(places)

        door.ops._find = slow
        ops = [bodies.op(op(n, f"t-{n}"), 1) for n in range(BATCH_MAX + 1)]
        mine, other = frozenset({"orders"}), frozenset({"orders", "more"})
        first = asyncio.ensure_future(door.ops.take(ops[:-1], mine))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        assert [code(answer) for answer in await door.ops.take(ops[-1:], mine)] == ["queue_full"]
        behind = asyncio.ensure_future(door.ops.take(ops[-1:], other))
        end.set()
        assert {code(answer) for answer in [*await first, *await behind]} == {None}
        door.ledger.forget(2**62, 0)
        assert [code(answer) for answer in await door.ops.take(ops[-1:], mine)] == [None]

    with_door(tmp_path, act)


def test_ops_behind_one_that_failed_are_not_tried_one_by_one(tmp_path: Path) -> None:
    """All ops of a request for one half message fail with the first: each try would be a commit."""

    async def act(door: Door, _: SlowOlder) -> None:
        (stored,) = await door.halves.take([bodies.half(half("t-1"), 1)], None)
        assert isinstance(stored, dict)
        (tmp_path / "op").rename(tmp_path / "away")
        (tmp_path / "op").write_text("no folder")
        ops = [bodies.op(op(stored["queue_offset"], state=state), 1) for state in ("COMMIT", "ROLLBACK") * 50]
        tries = []
        write = door.ops.write
        door.ops.write = lambda prepared: (tries.append(len(prepared[0])), write(prepared))[1]  # type: ignore[method-assign]
        assert {code(answer) for answer in await door.ops.take(ops, None)} == {"storage_unavailable"}
        assert tries == [1]

    with_door(tmp_path, act)


def test_end_answers_questions_and_does_not_work_them_off(tmp_path: Path) -> None:
    """Those who wait are told to ask again."""

    async def act(door: Door, older: SlowOlder) -> None:
        waiting = [ask(door, f"t-{number}") for number in range(5)]
        await asyncio.to_thread(older.begun.wait, PATIENCE_S)
        door.hurry()
        assert [code(answer) for answer in await asyncio.gather(*waiting)] == ["stopping"] * 5
        assert code(await ask(door, "late")) == "stopping"

    assert with_door(tmp_path, act).read == 1
