"""The S3 server beside a benchmark, on the same cores: moto, in Python, or one that runs on this machine already."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.application import process_seconds
from crash.process import processes
from support.s3_server import s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def store_server() -> Iterator[int]:
    """The server's port.

    ``S3_PORT=n``: that of a server that was started before, with conditional writes, the bucket `lake`, and `test` as
    access key and secret key. moto takes half of a core or more, which a store elsewhere does not.
    """
    port = os.environ.get("S3_PORT")
    if port:
        yield int(port)
        return
    with s3_server() as started:
        yield started


def server_seconds() -> float:
    """CPU time so far of the S3 server, and of a proxy in front of it; only of those that were started here."""
    return sum(process_seconds(pid) for pid in processes(os.getsid(0)) if _is_server(pid))


def _is_server(pid: int) -> bool:
    try:
        words = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    except OSError:  # it has just ended
        return False
    return any(word.endswith((b"s3_server", b"fault_proxy")) for word in words)
