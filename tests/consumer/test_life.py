"""Producers, consumers and the check server have one life: start, close, and `with` for both."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from checkback.consumer import AsyncPushConsumer, ConsumeResult, PushConsumer
from checkback.errors import SettingsError
from checkback.producer import (
    AsyncTransactionProducer,
    CheckRequest,
    CheckServer,
    LocalTransactionState,
    Message,
    TransactionListener,
    TransactionProducer,
    check_app,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumer.published import Published

pytestmark = pytest.mark.slow

_GATEWAY = "http://127.0.0.1:1"


def _listen(_: Any) -> ConsumeResult:
    return ConsumeResult.SUCCESS


class _Unsure(TransactionListener):
    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:  # noqa: ARG002
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState:  # noqa: ARG002
        return LocalTransactionState.UNKNOWN


async def _listen_later(_: Any) -> ConsumeResult:
    return ConsumeResult.SUCCESS


@pytest.mark.parametrize(
    "make",
    [
        lambda _: TransactionProducer("orders", _GATEWAY),
        lambda _: CheckServer(check_app(_Unsure(), secret=None)),
        lambda lake: PushConsumer("g", lake.tables.root, _listen).subscribe("pay"),
    ],
    ids=["TransactionProducer", "CheckServer", "PushConsumer"],
)
def test_it_starts_and_closes_as_often_as_it_is_told(lake: Published, make: Callable[[Published], Any]) -> None:
    """And is not started again."""
    with make(lake) as running:
        assert running.start() is running
    running.close()
    with pytest.raises(SettingsError, match="was closed; make a new one"):
        running.start()
    never_started = make(lake)
    never_started.close()
    with pytest.raises(SettingsError, match="was closed; make a new one"), never_started:
        pass


@pytest.mark.parametrize(
    "make",
    [
        lambda _: AsyncTransactionProducer("orders", _GATEWAY),
        lambda lake: AsyncPushConsumer("g", lake.tables.root, _listen_later).subscribe("pay"),
    ],
    ids=["AsyncTransactionProducer", "AsyncPushConsumer"],
)
def test_so_in_an_event_loop(lake: Published, make: Callable[[Published], Any]) -> None:
    async def live() -> None:
        async with make(lake) as running:
            assert await running.start() is running
        await running.close()
        with pytest.raises(SettingsError, match="was closed; make a new one"):
            await running.start()

    asyncio.run(live())
