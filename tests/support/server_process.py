"""A server of the tests as a process of its own, which prints its port once it serves."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def server_process(module: str, *arguments: str) -> Iterator[int]:
    """The port of a running ``python -m module``; killed at the end."""
    command = [sys.executable, "-m", module, *arguments]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()
