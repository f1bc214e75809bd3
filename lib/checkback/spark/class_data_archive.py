"""The class-data archive (Java's Application Class-Data Sharing): Spark's and Delta's classes, loaded and linked.

Without it a start loads, verifies and links some 20,000 classes, which takes half of its time. It is valid for one JVM
and class path only; a JVM that it does not match starts without it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from checkback.spark.jars import CLASS_PATH, PACKAGES, kept, of_spark

if TYPE_CHECKING:
    from collections.abc import Mapping

OPTIONS = "spark.driver.extraJavaOptions"
SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def with_archive(conf: Mapping[str, str], java: str) -> dict[str, str]:
    """The settings, with the archive of this JVM and class path if it exists."""
    file, options = archive_of(conf, java), conf.get(OPTIONS, "")
    if file is None or not file.is_file() or "SharedArchive" in options or "ArchiveClassesAtExit" in options:
        return dict(conf)
    return {**conf, OPTIONS: f"{options} -XX:SharedArchiveFile={file} {SILENT}".strip()}


def archive_of(conf: Mapping[str, str], java: str) -> Path | None:
    """The path of the archive for this JVM and class path, whether it exists or not; None if there can be none.

    Its name is a hash of the JARs and their modification times: the JVM rejects an archive of other JARs.
    """
    path = conf.get(CLASS_PATH)
    if path is None or PACKAGES in conf or os.pathsep != ":":  # or Ivy decides about the class path
        return None
    files = [Path(os.path.realpath(java)), *map(Path, path.split(":")), *sorted(of_spark().glob("*.jar"))]
    try:
        known = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    except OSError:
        return None
    file = kept(f"classes-{hashlib.sha256(repr(known).encode()).hexdigest()[:16]}.jsa")
    return None if " " in str(file) else file  # JVM options are one space-separated string
