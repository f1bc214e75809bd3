"""The class-data archive: Spark's and Delta's classes as a JVM has them in memory, for a start that need not load them.

Without it a start reads, checks and links some 20,000 classes, which takes half of its time. It belongs to one JVM and
one class path (Java's "Application Class-Data Sharing"); a JVM that it does not fit goes on without it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.jars import CLASS_PATH, cache
from checkback.schemas import SCHEMAS, arrow_schema
from checkback.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

OPTIONS = "spark.driver.extraJavaOptions"
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_PATIENCE_S = 300
#: archives that are kept, the newest: one for each place where Checkback is installed
_KEPT = 3

_log = logging.getLogger(__name__)


def with_archive(conf: Mapping[str, str], java: str) -> dict[str, str]:
    """The settings, with the archive of this JVM and class path if it has been made."""
    file, options = archive_of(conf, java), conf.get(OPTIONS, "")
    if file is None or not file.is_file() or "SharedArchive" in options or "ArchiveClassesAtExit" in options:
        return dict(conf)
    return {**conf, OPTIONS: f"{options} -XX:SharedArchiveFile={file} {_SILENT}".strip()}


def archive_of(conf: Mapping[str, str], java: str) -> Path | None:
    """Where the archive of this JVM and class path is, or would be; None: there can be none.

    Its name has the JARs and when they were changed: the JVM itself refuses an archive of others.
    """
    from pyspark import __file__ as pyspark

    path = conf.get(CLASS_PATH)
    if path is None or os.pathsep != ":":
        return None
    spark = Path(os.environ.get("SPARK_HOME") or Path(pyspark).parent)
    files = [Path(os.path.realpath(java)), *map(Path, path.split(":")), *sorted((spark / "jars").glob("*.jar"))]
    try:
        known = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    except OSError:
        return None
    file = cache() / f"classes-{hashlib.sha256(repr(known).encode()).hexdigest()[:16]}.jsa"
    return None if " " in str(file) else file  # the options of a JVM are one string


def make_archive(file: Path) -> bool:
    """Make the archive, of the classes that a small run of `reconcile` uses; False when this JVM cannot.

    Takes the time of such a run and some ten seconds; 200 MB.
    """
    if file.is_file():
        return True
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            new = Path(folder) / file.name
            run = [sys.executable, "-m", "checkback.archive", folder, str(new)]
            subprocess.run(run, timeout=_PATIENCE_S, check=True)  # noqa: S603 - ourselves
            new.replace(file)
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("starts will take longer: there is no archive of classes: %s", error)
        return False
    for old in sorted(cache().glob("classes-*.jsa"), key=os.path.getmtime)[:-_KEPT]:
        old.unlink(missing_ok=True)
    return True


def _run(folder: str, file: str) -> None:
    """Decide and look at a few transactions, in a JVM that writes the archive when it ends."""
    from pyspark import SparkContext

    from checkback.inspect import pending
    from checkback.reconcile.run import reconcile
    from checkback.session import SHORT, running_session
    from checkback.settings import Settings

    # What is compiled is not archived: little of it is enough.
    options = f"{SHORT[OPTIONS]} -XX:ArchiveClassesAtExit={file} {_SILENT}"
    settings = Settings.model_validate({"storage": {"root": f"{folder}/tables"}, "spark": {OPTIONS: options}})
    with running_session(settings, "checkback-archive") as spark:
        _land(spark, Tables.of(settings.storage))
        reconcile(spark, settings, available_now=True)
        pending(spark, settings).collect()
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # then the JVM ends, and writes
        gateway.proc.wait()


def _land(spark: SparkSession, tables: Tables) -> None:
    """Two half messages, and an op for one of them."""
    now = datetime.now(timezone.utc)
    name = {"queue_id": 0, "transaction_id": "t", "producer_group": "g", "born_timestamp": now, "store_timestamp": now}
    half = [{**name, "queue_offset": offset, "real_topic": "topic", "body": b"body"} for offset in range(2)]
    op = [{**name, "half_offset": 0, "state": "COMMIT", "source": "producer"}]
    tables.create(spark, *SCHEMAS)
    for table, rows in (("half", half), ("op", op)):
        tables.append_arrow(spark, pa.Table.from_pylist(rows, arrow_schema(table)), table)


if __name__ == "__main__":
    _run(*sys.argv[1:])
