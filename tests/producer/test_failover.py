"""Two real gateways of the same tables, and producers on both while they are killed: nothing lost, nothing doubled."""

from __future__ import annotations

import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert, select

from check.servers import request
from checkback.producer import (
    Barrier,
    BarrierError,
    CheckRequest,
    LocalTransactionState,
    Message,
    SendStatus,
    TransactionListener,
    TransactionProducer,
)
from gateway.process import Gateway, rows

COMMIT = LocalTransactionState.COMMIT
THREADS = 4
#: ROUNDS=50 in the environment: as many kills
KILLS = int(os.environ.get("ROUNDS") or 2)


class Orders(TransactionListener):
    """A row for each local transaction, and its mark."""

    def __init__(self, url: str) -> None:
        self.engine = create_engine(url, connect_args={"timeout": 60})
        self.barrier = Barrier(self.engine)
        self.barrier.create_table()
        metadata = MetaData()
        self.orders = Table("orders", metadata, Column("id", Integer, primary_key=True), Column("name", String(64)))
        metadata.create_all(self.engine)

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState | None:
        try:
            with self.barrier.local_transaction(message) as connection:
                connection.execute(insert(self.orders).values(name=arg))
        except BarrierError as barred:
            return barred.state
        return COMMIT

    def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
        return self.barrier.check(check)

    def committed(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.execute(select(self.orders.c.name)).scalars())


def _gateway(root: Path, queue_id: int, port: int = 0) -> Gateway:
    return Gateway(root, f"gateway.queues=[{queue_id}]", f"gateway.journal={root}-{queue_id}", port=port)


@pytest.mark.processes
def test_gateways_are_killed_in_turn_under_load(tmp_path: Path) -> None:
    """Each transaction that has committed locally is committed at one place, and no other is."""
    listener = Orders(f"sqlite:///{tmp_path}/orders.db")
    root = tmp_path / "data"
    gateways = [_gateway(root, queue_id) for queue_id in range(2)]
    going_on = threading.Event()
    going_on.set()
    sent: list[SendStatus] = []

    def send(thread: int) -> None:
        number = 0
        while going_on.is_set():
            message = Message("payments", b"1", transaction_id=f"t{thread}-{number}")
            sent.append(producer.send_in_transaction(message, message.transaction_id).send_status)
            number += 1

    def until_more(count: int) -> None:
        before = len(sent)
        pause = threading.Event()
        for _ in range(6000):
            if len(sent) >= before + count:
                return
            pause.wait(0.01)
        raise AssertionError("nothing is sent any more")

    try:
        with (
            TransactionProducer("orders", [one.url for one in gateways], listener) as producer,
            ThreadPoolExecutor(THREADS) as pool,
        ):
            threads = [pool.submit(send, thread) for thread in range(THREADS)]
            try:
                for kill in range(KILLS):
                    killed = kill % 2
                    until_more(60)
                    gateways[killed].kill()
                    until_more(60)
                    port = gateways[killed].port
                    gateways[killed] = _gateway(root, killed, port)
                until_more(60)
            finally:
                going_on.clear()
            for thread in threads:
                thread.result()
    finally:
        for one in gateways:
            one.__exit__()
    _prove(listener, root, Counter(sent))


def _prove(listener: Orders, root: Path, sent: Counter[SendStatus]) -> None:
    """What reconcile would decide: the first op of each half message, or the answer to its check."""
    first: dict[tuple[int, int], str] = {}
    for op in rows(root, "op"):
        first.setdefault((op["queue_id"], op["queue_offset"]), op["state"])
    decided: Counter[str] = Counter()
    for half in rows(root, "half"):
        place = half["queue_id"], half["queue_offset"]
        check = request(transaction_id=half["transaction_id"], queue_id=place[0], offset=place[1])
        state = first.get(place) or listener.check_local_transaction(check)
        assert state in {"COMMIT", "ROLLBACK"}
        decided[half["transaction_id"]] += state == "COMMIT"
    local = Counter(listener.committed())
    assert +decided == local
    assert set(local.values()) == {1}
    assert len(local) >= sent[SendStatus.SEND_OK] > 0
    print(f"{KILLS} kills: {dict(sent)}, {len(local)} committed locally, each published once")
    assert {half["queue_id"] for half in rows(root, "half")} == {0, 1}
