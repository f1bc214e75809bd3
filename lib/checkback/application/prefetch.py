"""`make install`: fetches Delta's JARs and creates the class-data archive (CDS), for faster later starts.

Both are in the installation, where all its users find them.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checkback.application.small_run import small_run
from checkback.errors import CheckbackError
from checkback.query.frames import Frames
from checkback.settings import Settings
from checkback.spark import jars
from checkback.spark.jars import OPTIONS, SILENT, archive_of
from checkback.spark.jvm import java_check, prepare, with_class_path
from checkback.spark.session import SHORT, running_session, spark_settings

_PATIENCE_S = 300

_log = logging.getLogger(__name__)


def prefetch(everything: bool = False) -> None:
    """Fetch Delta's JARs and create the class-data archive ahead of the first start (`make install`).

    ``everything``: the JARs of S3 and Kafka, too, for an image, whose processes fetch nothing. Starts no JVM for what
    the installation has.
    """
    java = java_check()
    jars.installation().mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(jars.installation().parent)  # what this user has is not for the others
    conf = spark_settings(Settings())
    in_store = Settings.model_validate({"storage": {"root": "s3://bucket"}})
    others = [spark_settings(Settings(), kafka=True), *(spark_settings(in_store, kafka) for kafka in (False, True))]
    prepare(conf, *(others if everything else ()))
    file = archive_of(with_class_path(conf), java)
    if file is not None:
        make_archive(file)


def make_archive(file: Path) -> bool:
    """Create the archive of the classes that a small run of `reconcile` loads; False if that fails.

    Takes the time of such a run plus about ten seconds; 200 MB.
    """
    if file.is_file():
        return True
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            new = Path(folder) / file.name
            run = [sys.executable, "-m", "checkback.application.prefetch", folder, str(new)]
            subprocess.run(run, timeout=_PATIENCE_S, check=True)  # noqa: S603 - runs this module
            new.replace(file)
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("starts will take longer: no class-data archive was written: %s", error)
        return False
    for old in file.parent.glob("classes-*.jsa"):
        if old != file:  # of JARs, or a Java, that the installation had before
            old.unlink(missing_ok=True)
    return True


def _run(folder: str, file: str) -> None:
    """Reconcile and list a few transactions, in a JVM that writes the archive at exit."""
    from pyspark import SparkContext

    # JIT-compiled code is not archived: compile as little as possible.
    options = f"{SHORT[OPTIONS]} -XX:ArchiveClassesAtExit={file} {SILENT}"
    settings = Settings.model_validate({"storage": {"root": f"{folder}/tables"}, "spark": {OPTIONS: options}})
    with running_session(settings, "checkback-archive") as spark:
        small_run(spark, settings)
        Frames(settings, spark).pending().collect()
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM then exits, and writes the archive
        gateway.proc.wait()


if __name__ == "__main__":
    try:
        if sys.argv[2:]:
            _run(*sys.argv[1:])
        else:
            prefetch(everything=sys.argv[1:] == ["--all"])
    except CheckbackError as problem:
        sys.exit(f"checkback: {problem}")
