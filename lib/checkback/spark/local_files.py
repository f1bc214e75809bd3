"""Hadoop's and Delta's access to local folders, faster and safer (`LocalFiles.java`).

Hadoop starts a process, `chmod`, for each file that it writes: twelve in a batch. Delta asks for the size and time of
each file of a table's log, of which a busy table has 40,000, whenever it looks for new commits: seven times in a batch.
And it commits by a rename, which replaces what another thread or process has committed meanwhile.

Janino, with which Spark compiles its queries, compiles the classes once into a JAR beside those that were fetched.
"""

from __future__ import annotations

import hashlib
import logging
import os
import uuid
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkback.errors import reason
from checkback.spark.jars import CLASS_PATH, kept, of_spark
from checkback.storage.files.fsync import flush_file

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE = Path(__file__).with_name("LocalFiles.java")
SETTINGS: Mapping[str, str] = {
    "spark.hadoop.fs.file.impl": "checkback.LocalFiles",
    "spark.delta.logStore.file.impl": "checkback.LocalFiles$Log",
}

_log = logging.getLogger(__name__)


def jar() -> Path:
    """The JAR for Spark's Hadoop; `make` makes it."""
    try:
        key = SOURCE.read_bytes() + repr(sorted(file.name for file in of_spark().glob("hadoop-client-*"))).encode()
    except OSError:  # in a zip
        key = b""
    return kept(f"local-files-{hashlib.sha256(key).hexdigest()[:16]}.jar")


def is_made() -> bool:
    """Is the JAR there, as a whole? A power cut may leave an empty one."""
    return zipfile.is_zipfile(jar())


def on_class_path(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings with the classes, if the JAR is there; the user's own count."""
    file, given = jar(), conf.get(CLASS_PATH, "")
    if not is_made():
        return dict(conf)
    return {**SETTINGS, **conf, CLASS_PATH: os.pathsep.join([str(file), given] if given else [str(file)])}


def make(jvm: Any) -> None:
    """Compile the JAR. ``jvm``: the Py4J view of a JVM that has Delta's JARs. Without it files are only slower."""
    file = jar()
    try:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(SOURCE.read_text(encoding="utf-8"))
        classes = dict(compiler.getBytecodes())
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
        with zipfile.ZipFile(new, "w") as made:
            for name, code in classes.items():
                made.writestr(f"{name.replace('.', '/')}.class", code)
        flush_file(str(new))
        new.replace(file)
    except Exception as error:  # noqa: BLE001 - Py4J's errors, too
        _log.debug("local files are accessed as Hadoop does it: %s", reason(error))
