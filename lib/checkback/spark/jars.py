"""The JARs of a local session: Ivy fetches them once, and every start puts them on the JVM's class path.

With ``spark.jars.packages`` every start would resolve them with Ivy, copy them, and load their classes with Spark's own
class loader, which a class-data archive does not cover.

`make install` keeps them in the installation, for all its users. What is fetched later, with a first start, goes into
the user's cache, unless the user may write in the installation.

Delta's are in front of Spark's JARs, those of other packages (of object stores, Kafka, the user) behind them: the JVM
takes an archive whose class path is a prefix of its own, and so each start has the same one.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import tempfile
from contextlib import suppress
from functools import cache as cache_of_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
#: name of Spark's Kafka source among packages and JARs (`land --kafka` only)
KAFKA_SOURCE = "spark-sql-kafka-0-10"
PACKAGES, CLASS_PATH = "spark.jars.packages", "spark.driver.extraClassPath"
_EXECUTORS = "spark.executor.extraClassPath"
#: environment of Spark's launcher: the end of the class path (`AbstractCommandBuilder.buildClassPath`)
_END = "SPARK_DIST_CLASSPATH"


def installation() -> Path:
    """The folder of what all users of this installation share; `prefetch` makes it."""
    return Path(sys.prefix, "share", "checkback")


def places() -> Iterator[Path]:
    """Where JARs may be: in the installation, the user's cache (XDG Base Directory), a temporary folder without one."""
    yield installation()
    given, home = os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~")
    cache = (Path(given) if os.path.isabs(given) else Path(home, ".cache")) / "checkback"
    if cache.is_absolute():
        with suppress(OSError):
            cache.mkdir(parents=True, exist_ok=True)
        yield cache
        if os.access(cache, os.W_OK):
            return
    yield _temporary()


@cache_of_process
def _temporary() -> Path:
    """A folder that outlives the process, unless another user made it: its JARs would be that user's code."""
    folder = Path(tempfile.gettempdir(), f"checkback-cache-{os.getuid()}")
    with suppress(OSError):
        folder.mkdir(mode=0o700)
    about = folder.lstat()
    ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022
    return folder if ours else Path(tempfile.mkdtemp(prefix="checkback-cache-"))


def folder() -> Path:
    """The first of the places in which this user may write. The installation's folder is not made here."""
    return next(place for place in places() if place.is_dir() and os.access(place, os.W_OK))


def kept(name: str) -> Path:
    """The file of this name in the first place that has it; if none has, where it is to be written."""
    found = next((place / name for place in places() if (place / name).is_file()), None)
    return found or folder() / name


def of_spark() -> Path:
    """The folder of Spark's own JARs."""
    from pyspark import __file__ as pyspark

    # Resolved as Spark's launcher does: a linked virtual environment has the same class path, and the same archive.
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark).parent.resolve()) / "jars"


def on_class_path(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings with the packages' JARs, once `fetch` has recorded them, on the class path; see `at_end`, too.

    Unchanged if none were recorded, or one of the JARs is missing.
    """
    front, _ = _parts(conf)
    if not front:
        return dict(conf)
    others = conf.get(CLASS_PATH, "")
    path = os.pathsep.join([*front, others] if others else front)
    return {key: value for key, value in conf.items() if key != PACKAGES} | {CLASS_PATH: path}


def at_end(conf: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The launcher's environment for the packages' JARs that are not in `on_class_path`; empty if there are none."""
    _, end = _parts(conf)
    given = environ.get(_END, "")
    return {_END: os.pathsep.join([given, *end] if given else end)} if end else {}


def of_executors(conf: Mapping[str, str], end: Mapping[str, str]) -> dict[str, str]:
    """The settings with which executors, of the driver's image, have its class path (``conf``, and its ``end``)."""
    given = conf.get(_EXECUTORS, "")
    front = os.pathsep.join(filter(None, [conf.get(CLASS_PATH, ""), given]))
    return {_EXECUTORS: front, **{f"spark.executorEnv.{name}": path for name, path in end.items()}}


def _parts(conf: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The JARs of these settings in front of Spark's and behind them. All in front if Delta's are not among them."""
    found = _known(conf)
    delta = _known({**conf, PACKAGES: DELTA_PACKAGE})
    if not delta or not set(delta) <= set(found):
        return found, []
    return delta, [jar for jar in found if jar not in delta]


def fetch(conf: Mapping[str, str], jvm: Any) -> None:
    """Fetch the packages of these settings by Ivy, as ``spark-submit --packages`` does, and record their JARs.

    ``jvm``: the Py4J view of a JVM started with the other settings. Raises Py4J's errors.
    """
    spark = jvm.org.apache.spark.SparkConf()  # has Spark's own file of settings, too
    file = folder() / _name(conf)
    with (file.parent / "lock").open("w") as lock:
        with suppress(ImportError):  # not on Windows
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)  # two that fetch at once spoil Ivy's cache for both
        found = jvm.org.apache.spark.util.DependencyUtils.resolveMavenDependencies(
            True,
            conf.get("spark.jars.excludes", ""),
            conf[PACKAGES],
            spark.get("spark.jars.repositories", ""),
            spark.get("spark.jars.ivy", str(file.parent / "ivy")),
            jvm.scala.Option.apply(spark.get("spark.jars.ivySettings", None)),
        )
    new = file.with_name(f"{file.name}.{os.getpid()}")
    new.write_text(json.dumps([str(found.apply(place)) for place in range(found.size())]), encoding="utf-8")
    new.replace(file)


def _known(conf: Mapping[str, str]) -> list[str]:
    """The JARs recorded by `fetch`; empty unless all exist."""
    for place in places():
        with suppress(OSError, ValueError):
            found = json.loads((place / _name(conf)).read_text(encoding="utf-8"))
            if isinstance(found, list) and all(isinstance(jar, str) and os.path.isfile(jar) for jar in found):
                return found
    return []


def _name(conf: Mapping[str, str]) -> str:
    """The name of the file that records the JARs of these settings: a hash of everything that affects resolution."""
    from pyspark import __version__ as spark_version

    asked = {key: value for key, value in conf.items() if key.startswith("spark.jars")}
    key = json.dumps([spark_version, asked], sort_keys=True)
    return f"jars-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


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
        known = [(str(file), int(file.stat().st_mtime), file.stat().st_size) for file in files]
    except OSError:
        return None
    file = kept(f"classes-{hashlib.sha256(repr(known).encode()).hexdigest()[:16]}.jsa")
    return None if " " in str(file) else file  # JVM options are one space-separated string
