"""kill -9 of the gateway under the load of RocketMQ's clients: what it has acknowledged is there, once."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from checkback.cli import main
from checkback.gateway.rocketmq.codes import Code, MessageType
from checkback.gateway.rocketmq.interface import SERVICE, message, parser, serialized
from gateway.process import PATIENCE_S, Gateway, rows, table
from gateway.rocketmq.calls import TOPIC, msg
from gateway.rocketmq.test_python_client import free_port

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes

KILLS, CLIENTS = 3, 4


class Sender(threading.Thread):
    """Sends half messages one by one, each until it is acknowledged, and ends each likewise; some are rolled back.

    ``ports``: of the gateway that takes its half messages, and of that which ends them.
    """

    def __init__(self, ports: tuple[int, int], number: int, stop: threading.Event) -> None:
        super().__init__()
        self.ports, self.number, self.stop = ports, number, stop
        self.ended: dict[str, str] = {}
        self.again = 0

    def run(self) -> None:
        with _channel(self.ports[0]) as channel, _channel(self.ports[1]) as ending:
            count = 0
            while not self.stop.is_set():
                count += 1
                message_id = f"{self.number}-{count}"
                half = msg(kind=MessageType.TRANSACTION, message_id=message_id)
                request = message("SendMessageRequest", messages=[half])
                sent = self.until_ok(channel, "SendMessage", request, "SendMessageResponse")
                resolution = 2 if count % 5 == 0 else 1
                named = {"topic": message("Resource", name=TOPIC), "transaction_id": sent.entries[0].transaction_id}
                end = message("EndTransactionRequest", resolution=resolution, **named)
                self.until_ok(ending, "EndTransaction", end, "AnyResponse")
                self.ended[message_id] = ("COMMIT", "ROLLBACK")[resolution - 1]

    def until_ok(self, channel: Any, method: str, request: Any, kind: str) -> Any:
        call = channel.unary_unary(f"/{SERVICE}/{method}", serialized, parser(kind))
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                metadata = [("x-mq-client-id", f"client-{self.number}")]
                response = call(request, metadata=metadata, timeout=3, wait_for_ready=True)
            except grpc.RpcError:
                self.again += 1
                continue
            if response.status.code == Code.OK:
                return response
            self.again += 1
        raise AssertionError(f"{method} is not acknowledged: {response.status}")


def _channel(port: int) -> Any:
    return grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.max_reconnect_backoff_ms", 100)])


def test_acknowledged_is_stored_once(tmp_path: Path) -> None:
    """Half messages and ends are sent again under their ids when an answer was lost."""
    port, http, stop = free_port(), free_port(), threading.Event()
    senders = [Sender((port, port), number, stop) for number in range(CLIENTS)]
    settings = f"gateway.rocketmq.plain_port={port}"
    gateway = Gateway(tmp_path, settings, port=http)
    for sender in senders:
        sender.start()
    for _ in range(KILLS):
        seen = sum(len(sender.ended) for sender in senders)
        while sum(len(sender.ended) for sender in senders) < seen + 50:
            stop.wait(0.01)
        gateway.kill()
        gateway = Gateway(tmp_path, settings, port=http)
    stop.set()
    for sender in senders:
        sender.join(2 * PATIENCE_S)
    with gateway:
        gateway.stop()
    ended = {message_id: state for sender in senders for message_id, state in sender.ended.items()}
    halves = {(row["queue_id"], row["queue_offset"]): row["transaction_id"] for row in rows(tmp_path, "half")}
    assert Counter(halves.values()) == Counter(ended.keys())
    ops = [(halves[row["queue_id"], row["queue_offset"]], row["state"]) for row in rows(tmp_path, "op")]
    assert Counter(ops) == Counter(ended.items())
    assert sum(sender.again for sender in senders) > 0


def test_transactions_of_two_gateways_are_published_once(tmp_path: Path) -> None:
    """One takes the half message, the other one ends it, and both are killed."""
    ports, stop = [free_port(), free_port()], threading.Event()
    senders = [Sender((ports[number % 2], ports[(number + 1) % 2]), number, stop) for number in range(CLIENTS)]

    def started(number: int) -> Gateway:
        own = {"queues": f"[{number}]", "journal": tmp_path / f"journal-{number}", "rocketmq.plain_port": ports[number]}
        return Gateway(tmp_path, *(f"gateway.{name}={value}" for name, value in own.items()))

    gateways = [started(number) for number in range(2)]
    for sender in senders:
        sender.start()
    for kill in range(KILLS + 1):
        seen = sum(len(sender.ended) for sender in senders)
        while sum(len(sender.ended) for sender in senders) < seen + 50:
            stop.wait(0.01)
        gateways[kill % 2].kill()
        gateways[kill % 2] = started(kill % 2)
    stop.set()
    for sender in senders:
        sender.join(2 * PATIENCE_S)
    for gateway in gateways:
        with gateway:
            gateway.stop()
    told = ["--set", f"storage.root={tmp_path}", "--set", "spark.master=local[2]"]
    subprocess.run([sys.executable, "-m", "checkback", "reconcile", "--available-now", *told], check=True)
    ended = {message_id: state for sender in senders for message_id, state in sender.ended.items()}
    published = Counter(table(tmp_path, f"topics/{TOPIC}").column("transaction_id").to_pylist())
    assert published == Counter(message_id for message_id, state in ended.items() if state == "COMMIT")
    assert main(["audit", *told[:2]]) == 0
