"""`checkback` as a process of its own, as users run it, and the CPU time that it takes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.processes import MASTER
from checkback.errors import CheckbackError
from crash.process import kill_session, processes

if TYPE_CHECKING:
    from collections.abc import Callable

#: for a process to do what it must
PATIENCE_S = 600
_POLL_S = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")


def command(root: str, *words: str, **overrides: str) -> list[str]:
    """A command line; of ``overrides`` a name is the setting's, with __ for its dot."""
    line = [sys.executable, "-m", "checkback", *words, "--set", f"storage.root={root}"]
    for name, value in {"spark__spark.master": MASTER, **overrides}.items():
        line += ["--set", f"{name.replace('__', '.', 1)}={value}"]
    return line


class Application:
    """`checkback reconcile`, running on. Use as a context: at its end it is told to stop, after its batch."""

    def __init__(self, root: str, **overrides: str) -> None:
        self._commits = Path(root, "_checkpoints", "reconcile", "commits")
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        # In a session of its own, by which all its processes are found.
        self._process = subprocess.Popen(
            command(root, "reconcile", **overrides), stdout=self._said, stderr=self._said, start_new_session=True
        )

    def __enter__(self) -> Application:
        """Ready: its first batch is done."""
        try:
            self.until(lambda: self.batches() > 0)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._process.terminate()
                self._process.wait(PATIENCE_S)
        finally:
            self._kill()
        if kind is None and self._process.returncode:
            raise CheckbackError(f"reconcile has failed: {self._last_words()}")

    def _kill(self) -> None:
        """Kill -9 whatever of it is left."""
        kill_session(self._process.pid)
        self._process.wait()

    def batches(self) -> int:
        """Batches that are done: the newest that the checkpoint names."""
        with suppress(FileNotFoundError):
            return 1 + max((int(name) for name in os.listdir(self._commits) if name.isdecimal()), default=-1)
        return 0

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that it must do. Raises CheckbackError when it ends before, or takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if self._process.poll() is not None:
                raise CheckbackError(f"reconcile has ended: {self._last_words()}")
            if time.monotonic() > deadline:
                raise CheckbackError(f"reconcile does not get on: {self._last_words()}")
            time.sleep(_POLL_S)

    def quiet(self, seconds: float) -> None:
        """Wait until no batch has been done for so long."""
        while True:
            before = self.batches()
            time.sleep(seconds)
            if self.batches() == before:
                return

    def cpu_seconds(self) -> dict[int, float]:
        """User and system time so far of each process: the JVM, Python, its workers.

        Of one that ends nobody keeps account: compare those that are there at the end.
        """
        return {member: process_seconds(member) for member in processes(self._process.pid)}

    def _last_words(self) -> str:
        self._said.seek(0)
        return self._said.read().decode(errors="replace").strip()[-500:]


def process_seconds(pid: int) -> float:
    """CPU time so far of a process: utime and stime (proc(5), /proc/PID/stat)."""
    with suppress(OSError, IndexError):
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / _TICKS
    return 0.0
