"""Ops at the door: of half messages that are forgotten, of one that fails, and of many tokens."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

from checkback.gateway import json_decoder
from checkback.gateway.batch_decoder import BATCH_MAX
from gateway.process import PATIENCE_S, half, op
from gateway.services import SlowOlder, code, with_door

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    import pytest

    from checkback.gateway.deduplication import CachedHalf
    from checkback.gateway.deduplication_history import Place
    from checkback.gateway.service import GatewayService


def test_late_op_leaves_the_name_to_the_half_message_that_was_sent_last(tmp_path: Path) -> None:
    """A transaction id that is used anew: sent again, the new half message keeps its offset."""

    async def act(door: GatewayService, _: SlowOlder) -> None:
        places = []
        for tags in ("old", "new"):
            (stored,) = await door.halves.take([json_decoder.half(half("t-1", tags=tags), 1)], None)
            assert isinstance(stored, dict)
            places.append(stored["queue_offset"])
            if tags == "old":
                door.ledger.forget(2**62, 0)
        (late,) = await door.ops.take([json_decoder.op(op(places[0], state="ROLLBACK"), 1)], None)
        assert isinstance(late, dict)
        assert late["repeated"] is False
        (again,) = await door.halves.take([json_decoder.half(half("t-1", tags="new"), 1)], None)
        assert isinstance(again, dict)
        assert again["queue_offset"] == places[1] != places[0]
        for offset, state, repeated in ((places[0], "ROLLBACK", True), (places[1], "COMMIT", False)):
            (ended,) = await door.ops.take([json_decoder.op(op(offset, state=state), 1)], None)
            assert isinstance(ended, dict)
            assert ended["repeated"] is repeated

    with_door(tmp_path, act, remember="1h", remember_max=100)


def test_clock_that_is_set_forward_makes_nothing_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half message that is sent again keeps its offset: it landed a moment ago."""
    now = time.time_ns

    async def act(door: GatewayService, _: SlowOlder) -> None:
        places = []
        for ahead in (0, 11 * 60 * 10**9, 0):
            monkeypatch.setattr(time, "time_ns", lambda ahead=ahead: now() + ahead)
            door.forget()
            (stored,) = await door.halves.take([json_decoder.half(half("t-1"), 1)], None)
            assert isinstance(stored, dict)
            places.append(stored["queue_offset"])
        assert places == [0, 0, 0]

    with_door(tmp_path, act, remember="10m", remember_max=100)


def test_look_ups_of_one_token_leave_room_to_others(tmp_path: Path) -> None:
    """One request's worth of older half messages at a time; a failed look-up gives its room back."""

    async def act(door: GatewayService, _: SlowOlder) -> None:
        stored = await door.halves.take([json_decoder.half(half(f"t-{n}"), 1) for n in range(BATCH_MAX + 1)], None)
        assert all(isinstance(answer, dict) for answer in stored)
        door.ledger.forget(2**62, 0)
        begun, end, find = threading.Event(), threading.Event(), door.ops._find

        def slow(places: Collection[Place]) -> dict[Place, CachedHalf]:
            begun.set()
            assert end.wait(PATIENCE_S)
            return find(places)

        door.ops._find = slow
        ops = [json_decoder.op(op(n, f"t-{n}"), 1) for n in range(BATCH_MAX + 1)]
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

    async def act(door: GatewayService, _: SlowOlder) -> None:
        (stored,) = await door.halves.take([json_decoder.half(half("t-1"), 1)], None)
        assert isinstance(stored, dict)
        (tmp_path / "op").rename(tmp_path / "away")
        (tmp_path / "op").write_text("no folder")
        ops = [json_decoder.op(op(stored["queue_offset"], state=state), 1) for state in ("COMMIT", "ROLLBACK") * 50]
        tries: list[int] = []
        write = door.ops.write

        def counted(prepared: Any) -> None:
            tries.append(len(prepared[0]))
            write(prepared)

        door.ops.write = counted  # type: ignore[method-assign]
        assert {code(answer) for answer in await door.ops.take(ops, None)} == {"storage_unavailable"}
        assert tries == [1]

    with_door(tmp_path, act)
