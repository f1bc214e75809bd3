"""The class-data archive: Spark's and Delta's classes as a JVM has them in memory, for a start that need not load them.

Without it a start reads, checks and links some 20,000 classes, which takes half of its time. It belongs to one JVM and
one class path (Java's "Application Class-Data Sharing"); a JVM that it does not fit goes on without it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from checkback.spark.jars import CLASS_PATH, cache

if TYPE_CHECKING:
    from collections.abc import Mapping

OPTIONS = "spark.driver.extraJavaOptions"
SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def with_archive(conf: Mapping[str, str], java: str) -> dict[str, str]:
    """The settings, with the archive of this JVM and class path if it has been made."""
    file, options = archive_of(conf, java), conf.get(OPTIONS, "")
    if file is None or not file.is_file() or "SharedArchive" in options or "ArchiveClassesAtExit" in options:
        return dict(conf)
    return {**conf, OPTIONS: f"{options} -XX:SharedArchiveFile={file} {SILENT}".strip()}


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
