"""The daemon that Spark forks its local Python workers from, with their modules preloaded.

Spark's default daemon preloads nothing: each worker, several in the first batch, then takes a second to import pandas,
Arrow and the code of a batch (``spark.python.daemon.module``; org.apache.spark.api.python.PythonWorkerFactory).

And a worker that finds its socket closed ends without a traceback on stderr: when Spark stops, it closes the sockets of
idle workers, and one that notices before its signal comes fails to report that (``pyspark.daemon.worker``).
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import numpy  # noqa: F401
import pandas  # noqa: F401
import pyarrow.compute
import pyarrow.parquet  # noqa: F401
import pyspark.sql.pandas.serializers
import pyspark.worker  # noqa: F401
from pyspark import daemon

if TYPE_CHECKING:
    from socket import socket

_worker = daemon.worker


def worker(sock: socket, authenticated: bool) -> int:
    """Serve tasks on ``sock`` like ``pyspark.daemon.worker``; 1, without an error, if Spark has closed it."""
    try:
        return _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1


if __name__ == "__main__":
    # A worker runs gc.collect() after each task (pyspark.daemon): without freeze, 70 ms each to scan these modules.
    gc.freeze()
    daemon.worker = worker
    daemon.manager()
