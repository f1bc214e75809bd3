"""A door on real tables, in this process."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from checkback.gateway.deduplication.history import DeduplicationHistory
from checkback.gateway.http import decoder
from checkback.gateway.metrics import Metrics
from checkback.gateway.problems import Answer, Problem
from checkback.gateway.service import GatewayService
from checkback.gateway.transaction_queries import TransactionQueries
from checkback.settings import Settings
from gateway.process import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from checkback.gateway.deduplication.remembered_half import RememberedHalf
    from checkback.messages.half import Half
    from checkback.messages.op import RemarkedOp


class SlowHistory(DeduplicationHistory):
    """Tables in which to look for a name takes until it is told to end."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.begun, self.end = threading.Event(), threading.Event()
        self.read = 0

    def named(self, producer_group: str, transaction_id: str, since: float = 0) -> Iterator[list[RememberedHalf]]:
        self.begun.set()
        assert self.end.wait(PATIENCE_S)
        self.read += 1
        return super().named(producer_group, transaction_id, since)


def with_service(
    root: Path,
    act: Callable[[GatewayService, SlowHistory], Awaitable[None]],
    producers: dict[str, object] | None = None,
    **gateway: object,
) -> SlowHistory:
    """A real door on real tables, whose questions are slow, while ``act`` runs; it forgets half messages at once.

    What it has acknowledged is in the tables, unless it is given a journal.
    """
    own = {"acknowledge": "table", "linger": "0s", "dedup_window": "1ms", "dedup_max": 1} | gateway
    settings = Settings.model_validate({"storage": {"root": str(root)}, "gateway": own, "producers": producers or {}})
    history = SlowHistory(root)

    async def run() -> None:
        service = GatewayService(settings, Metrics(), lambda error: pytest.fail(str(error)))
        window_ms = settings.gateway.dedup_window // timedelta(milliseconds=1)
        service.questions = TransactionQueries(history, service.cache, service.tokens, service.health, window_ms)
        committing = asyncio.create_task(service.run())
        try:
            await asyncio.wait_for(act(service, history), PATIENCE_S)
        finally:
            history.end.set()
            service.hurry()
            service.close()
            await committing
            service.questions._thread.shutdown(wait=True)  # a look-up goes on after its question was answered

    asyncio.run(run())
    return history


def code(answer: Answer) -> str | None:
    return answer.code if isinstance(answer, Problem) else None


def half_sent(fields: dict[str, Any], now: int = 1) -> Half | Problem:
    """The half message of a request."""
    return decoder.half_of_body(json.dumps(fields).encode(), now)


def op_sent(fields: dict[str, Any], now: int = 1) -> RemarkedOp | Problem:
    """The op of a request."""
    return decoder.op_of_body(json.dumps(fields).encode(), now)
