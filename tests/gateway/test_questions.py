"""Questions that take long delay only those who ask: not ops, not the end of the process; and there is a limit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkback.gateway import bodies
from checkback.gateway.door import Door
from checkback.gateway.metrics import Metrics
from checkback.gateway.older import Older
from checkback.gateway.problems import Answer, Problem
from checkback.gateway.questions import WAITING_MAX, Questions
from checkback.settings import Settings
from gateway.process import PATIENCE_S, half, op

if TYPE_CHECKING:
    from checkback.gateway.ledger import Kept


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


def test_end_answers_questions_and_does_not_work_them_off(tmp_path: Path) -> None:
    """Those who wait are told to ask again."""

    async def act(door: Door, older: SlowOlder) -> None:
        waiting = [ask(door, f"t-{number}") for number in range(5)]
        await asyncio.to_thread(older.begun.wait, PATIENCE_S)
        door.hurry()
        assert [code(answer) for answer in await asyncio.gather(*waiting)] == ["stopping"] * 5
        assert code(await ask(door, "late")) == "stopping"

    assert with_door(tmp_path, act).read == 1
