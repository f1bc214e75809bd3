"""The SDK against the real gateway, a process of its own, and Delta tables."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import requests
from deltalake import DeltaTable

from check.servers import Received, Server, Wire, reply
from checkback.producer import LocalTransactionState, Message, SendStatus, TransactionProducer
from producer.sending import MESSAGE, SENDERS, Listener, Sender

pytestmark = pytest.mark.processes

pytest.importorskip("uvicorn", reason="uvicorn is not installed: the gateway does not run")

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN
TOKEN = "token-of-orders-0123456789"


@dataclass
class Gateway:
    """Where it listens, and what has landed."""

    url: str
    root: Path

    def rows(self, table: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = DeltaTable(str(self.root / table)).to_pyarrow_table().to_pylist()
        return found


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    root = tmp_path_factory.mktemp("gateway")
    settings = ["--set", f"storage.root={root}", "--set", "gateway.port=0", "--set", "producers.orders.token=env:T"]
    settings += ["--set", "gateway.acknowledge=table"]  # the tests read the tables at once
    with subprocess.Popen(
        [sys.executable, "-m", "checkback", "gateway", *settings],
        env={**os.environ, "T": TOKEN},
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
    ) as process:
        try:
            assert process.stdout is not None
            address = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
            assert address is not None
            yield Gateway(address.group(), root)
        finally:
            process.terminate()
            assert process.wait(60) == 0


@pytest.mark.parametrize("kind", SENDERS)
@pytest.mark.parametrize("state", [COMMIT, ROLLBACK, UNKNOWN])
def test_what_was_sent_is_what_has_landed(gateway: Gateway, kind: str, state: LocalTransactionState) -> None:
    result, listener = Sender(kind).send(gateway.url, lambda *_: state, token=TOKEN)
    assert result.send_status is SendStatus.SEND_OK, result
    assert result.local_transaction_state is state
    (half,) = [row for row in gateway.rows("half") if row["transaction_id"] == result.transaction_id]
    assert (half["queue_id"], half["queue_offset"]) == (result.queue_id, result.queue_offset)
    assert (half["body"], half["real_topic"], half["real_queue_id"]) == (MESSAGE.body, "payments", 2)
    assert (half["tags"], half["keys"], dict(half["properties"])) == ("created", "4711", {"region": "eu"})
    assert half["check_immunity_s"] == 30
    ops = [row for row in gateway.rows("op") if row["transaction_id"] == result.transaction_id]
    assert [op["state"] for op in ops] == ([] if state is UNKNOWN else [state.value])
    assert [op["queue_offset"] for op in ops] == [result.queue_offset] * len(ops)
    assert len(listener.calls) == 1


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_messages_without_a_transaction_are_stored_committed(gateway: Gateway, kind: str) -> None:
    at = datetime(2026, 12, 24, 18, tzinfo=timezone.utc)
    delays: list[dict[str, Any]] = [{}, {"delay_level": 3}, {"delay": timedelta(minutes=3)}, {"deliver_at": at}]
    sent = [Message("receipts", b"%d" % number, **delay) for number, delay in enumerate(delays)]
    twice = Message("receipts", b"twice", transaction_id=f"receipt-{kind}")
    refused = Message("receipts", b"other", transaction_id=f"receipt-{kind}")
    results = Sender(kind).send_batch(gateway.url, [*sent, twice, twice, refused], token=TOKEN)
    (alone,) = Sender(kind).send_batch(gateway.url, [twice], token=TOKEN)
    assert [result.send_status.value for result in results] == ["SEND_OK"] * 6 + ["REJECTED"]
    assert results[4] == results[5] == alone
    assert results[6].error is not None
    assert results[6].error.code == "contradiction"
    rows = {row["queue_offset"]: row for row in gateway.rows("half")}
    found = [rows[result.queue_offset] for result in results[:5]]
    assert [row["body"] for row in found] == [b"0", b"1", b"2", b"3", b"twice"]
    assert [row["delay_ms"] for row in found] == [None, 10_000, 180_000, None, None]
    assert [row["deliver_at"] for row in found] == [None, None, None, at, None]
    assert all(row["committed"] for row in found)


@pytest.mark.parametrize("kind", SENDERS)
def test_reply_lost_after_storing_lands_once(gateway: Gateway, kind: str) -> None:
    """Between producer and gateway every second reply gets lost; each half and op lands once all the same."""
    seen: Counter[bytes] = Counter()

    def forward(received: Received, wire: Wire) -> bool:
        answer = requests.post(
            gateway.url + received.path,
            data=received.body,
            headers={"Authorization": received.headers["authorization"], "Content-Type": "application/json"},
            timeout=10,
        )
        seen[received.body] += 1
        if seen[received.body] == 1:
            return False
        wire.send(reply(answer.content, f"{answer.status_code} Forwarded"))
        return True

    with Server(forward) as proxy:
        result, listener = Sender(kind).send(proxy.address, lambda *_: COMMIT, token=TOKEN)
    assert list(seen.values()) == [2, 2]
    assert result.op_sent
    assert len(listener.calls) == 1
    for table in ("half", "op"):
        assert sum(row["transaction_id"] == result.transaction_id for row in gateway.rows(table)) == 1


@pytest.mark.parametrize(
    ("message", "token", "status", "code"),
    [
        (MESSAGE, "token-of-another-0123456789", 401, None),
        (MESSAGE, None, 401, None),
        (Message("payments", b"other", transaction_id="order-1"), TOKEN, 409, "contradiction"),
    ],
)
def test_half_refused_runs_no_local_transaction(
    gateway: Gateway, message: Message, token: str | None, status: int, code: str | None
) -> None:
    """No token, a wrong one, and an id that is taken by another message."""
    first = Message("payments", b"first", transaction_id="order-1")
    assert Sender("sync").send(gateway.url, lambda *_: COMMIT, first, token=TOKEN)[0].op_sent
    result, listener = Sender("sync").send(gateway.url, lambda *_: COMMIT, message, token=token)
    assert result.send_status is SendStatus.REJECTED
    assert result.half_error is not None
    assert result.half_error.status == status
    assert code is None or result.half_error.code == code
    assert TOKEN not in str(result.half_error)
    assert not listener.calls


def test_op_that_contradicts_an_earlier_one_is_told(gateway: Gateway) -> None:
    """The same transaction sent again, with another end: the first one stands."""
    message = Message("payments", b"twice", transaction_id="order-2")
    assert Sender("sync").send(gateway.url, lambda *_: COMMIT, message, token=TOKEN)[0].op_sent
    sender = Sender("sync")
    result, _ = sender.send(gateway.url, lambda *_: ROLLBACK, message, token=TOKEN)
    assert result.send_status is SendStatus.SEND_OK
    ((transaction_id, state, error),) = sender.lost
    assert (transaction_id, state, error.status) == ("order-2", ROLLBACK, 409)
    assert [row["state"] for row in gateway.rows("op") if row["transaction_id"] == "order-2"] == ["COMMIT"]


@pytest.mark.parametrize("kind", SENDERS)
def test_transaction_that_was_rolled_back_is_not_run_again(gateway: Gateway, kind: str) -> None:
    """Its COMMIT would not count: the local transaction would have committed, and nothing been published."""
    message = Message("payments", b"again", transaction_id=f"order-{kind}")
    assert Sender(kind).send(gateway.url, lambda *_: ROLLBACK, message, token=TOKEN)[0].op_sent
    result, listener = Sender(kind).send(gateway.url, lambda *_: COMMIT, message, token=TOKEN)
    assert result.send_status is SendStatus.REJECTED
    assert result.half_error is not None
    assert (result.half_error.status, result.half_error.code) == (409, "contradiction")
    assert "the transaction has ended with ROLLBACK" in str(result.half_error)
    assert not listener.calls


def test_one_producer_many_threads(gateway: Gateway) -> None:
    listener = Listener(lambda _, arg: COMMIT if arg % 2 else ROLLBACK)
    with TransactionProducer("orders", gateway.url, listener, token=TOKEN) as producer, ThreadPoolExecutor(16) as pool:
        sent = list(pool.map(lambda n: producer.send_in_transaction(Message("many", b"%d" % n), n), range(160)))
    assert all(result.op_sent for result in sent)
    assert len({result.queue_offset for result in sent}) == 160
    states = {row["transaction_id"]: row["state"] for row in gateway.rows("op")}
    for number, result in enumerate(sent):
        assert states[result.transaction_id] == ("COMMIT" if number % 2 else "ROLLBACK")
    bodies = {row["queue_offset"]: row["body"] for row in gateway.rows("half")}
    assert [bodies[result.queue_offset] for result in sent] == [b"%d" % number for number in range(160)]
