"""A Spark Connect server on this machine, and Checkback's commands as its clients."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from checkback.settings import Settings
from checkback.spark import jars
from checkback.spark.session import spark_settings
from crash.process import PATIENCE_S, TOO_SLOW
from support.jvm import SHORT_LIVED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).parents[2]
_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


class Server:
    """`sbin/start-connect-server.sh` in the foreground, with Delta and without a setting of Checkback's own."""

    def __init__(
        self, folder: Path, properties: str | None = None, more: Mapping[str, str] | None = None, port: int = 0
    ) -> None:
        """``properties``: a file of conf/ in place of those settings. ``more``: settings besides. ``port``: 0 = any."""
        with socket.create_server(("127.0.0.1", port)) as free:
            port = free.getsockname()[1]
        self.url = f"sc://localhost:{port}"
        self.port = port
        conf = spark_settings(Settings.model_validate({"spark": {"spark.master": "local[2]"}}))
        names: Sequence[str] = ("spark.jars.packages", "spark.jars.excludes", "spark.sql.extensions")
        names = () if properties else (*names, "spark.sql.catalog.spark_catalog")
        conf = {name: conf[name] for name in ("spark.master", *names)}
        conf |= {} if properties else {"spark.jars.ivy": str(jars.folder() / "ivy")}  # which has Delta
        conf |= {
            **(more or {}),
            "spark.connect.grpc.binding.port": str(port),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": SHORT_LIVED,
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
            "spark.databricks.delta.snapshotPartitions": "1",
        }
        home = Path(pyspark.__file__).parent
        command = [str(home / "bin/spark-submit"), "--class", _CLASS, "--name", "checkback-tests"]
        command += ["--properties-file", str(ROOT / "conf" / properties)] if properties else []
        command += [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        self.log = folder / "server.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env=environ() | {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable},
                start_new_session=True,
                cwd=folder,
            )

    def __enter__(self) -> Server:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            time.sleep(0.1)
        self.__exit__()
        raise AssertionError(self.log.read_text())

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def kill(self) -> None:
        """As when its machine fails."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def checkback(self, *arguments: str, **overrides: object) -> subprocess.CompletedProcess[str]:
        """A command of Checkback, run to its end on this server. ``overrides``: ``__`` stands for a dot."""
        command = [sys.executable, "-m", "checkback", *arguments]
        for key, value in overrides.items():
            command += ["--set", f"{key.replace('__', '.')}={json.dumps(value)}"]
        for _ in range(5):
            done = run(command, SPARK_REMOTE=self.url)
            # On a machine that is busy for the seconds that Spark gives a worker to start.
            if TOO_SLOW not in done.stderr:
                break
        return done


def until(done: Callable[[], object]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def run(command: Sequence[str], **more: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        command, capture_output=True, text=True, env=environ() | more, cwd=ROOT, timeout=PATIENCE_S, check=False
    )


def environ() -> dict[str, str]:
    """The environment, without what would make another Spark of it, and with the package on its path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return kept | {"PYTHONPATH": str(ROOT / "lib")}
