"""Apache's Python client, unchanged, at a gateway that is a process of its own; and its numbers, against ours."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checkback.check.client import CheckClient
from checkback.check.endpoint import CheckedGroup
from checkback.check.wire import CheckRequest, Message
from checkback.gateway.rocketmq import interface
from gateway.process import PATIENCE_S, TO_TABLE, Gateway, rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.processes

CLIENT = Path(__file__).parent / "python_client.py"
PLAIN = "gateway.rocketmq.plain_port=0"
#: what a descriptor says of a field on the wire: an enum is an int32, a map repeated pairs
_DESCRIBE = """
import json
from rocketmq.grpc_protocol import definition_pb2, service_pb2
found = {}
for file in (definition_pb2.DESCRIPTOR, service_pb2.DESCRIPTOR):
    for name, message in file.message_types_by_name.items():
        fields = [(f.name, f.number, f.type if f.enum_type is None else 5, bool(f.is_repeated)) for f in message.fields]
        found[name] = {name: rest for name, *rest in fields}
        nested = {n: [[f.name, f.number, f.type] for f in m.fields] for n, m in message.nested_types_by_name.items()}
        found[name] |= {"nested": nested} if nested else {}
print(json.dumps(found))
"""
#: ours -> theirs
_NAMES = {
    "Time": ("Timestamp",),
    "UserAgent": ("UA",),
    "Property": (),
    "AnyRequest": (),
    "AnyResponse": ("HeartbeatResponse",),
}


def rocketmq_port(gateway: Gateway) -> int:
    return gateway.ports["rocketmq_plain_port"]


class Program:
    """A running client. ``said``: the next line of it."""

    def __init__(self, home: Path, *arguments: str) -> None:
        command = [sys.executable, str(CLIENT), *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "HOME": str(home)}
        )

    def said(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line: dict[str, Any] = json.loads(self.process.stdout.readline() or "{}")
        return line

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextmanager
def client(
    home: Path, gateway: Gateway, *steps: str, topic: str = "orders", credentials: str = ""
) -> Iterator[Program]:
    program = Program(home, f"{credentials}127.0.0.1:{rocketmq_port(gateway)}", topic, *steps)
    try:
        yield program
    finally:
        program.process.kill()
        program.process.communicate()


def ask(gateway: Gateway, half: dict[str, Any], secret: str | None = None, others: Sequence[Gateway] = ()) -> Any:
    """As `reconcile` asks."""
    request = CheckRequest(
        half["queue_id"],
        half["queue_offset"],
        half["transaction_id"],
        "orders",
        "orders",
        1,
        None,
        Message(half["body"], half["tags"], half["keys"], dict(half["properties"])),
    )
    endpoints = tuple(f"{one.url}/v1/rocketmq/check" for one in (gateway, *others))
    group = CheckedGroup(endpoints, secret, include_body=True)
    with CheckClient({"orders": group}, PATIENCE_S) as asking:
        return asking.ask(request)


def connected(gateway: Gateway, **environ: str) -> list[dict[str, Any]]:
    """What `checkback clients` lists."""
    command = [sys.executable, "-m", "checkback", "clients", "-o", "json", "--set", f"gateway.port={gateway.port}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environ})
    assert (run.returncode, run.stderr) == (0, "")
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_transactions_of_a_client_that_knows_nothing_of_us(tmp_path: Path) -> None:
    """Sent, committed, rolled back, ended again, and answered by its checker."""
    steps = ("send", "half a", "commit a", "commit a", "half b", "rollback b", "commit b", "half c", "wait")
    with Gateway(tmp_path, PLAIN, TO_TABLE) as gateway, client(tmp_path, gateway, *steps) as program:
        said = [program.said() for _ in range(8)]
        halves = {row["body"].decode(): row for row in rows(tmp_path, "half")}
        listed = connected(gateway)
        answer = ask(gateway, halves["c"])
        checked = program.said()
        metrics = gateway.get("/metrics").text
    assert said[0] == {"sent": 0}
    assert [(one["language"], one["version"], one["topics"]) for one in listed] == [("PYTHON", "5.1.2", ["orders"])]
    assert listed[0]["address"].startswith("ipv4:127.0.0.1:")
    ends = [one.get("ended", one.get("error")) for one in (*said[2:4], *said[5:7])]
    assert ends == [20000, 20000, 20000, "ClientException"]
    assert "the transaction has ended with ROLLBACK" in said[6]["message"]
    assert [half["half"] for half in (said[1], said[4], said[7])] == [halves[name]["transaction_id"] for name in "abc"]
    assert (checked["checked"], checked["properties"]["a"], checked["corrupted"]) == ("c", "b", False)
    assert (answer.outcome, answer.error, answer.delivered) == ("COMMIT", None, True)
    decided = {
        halves[name]["queue_offset"]: state for name, state in (("a", "COMMIT"), ("b", "ROLLBACK"), ("c", "COMMIT"))
    }
    assert {row["queue_offset"]: row["state"] for row in rows(tmp_path, "op")} == decided
    assert "checkback_gateway_rocketmq_clients 1.0" in metrics
    assert re.search(r'requests_total\{route="rocketmq/EndTransaction",status="42800"\} 1.0', metrics)


def test_check_with_nobody_connected_was_not_delivered(tmp_path: Path) -> None:
    """With transaction.count_undelivered=false it uses up none."""
    with Gateway(tmp_path, PLAIN, TO_TABLE) as gateway:
        with client(tmp_path, gateway, "half a") as program:
            program.said()
            program.process.wait(PATIENCE_S)
        (half,) = rows(tmp_path, "half")
        answer = ask(gateway, half)
    assert (answer.outcome, answer.delivered) == ("NO_ANSWER", False)
    assert answer.error == "no client of the group is connected there"


def test_check_goes_on_to_the_gateway_with_the_client(tmp_path: Path) -> None:
    """Two gateways of the same tables: the half message is the first one's, which ends, and its client comes back."""
    both = (PLAIN, TO_TABLE)
    with Gateway(tmp_path, *both) as first, Gateway(tmp_path, *both, "gateway.queues=[1]") as second:
        with client(tmp_path, first, "half a") as program:
            program.said()
            program.process.wait(PATIENCE_S)
        (half,) = rows(tmp_path, "half")
        with client(tmp_path, second, "send", "wait") as program:
            program.said()
            answer = ask(first, half, others=(second,))
            assert program.said()["checked"] == "a"
    assert (answer.outcome, answer.delivered) == ("COMMIT", True)
    assert answer.endpoint == f"{second.url}/v1/rocketmq/check"
    assert [error for _, error in answer.failed_tries] == ["no client of the group is connected there"]
    assert [(row["queue_id"], row["state"]) for row in rows(tmp_path, "op")] == [(0, "COMMIT")]


def test_another_process_of_the_group_is_asked(tmp_path: Path) -> None:
    """The one that sent the half message is killed; the gateway, too."""
    with Gateway(tmp_path, PLAIN, TO_TABLE) as gateway:
        with client(tmp_path, gateway, "half a", "wait") as program:
            program.said()
            program.process.kill()
            program.process.wait(PATIENCE_S)
        gateway.kill()
    with Gateway(tmp_path, PLAIN, TO_TABLE) as gateway, client(tmp_path, gateway, "send", "wait") as program:
        program.said()
        (half, _) = rows(tmp_path, "half")
        assert ask(gateway, half).outcome == "COMMIT"
        assert program.said()["checked"] == "a"


def test_lost_stream_is_renewed_when_the_gateway_is_back(tmp_path: Path) -> None:
    """Python's client would else not be asked for ten minutes: its next QueryRoute, every 30 s, mends it."""
    port, http = free_port(), free_port()
    settings = (f"gateway.rocketmq.plain_port={port}", TO_TABLE)
    with Gateway(tmp_path, *settings, port=http) as gateway, client(tmp_path, gateway, "half a", "wait") as program:
        program.said()
        (half,) = rows(tmp_path, "half")
        gateway.kill()
        with Gateway(tmp_path, *settings, port=http) as again:
            outcomes: deque[str] = deque()
            found, end = threading.Event(), threading.Event()

            def ask_until() -> None:
                while not end.is_set():
                    outcomes.append(ask(again, half).outcome)
                    if outcomes[-1] == "COMMIT":
                        found.set()
                        return
                    end.wait(1)

            asking = threading.Thread(target=ask_until)
            asking.start()
            assert found.wait(2 * PATIENCE_S), outcomes
            end.set()
            asking.join()
            assert program.said()["checked"] == "a"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def test_credentials_of_a_group(tmp_path: Path) -> None:
    """The access key is the group, the secret its token; checks must be signed with the group's secret."""
    secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3"
    environ = {
        "CHECKBACK__PRODUCERS__orders__TOKEN": "0123456789abcdef",
        "CHECKBACK__PRODUCERS__orders__SECRET": secret,
    }
    with Gateway(tmp_path, PLAIN, TO_TABLE, environ=environ) as gateway:
        with client(tmp_path, gateway, "send", credentials="orders:fedcba9876543210@") as program:
            assert program.said()["error"] == "Exception"  # it hides the code
        with client(tmp_path, gateway, "half a", "wait", credentials="orders:0123456789abcdef@") as program:
            program.said()
            (half,) = rows(tmp_path, "half")
            for wrong in (None, "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"):
                answer = ask(gateway, half, wrong)
                assert (answer.outcome, answer.error) == ("NO_ANSWER", "status 401")
            assert ask(gateway, half, secret).outcome == "COMMIT"
            assert [one["topics"] for one in connected(gateway, **environ)] == [["orders"]]
            assert gateway.get("/v1/rocketmq/clients").status_code == 401


def test_port_with_tls(tmp_path: Path) -> None:
    """Java's client takes any certificate, and speaks HTTP/2 by ALPN."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with Gateway(tmp_path, "gateway.rocketmq.port=0") as gateway:
        address = ("127.0.0.1", gateway.ports["rocketmq_port"])
        with socket.create_connection(address, PATIENCE_S) as plain, context.wrap_socket(plain) as secured:
            assert secured.selected_alpn_protocol() == "h2"


def test_without_a_port_grpc_is_not_needed(tmp_path: Path) -> None:
    """checkback[gateway] does not bring it; with a port the gateway says what to install."""
    program = "import sys; sys.modules['grpc'] = None; from checkback.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "gateway", "--port", "0", "--set", f"storage.root={tmp_path}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("checkback gateway: http://")
        process.terminate()
    run = subprocess.run([*command, "--set", PLAIN], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr == (
        "checkback: gateway.rocketmq: the Python module grpc is missing; install checkback[rocketmq]\n"
    )


def test_numbers_of_the_interface_are_apaches(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _DESCRIBE],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    theirs = json.loads(run.stdout)
    assert theirs["Message"].pop("nested") == {"UserPropertiesEntry": [["key", 1, 9], ["value", 2, 9]]}
    compared = 0
    for name, kind in interface._CLASSES.items():
        for other in _NAMES.get(name, (name,)):
            fields = {f.name: [f.number, f.type, bool(f.is_repeated)] for f in kind.DESCRIPTOR.fields}
            known = theirs.get(other, {"seconds": [1, 3, False], "nanos": [2, 5, False]})
            assert {key: known.get(key) for key in fields} == fields, name
            compared += 1
    assert compared > 25
