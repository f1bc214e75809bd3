"""The process that Spark forks its Python workers from, on this machine: what they import, it has imported already.

Spark's own imports nothing; each worker, of which a first batch starts several, then takes a second to import pandas,
Arrow and the code of a batch (``spark.python.daemon.module``; org.apache.spark.api.python.PythonWorkerFactory).
"""

from __future__ import annotations

import gc

import numpy  # noqa: F401
import pandas  # noqa: F401
import pyarrow.compute
import pyarrow.parquet  # noqa: F401
import pyspark.sql.pandas.serializers
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import checkback.check.worker
import checkback.reconcile.processor
import checkback.reconcile.tasks  # noqa: F401

if __name__ == "__main__":
    # After each task a worker collects garbage (pyspark.daemon): 70 ms to look through what is imported here, for ever.
    gc.freeze()
    manager()
