"""Plays behaviours through the SDK: producers of both kinds, in real time, and two instances that answer checks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import requests

from checkback.producer import (
    AsyncTransactionListener,
    AsyncTransactionProducer,
    CheckRequest,
    CheckServer,
    LocalTransactionState,
    Message,
    RetryPolicy,
    TransactionListener,
    TransactionProducer,
    TransactionSendResult,
    check_app,
)
from producer.recorded import DECISIVE, EXCEPTION, Behaviour

#: seconds for what must happen; a test that needs so long has failed
PATIENCE_S = 120.0
#: every third behaviour is played by an AsyncTransactionProducer
_ASYNC_SHARE = 3
#: a busy machine is no reason to give a message up
_RETRY_POLICY = RetryPolicy(timeout=timedelta(seconds=20), total_timeout=timedelta(seconds=60))


@dataclass
class Part:
    """One behaviour as it is played: the SDK's result, and what the gateway said to each op sent by hand.

    ``by_hand``: (what: the op's state, "group" or "offset"; HTTP status; code of the problem, or "repeated").
    """

    behaviour: Behaviour
    transaction_id: str = ""
    result: TransactionSendResult | None = None
    by_hand: list[tuple[str, int, str]] = field(default_factory=list)
    checked: threading.Event = field(default_factory=threading.Event)


class Stage:
    """All parts, by the transaction that each has become; safe to use from many threads."""

    def __init__(self, url: str, tokens: Mapping[str, str], plan: Sequence[Behaviour]) -> None:
        self.parts = [Part(behaviour) for behaviour in plan]
        self.stopped = threading.Event()
        self._url, self._tokens = url, tokens
        self._began = 0.0
        self._by_name: dict[tuple[str, str], Part] = {}
        self._session = threading.local()

    def play(self) -> None:
        """Play every part to its end. Raises what a part raises."""
        self._began = time.monotonic()
        threaded = [part for number, part in enumerate(self.parts) if number % _ASYNC_SHARE]
        with ThreadPoolExecutor(len(self.parts) + 1, thread_name_prefix="part") as pool, ExitStack() as stack:
            producers = {
                group: stack.enter_context(
                    TransactionProducer(group, self._url, Local(self), token=token, retry_policy=_RETRY_POLICY)
                )
                for group, token in self._tokens.items()
            }
            tasks = [pool.submit(self._play, producers, part) for part in threaded]
            tasks.append(pool.submit(asyncio.run, self._play_async(pool)))
            try:
                for task in tasks:
                    task.result()
            finally:
                self.stopped.set()

    def part_of(self, group: str, transaction_id: str) -> Part:
        """The part that has become this transaction. Raises KeyError."""
        return self._by_name[group, transaction_id]

    def begin(self, part: Part, message: Message) -> None:
        """The half message is stored, the local transaction runs: checks may come from now on."""
        part.transaction_id = message.transaction_id
        self._by_name[part.behaviour.group, message.transaction_id] = part

    def until(self, moment_s: float) -> float:
        """Seconds from now until a moment of the play."""
        return max(0.0, self._began + moment_s - time.monotonic())

    def now(self) -> float:
        """The moment of the play."""
        return time.monotonic() - self._began

    def _play(self, producers: Mapping[str, TransactionProducer], part: Part) -> None:
        self.stopped.wait(self.until(part.behaviour.begins_s))
        producer = producers[part.behaviour.group]
        part.result = producer.send_in_transaction(part.behaviour.message, part)
        assert producer.flush(timedelta(seconds=PATIENCE_S))  # the ops by hand come after the SDK's
        self._send_by_hand(part)

    async def _play_async(self, pool: ThreadPoolExecutor) -> None:
        producers = {
            group: AsyncTransactionProducer(group, self._url, AsyncLocal(self), token=token, retry_policy=_RETRY_POLICY)
            for group, token in self._tokens.items()
        }

        async def play(part: Part) -> None:
            await asyncio.sleep(self.until(part.behaviour.begins_s))
            producer = producers[part.behaviour.group]
            part.result = await producer.send_in_transaction(part.behaviour.message, part)
            assert await producer.flush(timedelta(seconds=PATIENCE_S))
            await asyncio.get_running_loop().run_in_executor(pool, self._send_by_hand, part)

        await asyncio.gather(*(play(part) for part in self.parts[::_ASYNC_SHARE]))
        for producer in producers.values():
            await producer.close()

    def _send_by_hand(self, part: Part) -> None:
        behaviour, result = part.behaviour, part.result
        assert result is not None
        result.raise_for_status()
        assert result.queue_offset is not None
        op = {
            "queue_id": result.queue_id,
            "queue_offset": result.queue_offset,
            "transaction_id": result.transaction_id,
            "producer_group": behaviour.group,
            "state": "COMMIT",
        }
        if behaviour.misdirected == "group":
            other = next(group for group in self._tokens if group != behaviour.group)
            self._post(part, "group", op | {"producer_group": other}, other)
        if behaviour.misdirected == "offset":
            self._post(part, "offset", op | {"queue_offset": result.queue_offset - 1}, behaviour.group)
        if behaviour.awaits_check:
            assert part.checked.wait(PATIENCE_S), f"no check came for {behaviour.label}"
        since = self.now() if behaviour.awaits_check else behaviour.begins_s
        for state, after_s in behaviour.later:
            self.stopped.wait(self.until(since + after_s))
            self._post(part, state, op | {"state": state}, behaviour.group)

    def _post(self, part: Part, what: str, op: Mapping[str, Any], group: str) -> None:
        if not hasattr(self._session, "requests"):
            self._session.requests = requests.Session()
            self._session.requests.trust_env = False
        headers = {"Authorization": f"Bearer {self._tokens[group]}"}
        answer = self._session.requests.post(f"{self._url}/v1/op", json=op, headers=headers, timeout=PATIENCE_S)
        said = answer.json()
        part.by_hand.append((what, answer.status_code, said.get("code") or ("repeated" if said["repeated"] else "")))


class Local(TransactionListener):
    """The local transactions of the parts; ``arg`` is the part."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def execute_local_transaction(self, message: Message, arg: Part) -> LocalTransactionState | None:
        self._stage.begin(arg, message)
        self._stage.stopped.wait(arg.behaviour.local_s)
        return _ended(arg.behaviour.local)

    def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
        raise NotImplementedError("checks go to the instances A and B")


class AsyncLocal(AsyncTransactionListener):
    """The same for asyncio."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def execute_local_transaction(self, message: Message, arg: Part) -> LocalTransactionState | None:
        self._stage.begin(arg, message)
        await asyncio.sleep(arg.behaviour.local_s)
        return _ended(arg.behaviour.local)

    async def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
        raise NotImplementedError("checks go to the instances A and B")


class Instance(TransactionListener):
    """One of the two instances that answer checks, as the scripts say."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stage: Stage | None = None

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState | None:
        raise NotImplementedError("it answers checks only")

    def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
        assert self.stage is not None
        part = self.stage.part_of(check.producer_group, check.transaction_id)
        try:
            return _ended(part.behaviour.says(check.check_times, self.name))
        finally:
            part.checked.set()


@contextmanager
def instances(secrets: Mapping[str, str]) -> Iterator[dict[str, tuple[str, Instance]]]:
    """Instance -> (its URL, its listener) while they answer; ``secrets`` by group."""
    listeners = {name: Instance(name) for name in "AB"}
    with ExitStack() as stack:
        urls = {
            name: stack.enter_context(CheckServer(check_app(dict.fromkeys(secrets, listener), secret=secrets))).url
            for name, listener in listeners.items()
        }
        yield {name: (urls[name], listener) for name, listener in listeners.items()}


def _ended(said: str) -> LocalTransactionState | None:
    """What a listener returns or raises; to say UNKNOWN it says nothing, which is the same."""
    if said == EXCEPTION:
        raise RuntimeError("the script says so")
    return LocalTransactionState(said) if said in DECISIVE else None
