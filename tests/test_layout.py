"""The layout: what starts without Spark, jobs that only call, one version."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import checkback

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "lib/checkback"
#: Modules that work without Spark: the protocol, the SDK's formats, settings and the way in.
COMMANDS = sorted(file.stem for file in (PACKAGE / "commands").glob("*.py"))
LIGHT = [
    "cli",
    "storage.log.commit_reader",
    "errors",
    "filter.message_selector",
    "query.versions.as_of",
    "query.status.screen",
    "query.status.diagnosis",
    "messages.half",
    "messages.op",
    "storage.failure_scope",
    "reconcile.segment",
    "spark.session",
    "settings.model",
    "settings.loading",
    "spark.stderr",
    *(f"commands.{name}" for name in COMMANDS),
]


def imports_at_top(file: Path) -> set[str]:
    """What a module imports when it is imported: not in functions, not for type checkers."""
    found: set[str] = set()
    pending = list(ast.parse(file.read_text()).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not (
            isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ):
            pending += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    return found


@pytest.mark.processes
@pytest.mark.parametrize("module", LIGHT)
def test_module_starts_without_spark(module: str) -> None:
    assert "pyspark" not in imports_at_top(PACKAGE / f"{module.replace('.', '/')}.py")
    code = f"import sys, checkback.{module}; print({{'pyspark', 'delta'}} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


def test_the_way_in_needs_the_standard_library_only() -> None:
    allowed = sys.stdlib_module_names | {"checkback"}
    for module in ("__init__", "cli", "errors", "spark/jvm", "spark/session", "spark/stderr"):
        assert imports_at_top(PACKAGE / f"{module}.py") <= allowed


def test_jobs_only_call_the_command() -> None:
    jobs = sorted((ROOT / "jobs").glob("*.py"))
    assert {"land.py", "reconcile.py"} <= {job.name for job in jobs}
    for job in jobs:
        text = job.read_text()
        assert len(text.splitlines()) < 15
        assert re.search(rf'run\("(tx )?{job.stem}"\)', text)


@pytest.mark.processes
def test_version_is_that_of_the_project() -> None:
    version = next(
        line.split('"')[1] for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version")
    )
    assert checkback.__version__ == version
    # Without metadata, as in checkback.zip: the package says it itself.
    code = "import sys; sys.path.insert(0, 'lib'); import checkback; print(checkback.__version__)"
    run = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout == f"{version}\n"


def test_make_lists_its_targets() -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    run = subprocess.run(["/usr/bin/env", "make"], cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
    listed = {line.split()[1] for line in run.stdout.splitlines()}
    assert listed == {
        "help",
        "install",
        "run",
        "run-outbox",
        "run-trace",
        "notebook",
        "docs",
        "screenshots",
        "test",
        "test-fast",
        "test-rest",
        "test-all",
        "simulate",
        "test-crash",
        "test-cluster",
        "test-power",
        "lint",
        "zip",
        "bench",
        "clean",
    }


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        (["JAVA_HOME=/nowhere"], "install Java 17 or 21"),
        (["PYTHON=no-such-python"], "Python 3.10 or newer with venv is needed"),
    ],
)
def test_make_tells_in_one_line_what_to_install(variables: list[str], told: str) -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    command = ["/usr/bin/env", "make", "install", *variables]
    run = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert run.stdout == ""
    lines = [line for line in run.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1
    assert told in lines[0]
