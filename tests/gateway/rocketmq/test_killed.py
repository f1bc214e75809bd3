"""kill -9 of the gateway under the load of RocketMQ's clients: what it has acknowledged is there, once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from checkback.gateway.rocketmq.codes import Code, MessageType
from checkback.gateway.rocketmq.interface import SERVICE, message, parser, serialized
from gateway.process import PATIENCE_S, Gateway, rows
from gateway.rocketmq.calls import TOPIC, msg
from gateway.rocketmq.test_python_client import free_port

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes

KILLS, CLIENTS = 3, 4


class Sender(threading.Thread):
    """Sends half messages one by one, each until it is acknowledged, and ends each likewise; some are rolled back."""

    def __init__(self, port: int, number: int, stop: threading.Event) -> None:
        super().__init__()
        self.port, self.number, self.stop = port, number, stop
        self.ended: dict[str, str] = {}
        self.again = 0

    def run(self) -> None:
        with grpc.insecure_channel(f"127.0.0.1:{self.port}", [("grpc.max_reconnect_backoff_ms", 100)]) as channel:
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
                self.until_ok(channel, "EndTransaction", end, "AnyResponse")
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


def test_acknowledged_is_stored_once(tmp_path: Path) -> None:
    """Half messages and ends are sent again under their ids when an answer was lost."""
    port, http, stop = free_port(), free_port(), threading.Event()
    senders = [Sender(port, number, stop) for number in range(CLIENTS)]
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
