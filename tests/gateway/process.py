"""`checkback gateway` as a process of its own, its tables, and requests to it."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests
from deltalake import DeltaTable

if TYPE_CHECKING:
    import pyarrow as pa

_LISTENING = re.compile(r"http://(?:127\.0\.0\.1|\[::1\]):(\d+)")
#: for a process to do what it must; a test that needs so long has failed
PATIENCE_S = 30


#: what is acknowledged is in the tables, without a journal
TO_TABLE = "gateway.acknowledge=table"


class Gateway:
    """A running gateway on a ``port`` (0: a free one). Use as a context: it ends with SIGTERM.

    ``listening_socket``: its limit, as `ulimit` takes it: "-S -n 64"; None = that of this process.
    """

    def __init__(
        self,
        root: Path | str,
        *overrides: str,
        environ: dict[str, str] | None = None,
        port: int = 0,
        open_files: str | None = None,
    ) -> None:
        command = [sys.executable, "-m", "checkback", "gateway", "--port", str(port), "--set", f"storage.root={root}"]
        for override in overrides:
            command += ["--set", override]
        if open_files is not None:
            command = ["sh", "-c", f'ulimit {open_files}; exec "$@"', "sh", *command]
        self.root = str(root)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **(environ or {})},
            cwd=Path(__file__).parents[2],
            start_new_session=True,  # without a terminal, as a service has none
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        found = _LISTENING.search(line)
        if found is None:
            raise AssertionError(f"the gateway has not started: {self.wait()}")
        self.port = int(found.group(1))
        #: those for RocketMQ's clients, by setting
        self.ports = {name: int(port) for name, port in re.findall(r"(rocketmq\w*) (\d+)", line)}
        self.url = f"http://127.0.0.1:{self.port}"
        self.session = requests.Session()
        self.session.trust_env = False

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()
        if self.process.poll() is None:
            self.process.terminate()
            self.wait()

    def wait(self) -> tuple[int, str]:
        """The exit code, and what it said on stderr."""
        code = self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._stderr.seek(0)
        return code, self._stderr.read().decode()

    def stop(self) -> tuple[int, str]:
        """End it with SIGTERM; the exit code, and what it said on stderr."""
        self.process.terminate()
        return self.wait()

    def kill(self) -> None:
        """Kill -9."""
        self.process.kill()
        self.wait()

    def post(self, path: str, content: Any, token: str | None = None) -> requests.Response:
        """POST JSON."""
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return self.session.post(f"{self.url}{path}", data=json.dumps(content), headers=headers, timeout=PATIENCE_S)

    def get(self, path: str, token: str | None = None, **query: str) -> requests.Response:
        """GET."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self.session.get(f"{self.url}{path}", params=query, headers=headers, timeout=PATIENCE_S)


def half(transaction_id: str = "t-1", **fields: Any) -> dict[str, Any]:
    """A half message as a producer sends it."""
    body = base64.b64encode(f"body of {transaction_id}".encode()).decode()
    message = {"transaction_id": transaction_id, "producer_group": "orders", "real_topic": "payments", "body": body}
    return message | fields


def op(queue_offset: int, transaction_id: str = "t-1", state: str = "COMMIT", **fields: Any) -> dict[str, Any]:
    """An op as a producer sends it."""
    message = {
        "queue_id": 0,
        "queue_offset": queue_offset,
        "transaction_id": transaction_id,
        "producer_group": "orders",
        "state": state,
    }
    return message | fields


def table(root: Path | str, name: str) -> pa.Table:
    """All rows of a table."""
    return DeltaTable(f"{root}/{name}").to_pyarrow_table()


def rows(root: Path | str, name: str) -> list[dict[str, Any]]:
    """All rows of a table, in the order of their offsets."""
    found: list[dict[str, Any]] = table(root, name).to_pylist()
    return sorted(found, key=lambda row: (row["queue_id"], row["queue_offset"]))
