"""Questions that take long delay only those who ask: not ops, not the end of the process; and there is a limit."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from itertools import permutations
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from checkback.gateway.deduplication.history import DeduplicationHistory
from checkback.gateway.problems import Problem
from checkback.gateway.transaction_queries import WAITING_MAX, WAITING_SHARE
from checkback.maintain.compaction import rows_of, write_rows
from checkback.storage.horizon import HORIZON
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.schemas import arrow_schema
from gateway.process import PATIENCE_S, half, op
from gateway.services import SlowHistory, code, half_sent, op_sent, with_service
from gateway.test_deduplication_history import T0, T0_MS, land
from gateway.test_deduplication_history import half as landed_half

if TYPE_CHECKING:
    from pathlib import Path

    from checkback.gateway.problems import Answer
    from checkback.gateway.service import GatewayService
    from checkback.storage.log.snapshot_files import DataFile


def ask(service: GatewayService, name: str) -> asyncio.Task[Answer]:
    return asyncio.ensure_future(service.questions.transaction(name, "orders", None))


def test_op_of_a_forgotten_half_message_does_not_wait_for_a_question(tmp_path: Path) -> None:
    """Both are looked up in the tables, each on its own."""

    async def act(service: GatewayService, history: SlowHistory) -> None:
        first = half_sent(half("t-1"), 1)
        (stored,) = await service.halves.take([first], None)
        assert isinstance(stored, dict)
        service.cache.forget(2**62, 0)
        question = ask(service, "none")
        await asyncio.to_thread(history.begun.wait, PATIENCE_S)
        (ended,) = await service.ops.take([op_sent(op(stored["queue_offset"]), 1)], None)
        assert isinstance(ended, dict)
        assert not question.done()
        history.end.set()
        assert code(await question) == "unknown_transaction"
        known = await ask(service, "t-1")
        assert isinstance(known, dict)
        assert (known["state"], known["queue_offset"]) == ("COMMIT", stored["queue_offset"])

    with_service(tmp_path, act)


@pytest.mark.parametrize("remembered", [False, True])
def test_of_several_half_messages_a_committed_one_is_answered(tmp_path: Path, remembered: bool) -> None:
    """As after a resume, of one stored at two gateways, or of an id that is used again; without one, the newest.

    Those that landed long before one that the gateway remembers do not count.
    """
    since = datetime.now(timezone.utc) - timedelta(seconds=10) if remembered else T0
    orders = permutations([None, "COMMIT", "ROLLBACK", "DISCARD"])
    cases = {f"tx-{number}": states for number, states in enumerate(orders)}
    halves = {
        name: [
            landed_half(4 * number + each, name) | {"queue_id": 7, "store_timestamp": since + timedelta(seconds=each)}
            for each in range(4)
        ]
        for number, name in enumerate(cases)
    }
    columns = arrow_schema("decisions").names

    async def act(service: GatewayService, history: SlowHistory) -> None:
        history.end.set()
        if remembered:
            await service.halves.take([half_sent(half(name), 1) for name in cases], None)
            await service.ops.take([op_sent(op(own, name, "ROLLBACK"), 1) for own, name in enumerate(cases)], None)
            long_ago = [landed_half(100 + number, name) | {"queue_id": 7} for number, name in enumerate(cases)]
            land(tmp_path, "half", *long_ago)
            columns_of = [{column: row.get(column) for column in columns} for row in long_ago]
            land(tmp_path, "decisions", *(row | {"state": "COMMIT", "decided_at": T0} for row in columns_of))
        land(tmp_path, "half", *(row for rows in halves.values() for row in rows[:2]))
        decided = [
            row | {"state": state, "decided_at": T0}
            for name, states in cases.items()
            for row, state in zip(halves[name], states, strict=True)
            if state is not None
        ]
        land(tmp_path, "decisions", *({column: row.get(column) for column in columns} for row in decided))
        for number in (2, 4):
            if number == 4:
                land(tmp_path, "half", *(row for rows in halves.values() for row in rows[2:]))
            for own, (name, states) in enumerate(cases.items()):
                answer = await ask(service, name)
                assert isinstance(answer, dict)
                found = (answer["queue_id"], answer["queue_offset"], answer["state"])
                if "COMMIT" in states[:number]:
                    assert found == (7, 4 * own + states.index("COMMIT"), "COMMIT"), states
                elif remembered:
                    assert found == (0, own, "ROLLBACK"), states
                else:
                    assert found == (7, 4 * own + number - 1, states[number - 1] or "PENDING"), states

    with_service(tmp_path, act, dedup_window="1h", dedup_max=100)


def test_place_of_a_half_message_needs_no_search(tmp_path: Path) -> None:
    """Also of one that the gateway has forgotten, or another one stored; only of the transaction that is asked for."""
    land(tmp_path, "half", landed_half(3, "t-2") | {"queue_id": 7})

    async def act(service: GatewayService, history: SlowHistory) -> None:
        (stored,) = await service.halves.take([half_sent(half("t-1"), 1)], None)
        assert isinstance(stored, dict)
        places = {"t-1": (0, stored["queue_offset"]), "t-2": (7, 3)}
        for _ in range(2):
            for name, place in places.items():
                answer = await service.questions.transaction(name, "orders", None, place)
                assert isinstance(answer, dict)
                assert (answer["queue_id"], answer["queue_offset"], answer["state"]) == (*place, "PENDING")
                other = await service.questions.transaction("t-3", "orders", None, place)
                assert code(other) == "unknown_transaction"
            service.cache.forget(2**62, 0)
        assert not history.begun.is_set()

    with_service(tmp_path, act)


def test_unknown_transaction_may_have_been_removed(tmp_path: Path) -> None:
    """The answer says as of when half messages are gone."""
    land(tmp_path, "half", landed_half(3, "t-2"))
    DeltaLog("half", f"{tmp_path}/half").commit_after([], {HORIZON: None}, {HORIZON: T0_MS})

    async def act(service: GatewayService, history: SlowHistory) -> None:
        history.end.set()
        for place in (None, (0, 1)):
            answer = await service.questions.transaction("t-1", "orders", None, place)
            assert isinstance(answer, Problem)
            assert answer.detail.endswith("what ended before 2026-03-01T00:00:00.000Z was removed by retention")

    with_service(tmp_path, act)


def test_file_that_an_erasure_removes_while_it_is_read_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a question, and for an op of a half message that the gateway has forgotten."""
    listed = DeduplicationHistory._files

    def erased_meanwhile(history: DeduplicationHistory, table: str, *within: Any) -> list[DataFile]:
        files = listed(history, table, *within)
        if table != "half":
            return files
        monkeypatch.undo()
        log = DeltaLog("half", f"{tmp_path}/half")
        old = log.paths()
        new = write_rows("half", str(tmp_path), pa.concat_tables(rows_of(file.path, "half") for file in files))
        assert log.remove(old, new, {}, changes=False)
        for path in old:
            (tmp_path / "half" / path).unlink()
        return files

    async def act(service: GatewayService, history: SlowHistory) -> None:
        history.end.set()
        (stored,) = await service.halves.take([half_sent(half("t-1"), 1)], None)
        assert isinstance(stored, dict)
        service.cache.forget(2**62, 0)
        monkeypatch.setattr(DeduplicationHistory, "_files", erased_meanwhile)
        assert isinstance(await ask(service, "t-1"), dict)
        monkeypatch.setattr(DeduplicationHistory, "_files", erased_meanwhile)
        (ended,) = await service.ops.take([op_sent(op(stored["queue_offset"]), 1)], None)
        assert isinstance(ended, dict)
        assert DeduplicationHistory._files is listed

    with_service(tmp_path, act)


def test_questions_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    """Also when those who asked have gone: what is read for them goes on. Later ones are taken again."""

    async def act(service: GatewayService, history: SlowHistory) -> None:
        waiting = [ask(service, f"t-{number}") for number in range(WAITING_MAX)]
        await asyncio.to_thread(history.begun.wait, PATIENCE_S)
        for gone in waiting[1:]:
            gone.cancel()
        await asyncio.wait(waiting[1:])
        assert code(await ask(service, "one more")) == "queue_full"
        history.end.set()
        assert code(await waiting[0]) == "unknown_transaction"
        while code(answer := await ask(service, "later")) == "queue_full":
            await asyncio.sleep(0)
        assert code(answer) == "unknown_transaction"

    assert with_service(tmp_path, act).read == WAITING_MAX + 1


def test_questions_of_one_token_leave_room_to_others(tmp_path: Path) -> None:
    async def act(service: GatewayService, history: SlowHistory) -> None:
        orders, stock = frozenset({"orders"}), frozenset({"stock"})
        waiting = [
            asyncio.ensure_future(service.questions.transaction(f"t-{number}", "orders", orders))
            for number in range(WAITING_SHARE)
        ]
        await asyncio.to_thread(history.begun.wait, PATIENCE_S)
        assert code(await service.questions.transaction("one more", "orders", orders)) == "queue_full"
        other = asyncio.ensure_future(service.questions.transaction("t", "stock", stock))
        history.end.set()
        answers = await asyncio.gather(*waiting, other)
        assert {code(answer) for answer in answers} == {"unknown_transaction"}

    with_service(tmp_path, act)


def test_end_answers_questions_and_does_not_work_them_off(tmp_path: Path) -> None:
    """Those who wait are told to ask again."""

    async def act(service: GatewayService, history: SlowHistory) -> None:
        waiting = [ask(service, f"t-{number}") for number in range(5)]
        await asyncio.to_thread(history.begun.wait, PATIENCE_S)
        service.hurry()
        assert [code(answer) for answer in await asyncio.gather(*waiting)] == ["stopping"] * 5
        assert code(await ask(service, "late")) == "stopping"

    assert with_service(tmp_path, act).read == 1


def test_tables_that_cannot_be_read_leave_it_ready_to_store(tmp_path: Path) -> None:
    """Questions and ops of older half messages fail; half messages do not need what they look up."""

    async def act(service: GatewayService, history: SlowHistory) -> None:
        history.end.set()
        (stored,) = await service.halves.take([half_sent(half("t-1"), 1)], None)
        assert isinstance(stored, dict)
        service.cache.forget(2**62, 0)
        for path in (tmp_path / "half").rglob("*.parquet"):
            path.write_bytes(b"damaged")
        assert code(await ask(service, "t-1")) == "storage_unavailable"
        (ended,) = await service.ops.take([op_sent(op(stored["queue_offset"]), 1)], None)
        assert code(ended) == "storage_unavailable"
        assert service.health.ready

    with_service(tmp_path, act)
