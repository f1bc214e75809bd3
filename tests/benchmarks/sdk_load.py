"""Transactions through the SDK, one after the other in each thread or task, from a process of its own."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.processes import GROUP
from benchmarks.producers import BODY_BYTES, TOPICS, Load
from checkback.producer import (
    AsyncTransactionListener,
    AsyncTransactionProducer,
    CheckRequest,
    LocalTransactionState,
    Message,
    TransactionListener,
    TransactionProducer,
    TransactionSendResult,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

PACED_THREADS = 16
_BODY = os.urandom(BODY_BYTES)


class _Committed(TransactionListener):
    """A local transaction that does nothing."""

    def execute_local_transaction(self, *_: Any, **__: Any) -> LocalTransactionState | None:
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
        raise NotImplementedError


class _CommittedAsync(AsyncTransactionListener):
    """The same for asyncio."""

    async def execute_local_transaction(self, *_: Any, **__: Any) -> LocalTransactionState | None:
        return LocalTransactionState.COMMIT

    async def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
        raise NotImplementedError


class _Transactions:
    """What the callers have sent, until a time; of a load none may fail."""

    def __init__(self, urls: Sequence[str], seconds: float) -> None:
        self.urls = urls
        self.load = Load()
        self._ended: list[tuple[float, float, int]] = []
        self._lost: list[object] = []
        self._began = time.perf_counter()
        self._until = self._began + seconds

    def options(self) -> dict[str, Any]:
        return {"on_op_error": lambda *lost: self._lost.append(lost)}

    def message(self) -> Message | None:
        """The next message; None: the time is over."""
        if time.perf_counter() >= self._until:
            return None
        number = len(self._ended)
        return Message(f"topic_{number % TOPICS}", _BODY, tags="created", keys=str(number), properties={"region": "eu"})

    def ended(self, sent: float, result: TransactionSendResult) -> None:
        offset = result.raise_for_status().queue_offset
        self._ended.append((time.perf_counter() - sent, time.monotonic(), -1 if offset is None else offset))

    def result(self) -> Load:
        """The load, after all ops have landed."""
        if self._lost:
            raise RuntimeError(f"{len(self._lost)} ops have not landed, the first: {self._lost[0]}")
        self.load.elapsed = time.perf_counter() - self._began
        self.load.acknowledged = self.load.ended = len(self._ended)
        self.load.seconds, self.load.at, self.load.offsets = map(list, zip(*self._ended, strict=True))
        return self.load


def _threads(transactions: _Transactions, number: int, per_second: float = math.inf) -> Load:
    """``per_second``: no more, of all threads together."""

    def run(first: int) -> None:
        due = begin + first / per_second
        while (message := transactions.message()) is not None:
            if (early := due - time.monotonic()) > 0:
                time.sleep(early)
            due += number / per_second
            sent = time.perf_counter()
            transactions.ended(sent, producer.send_in_transaction(message))

    begin = time.monotonic()

    with (
        TransactionProducer(GROUP, transactions.urls, _Committed(), **transactions.options()) as producer,
        ThreadPoolExecutor(number) as pool,
    ):
        for thread in [pool.submit(run, first) for first in range(number)]:
            thread.result()
    return transactions.result()


async def _tasks(transactions: _Transactions, number: int) -> Load:
    async def run() -> None:
        while (message := transactions.message()) is not None:
            sent = time.perf_counter()
            transactions.ended(sent, await producer.send_in_transaction(message))

    async with AsyncTransactionProducer(
        GROUP, transactions.urls, _CommittedAsync(), **transactions.options()
    ) as producer:
        await asyncio.gather(*(run() for _ in range(number)))
    return transactions.result()


def send(kind: str, number: int, seconds: float, urls: Sequence[str]) -> Load:
    """The load of so many ``threads`` or ``tasks`` for so long, run in this process.

    Of kind ``paced``: so many transactions a second, of 16 threads.
    """
    transactions = _Transactions(urls, seconds)
    if kind == "paced":
        return _threads(transactions, PACED_THREADS, number)
    return _threads(transactions, number) if kind == "threads" else asyncio.run(_tasks(transactions, number))


def send_beside(kind: str, number: int, seconds: float, urls: Sequence[str]) -> Load:
    """The same in a process of its own: what this process does meanwhile does not hold it up."""
    command = [sys.executable, "-m", "benchmarks.sdk_load", kind, str(number), str(seconds), *urls]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    return Load(**json.loads(run.stdout))


if __name__ == "__main__":
    _kind, _number, _seconds, *_urls = sys.argv[1:]
    send(_kind, int(_number), float(_seconds), _urls).hand_over()
