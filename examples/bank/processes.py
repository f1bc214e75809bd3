"""The processes of the example: gateway, accounts, credits; a killed one is restarted."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import requests

from checkback.errors import CheckbackError

#: seconds that a killed service stays away: checks get no answer meanwhile
AWAY_S = 3.0
#: seconds after which it is restarted even if held back
_AWAY_AT_MOST_S = 60.0
_START_S = 30.0
#: from where `-m examples...` finds this package, which is not installed
_CHECKOUT = Path(__file__).parents[2]


def free_port() -> int:
    """A free port of the loopback interface."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@dataclass
class Service:
    """A process running a module, or what ``program`` runs, its output in a log."""

    module: str
    arguments: Sequence[str]
    log: Path
    program: Sequence[str] = (sys.executable, "-m")
    deaths: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _died: float | None = None

    @property
    def started(self) -> bool:
        """True once it was started."""
        return self._process is not None

    def start(self) -> None:
        """Start or restart it."""
        command = [*self.program, self.module, *self.arguments]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=_CHECKOUT,
            )
        self._died = None

    def watch(self, now: float, held: bool = False) -> None:
        """Restart it if it was away long enough, and is not ``held`` back.

        Raises CheckbackError if it has exited by itself.
        """
        if self._process is None or self._process.poll() is None:
            return
        if self._process.returncode >= 0:
            raise CheckbackError(f"{self.module} has ended by itself", str(self.log), "see the log")
        if self._died is None:
            self._died = now
            self.deaths += 1
        elif now - self._died >= (_AWAY_AT_MOST_S if held else AWAY_S):
            self.start()

    def kill(self) -> None:
        """Kill it without warning, as a power cut does."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def stop(self) -> None:
        """Terminate it gracefully."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
        if self._process is not None:
            self._process.wait()


def wait_until_ready(url: str, service: Service) -> None:
    """Return when the gateway accepts requests. Raises CheckbackError if it does not."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        service.watch(time.monotonic())
        try:
            if requests.get(f"{url}/readyz", timeout=1).status_code == requests.codes.ok:
                return
        except requests.RequestException:
            pass
        time.sleep(0.1)
    raise CheckbackError("the gateway does not answer", url, f"see {service.log}")
