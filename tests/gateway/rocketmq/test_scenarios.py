"""What Apache's clients are told, and what a topic's table then has, against what a RocketMQ 5.3.3 server did.

Its outcomes were recorded with the same clients (Python 5.1.2, Node.js 1.0.8), and consumers of RocketMQ instead of the
table. Not among the scenarios: consumers, and a gateway that is killed (test_killed.py, test_python_client.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checkback.gateway.rocketmq.certificate import self_made
from gateway.process import PATIENCE_S, TO_TABLE, Gateway, rows
from gateway.rocketmq.test_python_client import PLAIN, rocketmq_port
from gateway.rocketmq.test_whole_way import reconciling, table, until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).with_name("scenarios.py")
PAGE = Path(__file__).parents[3] / "docs/rocketmq-clients.md"
CHECK_MAX = 4
OK, NO_TRANSACTION, REFUSED = 20000, "ClientException 50001", "IllegalArgumentException"
NO_ROUTE, FORBIDDEN, TOO_LARGE = "Exception", "BadRequestException 40007", "RequestHeaderFieldsTooLargeException 43101"
ASKED = {"asked about": ["half", "tagA", ["k1", "k2"], "7", False], "same message id": True}
ORDER = [f"{group}-{number}" for group in ("g1", "g2", "g3") for number in range(10)]

#: scenario -> what the client was told, and the bodies delivered (of many, how many)
BROKER: dict[str, dict[str, Any]] = {
    "tx_commit": {
        "visible before": False,
        "commit": OK,
        "transaction id is the message id": True,
        "delivered": ["hello"],
    },
    "tx_rollback": {"rollback": OK, "checks": 0, "delivered": []},
    "tx_check_commit": {"checks": 1, **ASKED, "delivered": ["half"]},
    "tx_check_rollback": {"checks": 1, **ASKED, "delivered": []},
    "tx_check_unknown": {"checks": CHECK_MAX, **ASKED, "delivered": []},
    "tx_checker_raises": {"checks": CHECK_MAX, **ASKED, "delivered": []},
    "tx_checker_returns_none": {"checks": CHECK_MAX, **ASKED, "delivered": []},
    "tx_unknown_then_commit": {"checks": 3, **ASKED, "delivered": ["half"]},
    "tx_raises_then_commit": {"checks": 2, **ASKED, "delivered": ["half"]},
    "tx_kill9": {"died": -9, "checks": 1, "delivered": ["from the killed one"]},
    "tx_two_producers": {
        "checks of the sender": 5,
        "of the other one": 5,
        "delivered": [f"m{number}" for number in range(10)],
    },
    "tx_topic_not_declared": {"checks": 1, "delivered": ["half"]},
    "tx_undeclared_after_start": {"checks": 0, "delivered": []},
    "tx_no_checker": {"begin": REFUSED, "delivered": []},
    "tx_second_end": {
        "commit commit": [OK, NO_TRANSACTION],
        "rollback commit": [OK, NO_TRANSACTION],
        "commit rollback": [OK, NO_TRANSACTION],
        "rollback rollback": [OK, NO_TRANSACTION],
        "delivered": ["commit commit", "commit rollback"],
    },
    "tx_wrong_ids": {
        "unknown transaction id": 50001,
        "empty transaction id": 40008,
        "wrong message id": OK,
        "wrong topic": 50001,
        "right one after it": OK,
        "unspecified": OK,
        "commit after it": NO_TRANSACTION,
        "delivered": ["w1", "w2"],
    },
    "tx_late_commit": {"commit": OK, "delivered": ["half"]},
    "tx_very_late_commit": {"commit": NO_TRANSACTION, "checks": CHECK_MAX, "delivered": []},
    "tx_commit_and_check": {"told": [OK], "delivered": 20},  # 8 of the 12 twice
    "tx_misuse": {
        "commit without a message": REFUSED,
        "second message": REFUSED,
        "with a delay": REFUSED,
        "with a group": REFUSED,
        "delivered": ["half"],
    },
    "fields": {
        "send": "OK",
        "delivered": ["grüße 你好"],
        "tag": "tag-ü",
        "keys": ["2", "k", "k1", "ключ"],
        "properties": {
            "a": "b",
            "unicode": "grüße 你好 🙂",
            "spaces": " x ",
            "quote": "\"'\\",
            "sep": "a|b;c=d,e",
            "Key.With-odd_chars": "1",
            "ключ": "значение",
        },
    },
    "odd_properties": {
        "newline in a value": FORBIDDEN,
        "tab": FORBIDDEN,
        "newline in a name": FORBIDDEN,
        "empty value": REFUSED,
        "blank value": REFUSED,
        "empty name": REFUSED,
        "TAGS": FORBIDDEN,
        "KEYS": FORBIDDEN,
        "UNIQ_KEY": FORBIDDEN,
        "15 kB": "OK",
        "17 kB": TOO_LARGE,
        "128": "OK",
        "129": TOO_LARGE,
        "| in the tag": REFUSED,
        "newline in the tag": "BadRequestException 40004",
        "newline in a key": "BadRequestException 40005",
        "blank tag": REFUSED,
        "delivered": ["128", "15 kB"],
    },
    "bodies": {
        "0": REFUSED,
        "1": "OK",
        "1024": "OK",
        "4194303": "OK",
        "4194304": "OK",
        "4194305": REFUSED,
        "delivered": 4,
    },
    "topics": {
        "topics": NO_ROUTE,
        "a b": REFUSED,
        "a/b": REFUSED,
        "tö": REFUSED,
        "": REFUSED,
        "%odd%": NO_ROUTE,
        "TBW102": NO_ROUTE,
        "%RETRY%g": NO_ROUTE,
        "p.dot": REFUSED,
        "system": NO_ROUTE,
        "127": NO_ROUTE,
        "128": NO_ROUTE,
        "delivered": [],
    },
    "types": {"FIFO": REFUSED, "DELAY": REFUSED, "NORMAL": REFUSED, "TRANSACTION": OK, "delivered": ["TRANSACTION"]},
    "delay": {
        "due": "OK",
        "past": "OK",
        "now": "OK",
        "23 h": "OK",
        "25 h": "BadRequestException 40012",
        "in milliseconds": "InternalErrorException 50001",
        "delivered": ["due", "now", "past"],
        "before its time": False,
    },
    "fifo": {"delivered": ORDER},
    "threads": {"OK": 1000, "delivered": 1000},
    "tx_threads": {str(OK): 1000, "delivered": 800},
    "namespace": {"send": "OK", "delivered": ["ns"]},
    "lost_answer": {"told": "OK", "sent": 2, "ids": 1, "delivered": ["x", "x"]},
    # it stores both; what came of the other one was not recorded
    "lost_answer_to_half": {"told": OK, "sent": 2, "ids": 1, "delivered": ["half"]},
}
#: the same with the client for Node.js
BROKER_OF_NODE: dict[str, dict[str, Any]] = {
    "n_commit": {"commit": "OK", "commit again": "InternalErrorException 50001", "delivered": ["hello"]},
    "n_check": {"asked about": ["half", "half"], "delivered": ["half"]},
    "n_errors": {
        "newline": FORBIDDEN,
        "empty value": "OK",
        "empty body": "UnsupportedException 41302",
        "body too large": "TypeError",
        "unknown topic": "NotFoundException 40402",
        "FIFO": "TypeError",
        "delivered": ["empty value"],
    },
}
REJECTED = "ClientException 42800"
_AGAIN, _DECIDED, _UNKNOWN = "50001 to a second commit", "50001 to a commit after a rollback", "50001 to an unknown"
_ANY_TOPIC = "a topic exists, with one type"
#: (scenario, what, what it is here, the row of the page that says so)
DIFFERS: list[tuple[str, str, Any, str]] = [
    ("tx_commit", "transaction id is the message id", False, "the transaction id is the message id"),
    ("tx_two_producers", "checks of the sender", 10, "spreads checks over all producers"),
    ("tx_two_producers", "of the other one", 0, "spreads checks over all producers"),
    ("tx_undeclared_after_start", "checks", 1, "asks nobody about a topic"),
    ("tx_undeclared_after_start", "delivered", ["half"], "asks nobody about a topic"),
    ("tx_second_end", "commit commit", [OK, OK], _AGAIN),
    ("tx_second_end", "rollback rollback", [OK, OK], _AGAIN),
    ("tx_second_end", "rollback commit", [OK, REJECTED], _DECIDED),
    ("tx_second_end", "commit rollback", [OK, REJECTED], _DECIDED),
    ("tx_wrong_ids", "unknown transaction id", 40008, _UNKNOWN),
    ("tx_wrong_ids", "wrong topic", 40008, _UNKNOWN),
    ("tx_wrong_ids", "commit after it", OK, "refuses a commit after UNKNOWN"),
    ("tx_wrong_ids", "delivered", ["w1", "w2", "w3"], "refuses a commit after UNKNOWN"),
    ("tx_very_late_commit", "commit", REJECTED, _DECIDED),
    ("tx_commit_and_check", "delivered", [f"m{number}" for number in sorted(range(12), key=str)], "may deliver twice"),
    ("topics", "topics", "OK", _ANY_TOPIC),
    ("topics", "delivered", ["x"], _ANY_TOPIC),
    *(("types", kind, "OK", _ANY_TOPIC) for kind in ("FIFO", "DELAY", "NORMAL")),
    ("types", "delivered", ["DELAY", "FIFO", "NORMAL", "TRANSACTION"], _ANY_TOPIC),
    ("delay", "in milliseconds", "BadRequestException 40012", "50001 to a delivery time"),
    ("lost_answer", "delivered", ["x"], "stores a message sent again"),
    ("n_commit", "commit again", "OK", _AGAIN),
    ("n_errors", "unknown topic", "OK", _ANY_TOPIC),
    ("n_errors", "FIFO", "OK", _ANY_TOPIC),
    ("n_errors", "delivered", ["FIFO", "empty value"], _ANY_TOPIC),
]


def described(name: str, root: Path) -> dict[str, Any]:
    """What the topic's table has."""
    found = sorted(table(root, f"topics/{name}"), key=lambda row: (row["half_queue_id"], row["half_queue_offset"]))
    bodies = [row["body"].decode() for row in found if len(row["body"]) < 1000]
    if name == "fields":
        (row,) = found
        about = {"tag": row["tags"], "keys": sorted(row["keys"].split()), "properties": dict(row["properties"])}
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


def compare(told: dict[str, dict[str, Any]], broker: dict[str, dict[str, Any]], root: Path) -> None:
    expected = {name: dict(outcome) for name, outcome in broker.items()}
    for name, what, value, _ in DIFFERS:
        if name in broker:
            expected[name][what] = value
    found = {name: told[name] | described(name, root) for name in broker}
    assert {name: outcome for name, outcome in found.items() if outcome != expected[name]} == {}
    command = [sys.executable, "-m", "checkback", "audit", "--set", f"storage.root={root}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=4 * PATIENCE_S)
    assert run.returncode == 0, run.stdout + run.stderr


def test_python_as_at_a_rocketmq_server_or_as_the_page_says(tmp_path: Path) -> None:
    """All at once: they mostly wait."""
    with deciding(tmp_path, BROKER) as endpoint:
        told = outcomes(tmp_path, endpoint, *BROKER)
    compare(told, BROKER, tmp_path)


def test_node_as_at_a_rocketmq_server_or_as_the_page_says(tmp_path: Path, node_path: Path) -> None:
    program = PROGRAM.with_suffix(".js")
    environ = {**os.environ, "HOME": str(tmp_path), "NODE_PATH": str(node_path)}
    with deciding(tmp_path, BROKER_OF_NODE) as endpoint:
        command = ["node", str(program), endpoint, *BROKER_OF_NODE]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as process:
            assert process.stdout is not None
            told = {one.pop("scenario"): one for one in json.loads(process.stdout.readline() or "[]")}
            until(lambda: all_published(tmp_path))  # its answer to a check is on its way
    compare(told, BROKER_OF_NODE, tmp_path)


def test_differences_are_on_the_page() -> None:
    lines = PAGE.read_text().splitlines()
    for name, what, value, row in DIFFERS:
        assert (BROKER | BROKER_OF_NODE)[name][what] != value
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
