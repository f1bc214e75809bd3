"""Clients that generators make of the served `/openapi.json`: they have every route, and send README's bodies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from gateway import client_programs as programs
from gateway.process import Gateway
from support.jars import SPARK_JARS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.processes

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


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The gateway of every client: what one has sent, another sends again."""
    with Gateway(tmp_path_factory.mktemp("tables")) as running:
        yield running


@pytest.fixture(scope="module")
def served(gateway: Gateway) -> dict[str, Any]:
    """The document as a gateway serves it."""
    found: dict[str, Any] = gateway.get("/openapi.json").json()
    return found


@pytest.fixture
def document(served: dict[str, Any], tmp_path: Path) -> Path:
    """The file of the document, in a folder for the generated client."""
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(served))
    return path


def _needs(*commands: str) -> None:
    for command in commands:
        if shutil.which(command) is None:
            pytest.skip(f"there is no {command}")


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
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
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


def _members(served: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, schema in served["components"]["schemas"].items():
        for member, described in schema.get("properties", {}).items():
            yield f"{name}.{member}", described


def test_no_member_has_a_default(served: dict[str, Any]) -> None:
    """Generators take such a member for one that is always there, or refuse null beside another default."""
    assert [member for member, described in _members(served) if "default" in described] == []


def test_each_number_has_its_width(served: dict[str, Any]) -> None:
    """Without it generators of Java take 32 bits, too few for an offset or a time."""
    without = [
        member
        for member, described in _members(served)
        for one in described.get("anyOf", [described])
        if one.get("type") in {"integer", "number"} and not one.keys() & {"format", "const"}
    ]
    assert without == []


def test_python_client(gateway: Gateway, document: Path, tmp_path: Path) -> None:
    """By openapi-python-client, in an environment of its own."""
    _run(sys.executable, "-m", "venv", "env", folder=tmp_path)
    python = tmp_path / "env/bin/python"
    _get(python, "-m", "pip", "install", "--quiet", "openapi-python-client", folder=tmp_path)
    make = ("generate", "--path", document, "--output-path", "client", "--meta", "none")
    said = _run(tmp_path / "env/bin/openapi-python-client", *make, folder=tmp_path)
    warnings = {line for line in said.splitlines() if "nsupported" in line or "Unable" in line or "Failure" in line}
    assert not warnings, said
    (tmp_path / "use.py").write_text(programs.PYTHON)
    assert programs.SAID in _run(python, "use.py", gateway.url, folder=tmp_path)


def test_typescript_client(document: Path, tmp_path: Path) -> None:
    """By openapi-typescript, with the strict compiler."""
    _needs("node", "npm")
    _get("npm", "install", "--silent", "--prefix", tmp_path, "openapi-typescript@7", "typescript@5", folder=tmp_path)
    tools = tmp_path / "node_modules/.bin"
    _run(tools / "openapi-typescript", document, "-o", "schema.d.ts", folder=tmp_path)
    (tmp_path / "use.ts").write_text(programs.TYPESCRIPT)
    _run(tools / "tsc", "--noEmit", "--strict", "--target", "es2020", "use.ts", folder=tmp_path)


def test_go_client(gateway: Gateway, document: Path, tmp_path: Path) -> None:
    """By oapi-codegen. Modules can be deleted, as folders of a test are."""
    _needs("go")
    environ = {"GOPATH": str(tmp_path / "modules"), "GOCACHE": str(tmp_path / "cache"), "GOBIN": str(tmp_path)}
    environ |= {"GOFLAGS": "-modcacherw", "GOTOOLCHAIN": "local"}
    _get(
        "go",
        "install",
        "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2",
        folder=tmp_path,
        environ=environ,
    )
    use = tmp_path / "use"
    (use / "client").mkdir(parents=True)
    (use / "main.go").write_text(programs.GO)
    _run("go", "mod", "init", "use", folder=use, environ=environ)
    _get("go", "get", "github.com/oapi-codegen/runtime@v1.5.0", folder=use, environ=environ)
    make = ("-generate", "types,client", "-package", "client", "-o", "client/client.go")
    _run(tmp_path / "oapi-codegen", *make, document, folder=use)
    _run("go", "vet", "./...", folder=use, environ=environ)
    assert programs.SAID in _run("go", "run", ".", gateway.url, folder=use, environ=environ)


def test_java_client(gateway: Gateway, document: Path, tmp_path: Path) -> None:
    """By openapi-generator, which Spark's Ivy fetches; Spark has the other JARs that its client needs."""
    _needs("java", "javac")
    spark = f"{SPARK_JARS}/*"
    ivy = ("java", "-cp", spark, "org.apache.ivy.Main", "-cache", tmp_path / "ivy", "-confs", "default")
    for name, version in (("openapi-generator-cli", "7.25.0"), ("jackson-databind-nullable", "0.2.10")):
        what = ("-dependency", "org.openapitools", name, version, "-notransitive")
        _get(*ivy, *what, "-retrieve", tmp_path / "[artifact].[ext]", folder=tmp_path)
    make = ("generate", "-g", "java", "--library", "native", "-p", "useJakartaEe=true", "-i", document, "-o", "client")
    _run("java", "-jar", "openapi-generator-cli.jar", *make, folder=tmp_path)
    (tmp_path / "Use.java").write_text(programs.JAVA)
    path = f"classes:jackson-databind-nullable.jar:{spark}"
    sources = (tmp_path / "client/src/main/java").rglob("*.java")
    _run("javac", "-d", "classes", "-cp", path, "Use.java", *sources, folder=tmp_path)
    assert programs.SAID in _run("java", "-cp", path, "Use", gateway.url, folder=tmp_path)
