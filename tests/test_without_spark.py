"""Commands as `pip install checkback[...]` of an extra other than `spark` leaves them: neither pyspark nor py4j."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import requests

from check.servers import Server, always, reply
from checkback.settings import Storage
from checkback.storage.tables import Tables
from consumer.heard import until
from consumer.published import Published
from gateway.process import PATIENCE_S, TO_TABLE, Gateway, rows
from push.test_push_command import Pushing
from support.installed import brought_by, environ

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes
#: what a service installs
SERVICE = ("gateway", "rocketmq", "producer", "barrier", "consumer", "dashboard", "metrics", "otel")


def _command(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command where `checkback` is installed without an extra."""
    command = [sys.executable, "-m", "checkback", *arguments, "--set", f"storage.root={root}/lake"]
    found = {**os.environ, **environ(root / "modules")}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["topic", "list"],
        ["tx", "list"],
        ["audit"],
        ["maintain"],
        ["maintain", "--repair"],
        ["group", "list"],
    ],
    ids=" ".join,
)
def test_command_needs_no_spark(tmp_path: Path, arguments: list[str]) -> None:
    no_spark: Any = None
    Tables.of(Storage(root=f"{tmp_path}/lake")).create(no_spark, "half", "op", "decisions", "batches")
    run = _command(tmp_path, *arguments)
    assert (run.returncode, run.stderr) == (0, "")


def test_command_that_needs_spark_names_what_to_install(tmp_path: Path) -> None:
    run = _command(tmp_path, "reconcile", "--available-now")
    assert run.returncode == 2
    assert run.stderr == "checkback: the Python module pyspark is missing; install checkback[spark]\n"


def test_services_installation_has_no_spark() -> None:
    """485 MB of pyspark, and what comes with it."""
    assert not brought_by(*SERVICE) & {"delta-spark", "pandas", "py4j", "pyspark"}
    assert {"pyspark", "py4j", "pandas"} <= brought_by("spark")


_SERVICE = """
import sys
from checkback.consumer import ConsumeResult, PushConsumer
from checkback.producer import LocalTransactionState, Message, TransactionListener, TransactionProducer

class Payment(TransactionListener):
    def execute_local_transaction(self, message, arg):
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, check):
        return LocalTransactionState.COMMIT

def consume(message):
    print(message.transaction_id, flush=True)
    return ConsumeResult.SUCCESS

url, root = sys.argv[1:]
with TransactionProducer("orders", url, Payment()) as producer:
    producer.send_in_transaction(Message("payments", b"1", transaction_id="t-1")).raise_for_status()
print("sent", flush=True)
sys.stdin.readline()
with PushConsumer("billing", root, consume).subscribe("payments"):
    sys.stdin.readline()
"""


def test_service_needs_nothing_that_its_installation_does_not_bring(tmp_path: Path) -> None:
    """From its start to a message consumed: gateway, producer, consumer, webhook, dashboard. Spark is elsewhere."""
    found, root = environ(tmp_path / "modules", *SERVICE), str(tmp_path / "lake")
    about: Any = {"env": {**os.environ, **found}, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with Gateway(root, TO_TABLE, environ=found) as gateway:
        program = [sys.executable, "-c", _SERVICE, gateway.url, root]
        with subprocess.Popen(program, **about) as service:
            assert service.stdin is not None
            assert service.stdout is not None
            assert service.stdout.readline() == "sent\n"
            (sent,) = rows(tmp_path / "lake", "half")
            assert [row["state"] for row in rows(tmp_path / "lake", "op")] == ["COMMIT"]
            lake = Published(Tables.of(Storage(root=root)))
            lake.publish({"payments": [lake.messages(1, transaction_id=sent["transaction_id"])]})
            service.stdin.write("consume\n")
            service.stdin.flush()
            assert service.stdout.readline() == "t-1\n"
            service.stdin.close()
        assert service.returncode == 0
        with (
            Server(always(reply(b"", "204 No Content"))) as server,
            Pushing(root, "mail", "payments", "--url", server.url, environ=found),
        ):
            until(lambda: server.received)
        dashboard = [sys.executable, "-m", "checkback", "dashboard", "--port", "0", "--set", f"storage.root={root}"]
        with subprocess.Popen(dashboard, **about) as shown:
            assert shown.stdout is not None
            url = shown.stdout.readline().split()[-1]
            try:
                page = requests.get(url, timeout=PATIENCE_S)
            finally:
                shown.terminate()
        assert (page.status_code, "payments" in page.text) == (200, True)
