"""The whole way: Apache's client, the gateway, `checkback reconcile`, the topic's table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from checkback.cli import main
from checkback.gateway.health import now_ms
from checkback.gateway.rocketmq.codes import Code, MessageType
from checkback.gateway.rocketmq.interface import message
from gateway.process import PATIENCE_S, Gateway, rows
from gateway.rocketmq.calls import TOPIC, Client, at, msg, with_clients
from gateway.rocketmq.test_python_client import PLAIN, client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from checkback.gateway.rocketmq.server import RocketMQServer
    from checkback.gateway.service import GatewayService

pytestmark = pytest.mark.processes


@contextmanager
def reconciling(root: Path, *settings: str) -> Iterator[None]:
    """Run `checkback reconcile` beside it."""
    command = [sys.executable, "-m", "checkback", "reconcile", "--set", f"storage.root={root}"]
    for setting in ("reconcile.trigger=200ms", "reconcile.partitions=1", "spark.master=local[2]", *settings):
        command += ["--set", setting]
    with (root / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "HOME": str(root)})
        try:
            yield
        finally:
            process.terminate()
            process.wait(2 * PATIENCE_S)


def until(found: Callable[[], Any]) -> Any:
    """What is found, once it is there."""
    waiting = threading.Event()
    for _ in range(10 * PATIENCE_S):
        value = found()
        if value:
            return value
        waiting.wait(0.4)
    raise AssertionError("it has not come")


def table(root: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table; none if it is not there yet."""
    if not DeltaTable.is_deltatable(f"{root}/{name}"):
        return []
    found: list[dict[str, Any]] = DeltaTable(f"{root}/{name}").to_pyarrow_table().to_pylist()
    return found


def test_checked_transaction_is_published_once_and_nobody_is_discarded_unasked(tmp_path: Path) -> None:
    """One client answers its check; the other has gone, and no round of checks is used up by that."""
    with Gateway(tmp_path, PLAIN) as gateway:
        checked = f"{gateway.url}/v1/rocketmq/check"
        told = {"endpoints": [checked], "include_body": True}
        protocol = ("timeout=1s", "check_interval=1s", "check_max=1", "count_undelivered=false")
        settings = [f"transaction.{setting}" for setting in protocol]
        settings += [f"producers={json.dumps({'orders': told, 'gone': told})}"]
        with client(tmp_path, gateway, "half left", topic="gone") as program:
            program.said()
            program.process.wait(PATIENCE_S)
        with client(tmp_path, gateway, "half asked", "wait") as asked, reconciling(tmp_path, *settings):
            asked.said()
            assert asked.said()["checked"] == "asked"
            (published,) = until(lambda: table(tmp_path, "topics/orders"))
            undelivered = until(lambda: answers(tmp_path, "gone")[2:])
            with client(tmp_path, gateway, "wait", topic="gone") as program:
                assert program.said()["checked"] == "left"
                (late,) = until(lambda: table(tmp_path, "topics/gone"))
    assert (published["body"], late["body"]) == (b"asked", b"left")
    assert {row["delivered"] for row in undelivered} == {False}
    assert [row["outcome"] for row in answers(tmp_path, "orders") if row["delivered"]] == ["COMMIT"]
    assert not table(tmp_path, "discarded")
    assert len(rows(tmp_path, "half")) == 2


def test_message_recalled_before_it_was_read_is_not_published(tmp_path: Path) -> None:
    """`reconcile` comes when both are due, and reads the recall with its message."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        stub, due = Client(channel), now_ms() + 1000
        sent = [msg(message_id=name, kind=MessageType.DELAY, delivery_timestamp=at(due)) for name in ("A", "B")]
        handle = (await stub.send(*sent)).entries[0].recall_handle
        request = message("RecallMessageRequest", topic=message("Resource", name=TOPIC), recall_handle=handle)
        told = await stub.call("RecallMessage", request, "RecallMessageResponse")
        assert (told.status.code, told.message_id, due > now_ms()) == (Code.OK, "A", True)

    with_clients(tmp_path, act)
    with reconciling(tmp_path):
        (published,) = until(lambda: table(tmp_path, f"topics/{TOPIC}"))
        (kept,) = until(lambda: table(tmp_path, "discarded"))
    assert (published["transaction_id"], kept["transaction_id"], kept["reason"]) == ("B", "A", "CANCELLED")
    assert main(["audit", "--set", f"storage.root={tmp_path}"]) == 0


def answers(root: Path, group: str) -> list[dict[str, Any]]:
    return [row for row in table(root, "check_answers") if row["producer_group"] == group]
