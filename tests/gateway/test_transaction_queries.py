"""Questions that take long delay only those who ask: not ops, not the end of the process; and there is a limit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from checkback.gateway import json_decoder
from checkback.gateway.transaction_queries import WAITING_MAX, WAITING_SHARE
from gateway.process import PATIENCE_S, half, op
from gateway.services import SlowOlder, code, with_door

if TYPE_CHECKING:
    from pathlib import Path

    from checkback.gateway.problems import Answer
    from checkback.gateway.service import GatewayService


def ask(door: GatewayService, name: str) -> asyncio.Task[Answer]:
    return asyncio.ensure_future(door.questions.transaction(name, "orders", None))


def test_op_of_a_forgotten_half_message_does_not_wait_for_a_question(tmp_path: Path) -> None:
    """Both are looked up in the tables, each on its own."""

    async def act(door: GatewayService, older: SlowOlder) -> None:
        first = json_decoder.half(half("t-1"), 1)
        (stored,) = await door.halves.take([first], None)
        assert isinstance(stored, dict)
        door.ledger.forget(2**62, 0)
        question = ask(door, "none")
        await asyncio.to_thread(older.begun.wait, PATIENCE_S)
        (ended,) = await door.ops.take([json_decoder.op(op(stored["queue_offset"]), 1)], None)
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

    async def act(door: GatewayService, older: SlowOlder) -> None:
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
    async def act(door: GatewayService, older: SlowOlder) -> None:
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


def test_end_answers_questions_and_does_not_work_them_off(tmp_path: Path) -> None:
    """Those who wait are told to ask again."""

    async def act(door: GatewayService, older: SlowOlder) -> None:
        waiting = [ask(door, f"t-{number}") for number in range(5)]
        await asyncio.to_thread(older.begun.wait, PATIENCE_S)
        door.hurry()
        assert [code(answer) for answer in await asyncio.gather(*waiting)] == ["stopping"] * 5
        assert code(await ask(door, "late")) == "stopping"

    assert with_door(tmp_path, act).read == 1
