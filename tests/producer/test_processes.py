"""Producers in processes that end or fork: what waits is sent, or told; nothing is shared."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from checkback.producer import LocalTransactionState
from producer.gateways import StubGateway, ids

pytestmark = pytest.mark.processes

COMMIT = LocalTransactionState.COMMIT
PROCESS = """
import os, sys, threading
from datetime import timedelta
from checkback.producer import LocalTransactionState, Message, RetryPolicy, TransactionListener, TransactionProducer

class Listener(TransactionListener):
    def execute_local_transaction(self, message, arg):
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, check):
        raise NotImplementedError

def lost(transaction_id, state, error):
    print("lost", transaction_id, flush=True)

def send(name):
    result = producer.send_in_transaction(Message("payments", b"1", transaction_id=name))
    assert result.raise_for_status().op_sent, result

policy = RetryPolicy(timeout=timedelta(seconds=20))
producer = TransactionProducer("orders", sys.argv[1], Listener(), on_op_error=lost, retry_policy=policy)
"""


def run(url: str, code: str, said: str = "") -> str:
    """What a process with a producer writes to stdout; ``said``: to stderr."""
    ended = subprocess.run(
        [sys.executable, "-c", PROCESS + code, url], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, said)
    return ended.stdout


@pytest.mark.slow
def test_json_without_orjson(gateway: StubGateway) -> None:
    code = "import sys; sys.modules['orjson'] = None" + PROCESS + "send('1'); producer.close()"
    subprocess.run([sys.executable, "-c", code, gateway.url], check=True, timeout=60)
    assert [op["state"] for op in gateway.ops] == ["COMMIT"]
    assert gateway.halves[0]["body"] == "MQ=="


@pytest.mark.slow
def test_end_of_the_interpreter_sends_what_waits(gateway: StubGateway) -> None:
    """Without close, and also when a thread sends until then."""
    out = run(
        gateway.url,
        """
send("main")
threading.Thread(target=send, args=("thread",)).start()
""",
    )
    assert out == ""
    assert {op["transaction_id"] for op in gateway.ops} == {"main", "thread"}


@pytest.mark.slow
def test_sigterm_with_the_pages_handler_sends_what_waits(gateway: StubGateway) -> None:
    page = (Path(__file__).parents[2] / "docs" / "producer.md").read_text()
    handler = re.search(r"^signal\.signal\(.*", page, re.MULTILINE)
    assert handler is not None
    numbers = range(20)
    send = "\n".join(f"send('{number}')" for number in numbers)
    assert run(gateway.url, f"import signal\n{handler[0]}\n{send}\nos.kill(os.getpid(), signal.SIGTERM)") == ""
    assert {op["transaction_id"] for op in gateway.ops} == set(map(str, numbers))


@pytest.mark.slow
def test_end_of_the_interpreter_tells_of_what_it_cannot_send(gateway: StubGateway) -> None:
    gateway.takes_ops.clear()
    said = (
        "transaction first: COMMIT did not land: no answer came before the producer was closed; "
        "the check-back resolves it\n"
        "transaction second: COMMIT did not land: it was not sent before the producer was closed; "
        "the check-back resolves it\n"
    )
    code = """
import time
import checkback.producer.senders
checkback.producer.senders._EXIT_S = 0.2
send("first")
while not producer._senders.outstanding._ops[1].taken:
    time.sleep(0.01)
send("second")
"""
    assert run(gateway.url, code, said) == "lost first\nlost second\n"


@pytest.mark.slow
def test_end_of_a_process_of_multiprocessing_sends_what_waits(gateway: StubGateway) -> None:
    code = """
import multiprocessing
send("parent")
child = multiprocessing.get_context("fork").Process(target=send, args=("child",))
child.start()
child.join()
assert child.exitcode == 0
"""
    assert run(gateway.url, code) == ""
    assert {op["transaction_id"] for op in gateway.ops} == {"parent", "child"}


@pytest.mark.slow
def test_forked_child_shares_neither_connection_nor_what_waits(gateway: StubGateway) -> None:
    """The fork comes while an op and a half message of the parent wait for their answers: they are the parent's."""
    gateway.takes_ops.clear()
    code = """
send("before")  # its op is on its way
pid = os.fork()
if pid == 0:
    send("child")
    sys.exit()
send("parent")
print("sent", flush=True)
_, status = os.waitpid(pid, 0)
assert status == 0, status
send("after")
"""

    def let_go() -> None:
        gateway.until("/v1/ops", 2)  # the parent's first, the child's
        gateway.takes_ops.set()

    with ThreadPoolExecutor(1) as pool:
        letting_go = pool.submit(let_go)
        assert run(gateway.url, code) == "sent\n"
        letting_go.result()
    assert sorted(op["transaction_id"] for op in gateway.ops) == ["after", "before", "child", "parent"]
    assert sum(map(len, ids(gateway, "/v1/ops", "ops"))) == 4
    by_connection = {
        received.connection: {one["transaction_id"] for one in received.json["messages"]}
        for received in gateway.requests("/v1/halves")
    }
    (child,) = [names for names in by_connection.values() if "child" in names]
    assert child == {"child"}
