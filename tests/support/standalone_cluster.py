"""A standalone Spark cluster on this machine: a master and workers, whose Python lacks Checkback."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import venv
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from crash.process import PATIENCE_S, processes
from support.jvm import SHORT_LIVED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).parents[2]
HOME = Path(pyspark.__file__).parent
ZIP = ROOT / "dist/checkback.zip"
_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"


class Cluster:
    """A master, and workers of one core and one GB each. A context manager: all its processes end with it.

    ``environ``: variables that the workers have, and so the drivers on them.
    """

    def __init__(self, folder: Path, environ: Mapping[str, str], workers: int = 2) -> None:
        self._folder, self._environ = folder, environ
        self.python = python_without_checkback(folder / "python")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.url = f"spark://127.0.0.1:{self._port}"
        self._master = self._start("master", _MASTER, "--host", "127.0.0.1", "--port", str(self._port))
        self.workers: list[subprocess.Popen[bytes]] = []
        wait_for(self._listens, self._told)
        for _ in range(workers):
            self.add_worker()
        wait_for(lambda: self._told().count("Registering worker") >= workers, self._told)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.workers, self._master]:
            kill_session(process)

    def add_worker(self) -> subprocess.Popen[bytes]:
        """Another worker."""
        name = f"worker-{len(self.workers)}"
        worker = self._start(
            name,
            _WORKER,
            "--host",
            f"127.0.0.{len(self.workers) + 2}",
            "--cores",
            "1",
            "--memory",
            "1g",
            "--work-dir",
            str(self._folder / name),
            self.url,
        )
        self.workers.append(worker)
        return worker

    def executors(self) -> dict[int, list[int]]:
        """The processes of each running executor, by the process id of its JVM; its Python workers are among them."""
        found: dict[int, list[int]] = {}
        for worker in self.workers:
            for pid in processes(worker.pid):
                if "CoarseGrainedExecutorBackend" in command_line(pid):
                    found[pid] = [pid, *descendants(pid)]
        return found

    def jars(self) -> Path:
        """A folder with the JARs that the executors so far were given."""
        jars = self._folder / "jars"
        jars.mkdir(exist_ok=True)
        for jar in self._folder.glob("worker-*/app-*/*/*.jar"):
            if not (jars / jar.name).exists():
                (jars / jar.name).symlink_to(jar)
        return jars

    def driver(self) -> int | None:
        """The process id of a driver that runs on a worker, in cluster mode; None = none runs."""
        pids = [pid for worker in self.workers for pid in processes(worker.pid)]
        return next((pid for pid in pids if "org.apache.spark.deploy.worker.DriverWrapper" in command_line(pid)), None)

    def driver_log(self) -> str:
        """What the drivers that ran on workers have printed."""
        files = sorted(self._folder.glob("worker-*/driver-*/std*"))
        return "\n".join(file.read_text(errors="replace") for file in files)

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [str(HOME / "bin/spark-class"), *command, "--webui-port", "0"],
                stdout=log,
                stderr=log,
                env={**environ(), **self._environ}
                | {"SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED, "SPARK_DAEMON_MEMORY": "256m"},
                start_new_session=True,
                cwd=self._folder,
            )

    def _listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self._port)) == 0

    def _told(self) -> str:
        return (self._folder / "master.log").read_text(errors="replace")


class Submitted:
    """A running spark-submit in a session of its own."""

    def __init__(self, log: Path, arguments: Sequence[str], more: Mapping[str, str]) -> None:
        """``more``: variables that it has besides this process's."""
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [str(HOME / "bin/spark-submit"), *arguments],
                stdout=out,
                stderr=out,
                env={**environ(), **more},
                start_new_session=True,
                cwd=ROOT,
            )

    def __enter__(self) -> Submitted:
        return self

    def __exit__(self, *_: object) -> None:
        kill_session(self.process)

    def said(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(errors="replace")

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what it must do. Raises AssertionError if it ends before, or takes too long."""
        wait_for(lambda: condition() or self.process.poll() is not None, self.said)
        assert condition(), self.said()


def python_without_checkback(folder: Path) -> Path:
    """A Python that has the packages of this one, and not Checkback, whose editable install is a .pth file there."""
    venv.create(folder, symlinks=True)
    site = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    Path(site, "packages.pth").write_text(sysconfig.get_path("purelib"))
    python = folder / "bin/python"
    command = [str(python), "-c", "import pyspark, checkback"]
    has = subprocess.run(command, capture_output=True, text=True, env=environ(), check=False)
    assert "No module named 'checkback'" in has.stderr, has.stderr
    return python


def package() -> None:
    """`make zip`."""
    subprocess.run(["make", "zip", f"PYTHON={sys.executable}"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)  # noqa: S607


def environ() -> dict[str, str]:
    """The environment, without what would give Python the package or make another Spark of it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "PYTHONP"))}
    return kept | {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1"}


def conf(settings: Mapping[str, str]) -> list[str]:
    """The settings as options of spark-submit."""
    return [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]


def wait_for(condition: Callable[[], bool], told: Callable[[], str]) -> None:
    """Return once it holds. Raises AssertionError with what was ``told`` if that takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(0.5)  # a look at tables in an object store takes CPU time here and in its server


def kill(pids: Sequence[int]) -> None:
    """Kill -9."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill -9 every process of a process's session, until there is none."""
    while members := processes(process.pid):
        kill(members)
        process.poll()
        time.sleep(0.01)
    process.wait(PATIENCE_S)


def command_line(pid: int) -> str:
    """A process's command; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and these."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                parent = re.match(r".*\) \S (\d+)", (entry / "stat").read_text(), re.DOTALL)
                assert parent is not None
                children.setdefault(int(parent[1]), []).append(int(entry.name))
    found = list(children.get(pid, ()))
    for child in found:
        found += children.get(child, ())
    return found
