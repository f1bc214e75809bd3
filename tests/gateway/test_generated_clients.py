"""Clients that generators make of the served `/openapi.json`: they have every route, and README's bodies compile."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from gateway.process import Gateway

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.slow

OPERATIONS = {
    "/v1/half": {"post": "sendHalf"},
    "/v1/halves": {"post": "sendHalves"},
    "/v1/message": {"post": "sendMessage"},
    "/v1/messages": {"post": "sendMessages"},
    "/v1/op": {"post": "endTransaction"},
    "/v1/ops": {"post": "endTransactions"},
    "/v1/transactions/{transaction_id}": {"get": "getTransaction"},
    "/healthz": {"get": "getHealth"},
    "/readyz": {"get": "getReadiness"},
    "/metrics": {"get": "getMetrics"},
}
#: seconds that a package manager, or a compiler, may take
_PATIENCE_S = 600
#: of README: with no member that may be left out
_PYTHON = """
from client.api.messages import end_transactions, send_half, send_halves, send_message, send_messages
from client.api.operation import get_health, get_metrics, get_readiness
from client.api.transactions import get_transaction
from client.models import HalfMessage, Op, Ops, OpState
half = HalfMessage("order-4711", "orders", "payments", "eyJhbW91bnQiOiA0Mn0=")
assert half.to_dict() == {
    "transaction_id": "order-4711", "producer_group": "orders", "real_topic": "payments", "body": "eyJhbW91bnQiOiA0Mn0="
}
print(Ops([Op(0, 1, "order-4711", "orders", OpState.COMMIT)]).to_dict())
"""
_TYPESCRIPT = """
import type { components, operations } from "./schema";
const half: components["schemas"]["HalfMessage"] = {
  transaction_id: "order-4711", producer_group: "orders", real_topic: "payments", body: "eyJhbW91bnQiOiA0Mn0="
};
const op: components["schemas"]["Op"] = {
  queue_id: 0, half_offset: 1, transaction_id: "order-4711", producer_group: "orders", state: "COMMIT"
};
export const sent: operations["sendHalf"]["requestBody"]["content"]["application/json"] = half;
export const ended: operations["endTransactions"]["requestBody"]["content"]["application/json"] = { ops: [op] };
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The document as a gateway serves it."""
    with Gateway(tmp_path_factory.mktemp("tables")) as gateway:
        found: dict[str, Any] = gateway.get("/openapi.json").json()
    return found


@pytest.fixture
def document(served: dict[str, Any], tmp_path: Path) -> Path:
    """The file of the document, in a folder for the generated client."""
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(served))
    return path


def _needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}")


def _run(*command: str | Path, folder: Path, environ: Mapping[str, str] | None = None) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=os.environ | (environ or {}),
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def _get(*command: str | Path, folder: Path, environ: Mapping[str, str] | None = None) -> None:
    """Get a generator by its package manager; without it the test is skipped."""
    try:
        _run(*command, folder=folder, environ=environ)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"{command[0]} does not get the generator: {str(error)[-300:]}")


def test_each_operation_has_its_name(served: dict[str, Any]) -> None:
    named = {
        path: {method: each["operationId"] for method, each in methods.items()}
        for path, methods in served["paths"].items()
    }
    assert named == OPERATIONS


def test_no_member_has_a_default(served: dict[str, Any]) -> None:
    """Generators take such a member for one that is always there, or refuse null beside another default."""
    members = [
        (name, member)
        for name, schema in served["components"]["schemas"].items()
        for member, described in schema["properties"].items()
        if "default" in described
    ]
    assert members == []


def test_python_client(document: Path, tmp_path: Path) -> None:
    """By openapi-python-client, in an environment of its own."""
    _run(sys.executable, "-m", "venv", "env", folder=tmp_path)
    python = tmp_path / "env/bin/python"
    _get(python, "-m", "pip", "install", "--quiet", "openapi-python-client", folder=tmp_path)
    make = ("generate", "--path", document, "--output-path", "client", "--meta", "none")
    said = _run(tmp_path / "env/bin/openapi-python-client", *make, folder=tmp_path)
    warnings = {line for line in said.splitlines() if "nsupported" in line or "Unable" in line or "Failure" in line}
    assert not warnings, said
    (tmp_path / "use.py").write_text(_PYTHON)
    _run(python, "use.py", folder=tmp_path)


def test_typescript_client(document: Path, tmp_path: Path) -> None:
    """By openapi-typescript, with the strict compiler."""
    _needs("node", "npm")
    _get("npm", "install", "--silent", "--prefix", tmp_path, "openapi-typescript@7", "typescript@5", folder=tmp_path)
    programs = tmp_path / "node_modules/.bin"
    _run(programs / "openapi-typescript", document, "-o", "schema.d.ts", folder=tmp_path)
    (tmp_path / "use.ts").write_text(_TYPESCRIPT)
    _run(programs / "tsc", "--noEmit", "--strict", "--target", "es2020", "use.ts", folder=tmp_path)
