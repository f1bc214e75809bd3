"""`checkback reconcile` or `rebuild` as an application of its own: JVM, Python and its workers, killed all at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crash.fates import CHECK_MAX, GROUP
from support.jvm import SHORT_LIVED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: for a process to do what it must; a test that needs so long has failed
PATIENCE_S = 600
TIMEOUT_S, INTERVAL_S = 1, 2
#: Spark gives a worker of its driver 10 s to start. On a machine that is busier than that the application ends, and is
#: started again, as by systemd.
TOO_SLOW = "Python worker failed to connect back"


@dataclass(frozen=True)
class Shape:
    """How the state of `reconcile` is cut and spread: a checkpoint is made with one, and fits no other."""

    segment_size: int = 256
    partitions: int = 2


@dataclass(frozen=True)
class Tuning:
    """Settings that decide, and that may change from one start to the next. Times in s: at least those audited by."""

    timeout: int = TIMEOUT_S
    interval: int = INTERVAL_S
    max_checks: int = 160_000
    max_age: str = "72h"


class Application:
    """A running application in a session of its own (setsid), by which all its processes are found."""

    def __init__(
        self,
        command: str,
        root: str,
        endpoints: Sequence[str],
        *options: str,
        shape: Shape = Shape(),
        tuning: Tuning = Tuning(),
    ) -> None:
        """``command``: reconcile or rebuild."""
        overrides = [
            f"storage.root={root}",
            f"transaction.timeout={tuning.timeout}s",
            f"transaction.check_interval={tuning.interval}s",
            f"transaction.max_age={tuning.max_age}",
            f"reconcile.max_checks={tuning.max_checks}",
            f"transaction.check_max={CHECK_MAX}",
            "reconcile.trigger=300ms",
            f"reconcile.partitions={shape.partitions}",
            f"reconcile.segment_size={shape.segment_size}",
            f"producers.{GROUP}.endpoints={json.dumps(list(endpoints))}",
            "spark.master=local[2]",
            "spark.driver.memory=1g",
            f"spark.driver.extraJavaOptions={SHORT_LIVED}",
            # Each start would compile the plans of a few batches.
            "spark.sql.codegen.wholeStage=false",
            "spark.sql.codegen.factoryMode=NO_CODEGEN",
            "spark.sql.adaptive.enabled=false",
        ]
        line = [sys.executable, "-m", "checkback", command, *options]
        for override in overrides:
            line += ["--set", override]
        self._line = line
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self.process = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._line, stdout=self._stderr, stderr=self._stderr, start_new_session=True, cwd=Path(__file__).parents[2]
        )

    def __enter__(self) -> Application:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._stderr.close()

    def kill(self) -> None:
        """Kill -9 every process of the application, until there is none."""
        deadline = time.monotonic() + PATIENCE_S
        while processes(self.process.pid) and time.monotonic() < deadline:
            kill_session(self.process.pid)
            self.process.poll()
            time.sleep(0.01)
        self.process.wait(PATIENCE_S)

    def stop(self) -> None:
        """End it with SIGTERM, after its batch."""
        self.process.terminate()

    def wait(self) -> tuple[int, str]:
        """The exit code, and what it said."""
        code = self.process.wait(PATIENCE_S)
        return code, self.said()

    def said(self) -> str:
        """What it has printed so far."""
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that it must do. Raises AssertionError when it ends before, or takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if self.process.poll() is not None and TOO_SLOW in self.said():
                self._stderr.seek(0)
                self._stderr.truncate()
                self.process = self._begin()
            assert self.process.poll() is None, f"it has ended: {self.said()}"
            assert time.monotonic() < deadline, f"it does not get on: {self.said()}"
            time.sleep(0.4)


def processes(session: int) -> list[int]:
    """The processes of a session that are no zombies. Spark's Python workers have a process group of their own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    found.append(int(entry.name))
    return found


def kill_session(session: int) -> None:
    """Kill -9 the processes of a session that there are now: a kill of the group would leave some out."""
    for pid in processes(session):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
