"""The daemon that Spark forks its local Python workers from, with their modules preloaded.

Spark's default daemon preloads nothing: each worker, several in the first batch, then takes a second to import pandas,
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
import checkback.reconcile.partition_batch
import checkback.reconcile.processor
import checkback.reconcile.tasks  # noqa: F401

if __name__ == "__main__":
    # A worker runs gc.collect() after each task (pyspark.daemon): without freeze, 70 ms each to scan these modules.
    gc.freeze()
    manager()
