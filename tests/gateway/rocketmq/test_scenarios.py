"""What Apache's clients are told, and what a topic's table then has, against what a RocketMQ server did (recorded.py).

Not among the scenarios: consumers, and a gateway that is killed (test_killed.py, test_python_client.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checkback.gateway.rocketmq.certificate import self_made
from checkback.messages.half import CLIENT_ID
from gateway.process import PATIENCE_S, TO_TABLE, Gateway, rows
from gateway.rocketmq.recorded import CHECK_MAX, JAVA, NO_ROUTE, NODE, ORDER, PYTHON, Recorded
from gateway.rocketmq.test_python_client import PLAIN, rocketmq_port
from gateway.rocketmq.test_whole_way import reconciling, table, until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).with_name("scenarios.py")
PAGE = Path(__file__).parents[3] / "docs/rocketmq-clients.md"
#: the gateway hears of a decision within a second or so
FOLLOWED_S = 5


def described(name: str, root: Path) -> dict[str, Any]:
    """What the topic's table has."""
    found = sorted(table(root, f"topics/{name}"), key=lambda row: (row["half_queue_id"], row["half_queue_offset"]))
    bodies = [row["body"].decode() for row in found if len(row["body"]) < 1000]
    if name == "fields":
        (row,) = found
        properties = {name: text for name, text in row["properties"] if name != CLIENT_ID}
        about = {"tag": row["tags"], "keys": sorted(row["keys"].split()), "properties": properties}
        return {"delivered": bodies, **about}
    if name == "fifo":  # in the order of each group
        return {"delivered": sorted(bodies, key=lambda body: body[:2])}
    if name == "delay":
        due = {row["queue_offset"]: row["deliver_at"] for row in rows(root, "half")}
        early = any(row["published_at"] < due[row["half_queue_offset"]] for row in found)
        return {"delivered": sorted(bodies), "before its time": early}
    return {"delivered": sorted(bodies) if len(found) == len(bodies) <= len(ORDER) else len(found)}


def all_published(root: Path) -> bool:
    """Everything is decided, and what is due soon delivered."""
    decisions, soon = table(root, "decisions"), datetime.now(timezone.utc) + timedelta(hours=1)
    due = [row for row in decisions if row["deliver_at"] is not None and row["deliver_at"] < soon]
    return len(decisions) == len(table(root, "half")) and len(due) == len(table(root, "deliveries"))


def outcomes(root: Path, endpoint: str, *names: str, **environ: str) -> dict[str, dict[str, Any]]:
    """By scenario, what the client was told."""
    command = [sys.executable, str(PROGRAM), str(root), endpoint, *names]
    run = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "HOME": str(root), **environ}
    )
    return {line.pop("scenario"): line for line in map(json.loads, run.stdout.splitlines())}


@contextmanager
def deciding(root: Path, scenarios: Iterable[str]) -> Iterator[str]:
    """The endpoint for clients, while the gateway and `checkback reconcile` run; at the end all is published."""
    protocol = (f"check_max={CHECK_MAX}", "timeout=4s", "check_interval=1s", "count_undelivered=false")
    with Gateway(root, PLAIN, "delay.max=1d") as gateway:
        producer = {"endpoints": [f"{gateway.url}/v1/rocketmq/check"], "include_body": True}
        settings = [f"transaction.{setting}" for setting in protocol] + ["delay.max=1d"]
        settings += [f"producers={json.dumps(dict.fromkeys(scenarios, producer))}"]
        with reconciling(root, *settings):
            yield f"127.0.0.1:{rocketmq_port(gateway)}"
            until(lambda: all_published(root))


def compare(told: dict[str, dict[str, Any]], recorded: Recorded, root: Path) -> None:
    expected = {name: dict(outcome) for name, outcome in recorded.outcomes.items()}
    for name, what, value, _ in recorded.differences:
        expected[name][what] = value
    found = {name: told[name] | described(name, root) for name in expected}
    assert {name: outcome for name, outcome in found.items() if outcome != expected[name]} == {}
    command = [sys.executable, "-m", "checkback", "audit", "--set", f"storage.root={root}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=4 * PATIENCE_S)
    assert run.returncode == 0, run.stdout + run.stderr


def test_python_as_at_a_rocketmq_server_or_as_the_page_says(tmp_path: Path) -> None:
    """All at once: they mostly wait."""
    with deciding(tmp_path, PYTHON.outcomes) as endpoint:
        told = outcomes(tmp_path, endpoint, *PYTHON.outcomes)
    compare(told, PYTHON, tmp_path)


def test_java_as_at_a_rocketmq_server_or_as_the_page_says(tmp_path: Path, java: list[str]) -> None:
    program = [java[0], f"-Duser.home={tmp_path}", *java[1:], str(PROGRAM.with_name("Scenarios.java"))]
    with deciding(tmp_path, JAVA.outcomes) as endpoint, acting([*program, endpoint, *JAVA.outcomes]) as process:
        assert said(process) == "acted\n"
        until(lambda: all_published(tmp_path))
        threading.Event().wait(FOLLOWED_S)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        told = json.loads(said(process))
    compare(told, JAVA, tmp_path)


def test_node_as_at_a_rocketmq_server_or_as_the_page_says(tmp_path: Path, node_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "NODE_PATH": str(node_path)}
    with deciding(tmp_path, NODE.outcomes) as endpoint:
        command = ["node", str(PROGRAM.with_suffix(".js")), endpoint, *NODE.outcomes]
        with acting(command, **environ) as process:
            told = {one.pop("scenario"): one for one in json.loads(said(process))}
            until(lambda: all_published(tmp_path))  # its answer to a check is on its way
    compare(told, NODE, tmp_path)


@contextmanager
def acting(command: list[str], **environ: str) -> Iterator[subprocess.Popen[str]]:
    """The running program, which ends with its stdin."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env={**os.environ, **environ}, **pipes) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def said(process: subprocess.Popen[str]) -> str:
    """The next line of it."""
    assert process.stdout is not None
    return process.stdout.readline()


def test_differences_are_on_the_page() -> None:
    lines = PAGE.read_text().splitlines()
    for recorded in (PYTHON, JAVA, NODE):
        for name, what, value, row in recorded.differences:
            assert recorded.outcomes[name][what] != value
            assert any(line.startswith(f"| {row}") for line in lines), row


def test_credentials_over_tls(tmp_path: Path) -> None:
    """Told as by a RocketMQ server. Python's client verifies the certificate, and hides the code 40100."""
    token, (key, chain) = "0123456789abcdef", self_made()
    files = {"key": key, "certificate": chain}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    settings = ["gateway.rocketmq.port=0", *(f"gateway.rocketmq.{name}={tmp_path / name}" for name in files)]
    accounts = {f"namespace:{token}": "OK", "namespace:wrong": NO_ROUTE, f"stock:{token}": NO_ROUTE, ":": NO_ROUTE}
    trusting = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(tmp_path / "certificate")}
    environ = {"CHECKBACK__PRODUCERS__namespace__TOKEN": token}
    with Gateway(tmp_path, *settings, TO_TABLE, environ=environ) as gateway:
        at = f"127.0.0.1:{gateway.ports['rocketmq_port']}"
        for account, told in accounts.items():
            assert outcomes(tmp_path, f"tls://{account}@{at}", "namespace", **trusting)["namespace"]["send"] == told
        trusting["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = ""
        told = outcomes(tmp_path, f"tls://namespace:{token}@{at}", "namespace", **trusting)["namespace"]["send"]
        assert told == NO_ROUTE
    assert len(rows(tmp_path, "half")) == 1
