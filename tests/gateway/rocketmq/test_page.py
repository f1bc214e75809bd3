"""The programs of docs/rocketmq-clients.md, each with another port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gateway.process import PATIENCE_S, TO_TABLE, Gateway, rows

pytestmark = pytest.mark.processes

PAGE = Path(__file__).parents[3] / "docs/rocketmq-clients.md"


def test_python(tmp_path: Path) -> None:
    sends_and_commits(tmp_path, "python", [sys.executable, "paid.py"])


#: On a busy machine the first call of a JVM takes longer than the client's three seconds.
PATIENT = ".setRequestTimeout(java.time.Duration.ofSeconds(30))"


def test_java(tmp_path: Path, java: list[str]) -> None:
    sends_and_commits(tmp_path, "java", [java[0], f"-Duser.home={tmp_path}", *java[1:], "paid.java"])


def test_java_with_its_defaults(tmp_path: Path, java: list[str]) -> None:
    """TLS, and any certificate."""
    command = [java[0], f"-Duser.home={tmp_path}", *java[1:], "paid.java"]
    sends_and_commits(tmp_path, "java", command, ".enableSsl(false)")


def test_node(tmp_path: Path, node_path: Path) -> None:
    sends_and_commits(tmp_path, "js", ["node", "paid.js"], NODE_PATH=str(node_path))


def sends_and_commits(folder: Path, language: str, command: list[str], without: str = "", **environ: str) -> None:
    """``without``: a part of the program, without which it speaks TLS."""
    (program,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    port = "rocketmq_port" if without else "rocketmq_plain_port"
    with Gateway(folder, f"gateway.{port.replace('_', '.', 1)}=0", TO_TABLE) as gateway:
        here = program.replace("127.0.0.1:8081", f"127.0.0.1:{gateway.ports[port]}").replace(without, "")
        here = here.replace(".newBuilder()", f".newBuilder(){PATIENT}")
        (folder / command[-1]).write_text(textwrap.dedent(here))
        environ = {**os.environ, "HOME": str(folder), **environ}
        subprocess.run(command, check=True, cwd=folder, env=environ, timeout=4 * PATIENCE_S)
    (half,) = rows(folder, "half")
    (op,) = rows(folder, "op")
    assert (half["real_topic"], half["body"], op["state"]) == ("payments", b"42", "COMMIT")
