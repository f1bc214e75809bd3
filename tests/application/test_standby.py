"""`reconcile --standby`: ready behind another one, in its place when that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from gateway.process import Gateway, half, op
from release.lake import Lake
from support.jvm import ENVIRON
from support.rows import records_of

pytestmark = pytest.mark.spark
#: for a process to do what it must; a test that needs so long has failed
PATIENCE_S = 120


class Process:
    """A reconcile. Use as a context: it is killed at the end."""

    def __init__(self, lake: Lake, *options: str) -> None:
        given = [f"storage.root={lake.root}", "reconcile.partitions=2", "reconcile.segment_size=64"]
        given += ["reconcile.trigger=200ms", "log.format=json"]
        command = [sys.executable, "-m", "checkback", "reconcile", *options]
        command += [word for setting in given for word in ("--set", setting)]
        self._said = tempfile.NamedTemporaryFile(dir=lake.root.parent)  # noqa: SIM115 - as long as the process
        self.process = subprocess.Popen(command, env={**os.environ, **ENVIRON}, stderr=self._said)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def says(self, text: str) -> None:
        """Wait until it has said so on stderr."""
        until = time.monotonic() + PATIENCE_S
        while text not in Path(self._said.name).read_text():
            assert self.process.poll() is None, "it has ended"
            assert time.monotonic() < until, text

    def stop(self) -> int:
        """The exit code after SIGTERM."""
        self.process.terminate()
        return self.process.wait(PATIENCE_S)


def waiting(lake: Lake, first: Process) -> Process:
    """One that stands by."""
    first.says("query_started")
    found = Process(lake, "--standby")
    found.says("stands by while process")
    return found


def published(lake: Lake) -> list[str]:
    if not (lake.root / "topics/payments/_delta_log/00000000000000000000.json").exists():
        return []
    return sorted(row["transaction_id"] for row in records_of(lake.root, "topics/payments"))


def send(gateway: Gateway, *names: str) -> None:
    for name in names:
        stored = gateway.post("/v1/half", half(name)).json()
        assert gateway.post("/v1/op", op(stored["queue_offset"], name)).status_code == 200


def test_killed_one_is_replaced(tmp_path: Path) -> None:
    """The second goes on within seconds, once for each message; a third waits behind it, and ends when it is told."""
    lake = Lake(tmp_path / "lake")
    with lake.gateway() as gateway, Process(lake) as first, waiting(lake, first) as second:

        def publishes(*names: str) -> float:
            """Send them, and wait until they are there. Returns seconds."""
            begun = time.monotonic()
            send(gateway, *names)
            while not set(names) <= set(published(lake)):
                assert time.monotonic() < begun + PATIENCE_S
                assert second.process.poll() is None
            return time.monotonic() - begun

        publishes("t-0", "t-1")
        first.process.kill()
        print(f"published {publishes('t-2'):.1f} s after the first one was killed")
        with Process(lake, "--standby") as third:
            third.says("query_started")  # that of its small run
            assert third.stop() == 0
        with waiting(lake, second) as third:
            assert (third.stop(), second.stop()) == (0, 0)
    assert published(lake) == ["t-0", "t-1", "t-2"]
    lake.run("audit")
