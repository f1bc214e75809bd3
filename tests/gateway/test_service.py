"""What a gateway knows after a restart, however the clock was set meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from checkback.gateway import half_messages, service
from checkback.gateway.health import steady_ms
from gateway.process import half, rows
from gateway.services import SlowHistory, code, half_sent, with_service

if TYPE_CHECKING:
    from pathlib import Path

    from checkback.gateway.problems import Answer
    from checkback.gateway.service import GatewayService

_MINUTE = 60_000


async def _sent(running: GatewayService, name: str) -> Answer:
    (answer,) = await running.halves.take([half_sent(half(name), 1)], None)
    return answer


@pytest.mark.parametrize("minutes", [15, 60 * 24 * 365 * 20, -15])
def test_sent_again_after_the_clock_was_set_it_lands_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    """It is known for `gateway.dedup_window` from the restart on, and then forgotten."""
    answers = []

    async def act(running: GatewayService, _: SlowHistory) -> None:
        running.forget()
        answers.append(await _sent(running, "t-1"))

    with_service(tmp_path, act, dedup_window="10m", dedup_max=100)
    monkeypatch.setattr(service, "steady_ms", lambda: steady_ms() + minutes * _MINUTE)

    async def again(running: GatewayService, history: SlowHistory) -> None:
        await act(running, history)
        monkeypatch.setattr(service, "steady_ms", lambda: steady_ms() + (minutes + 11) * _MINUTE)
        running.forget()
        assert len(running.cache) == 0

    with_service(tmp_path, again, dedup_window="10m", dedup_max=100)
    assert [code(answer) for answer in answers] == [None, None]
    assert answers[0] == answers[1]
    assert [row["queue_offset"] for row in rows(tmp_path, "half")] == [0]


def test_what_landed_long_before_the_last_one_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `gateway.dedup_window`, counted back from the last one, also if it was stored by a clock that was ahead."""

    def clock(minutes: int) -> None:
        for where, name in ((half_messages, "now_ms"), (service, "steady_ms")):
            monkeypatch.setattr(where, name, lambda: steady_ms() + minutes * _MINUTE)

    async def act(running: GatewayService, _: SlowHistory) -> None:
        for name, minutes in (("ahead", 30), ("old", -60), ("t-1", -45), ("t-2", -40)):
            clock(minutes)
            assert code(await _sent(running, name)) is None

    async def again(running: GatewayService, _: SlowHistory) -> None:
        known = [running.cache.named(f"orders/{name}") is not None for name in ("old", "t-1", "t-2")]
        assert known == [False, True, True]

    with_service(tmp_path, act, dedup_window="10m", dedup_max=100)
    clock(0)
    with_service(tmp_path, again, dedup_window="10m", dedup_max=100)
