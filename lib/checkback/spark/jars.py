"""The JARs of a local session: Ivy fetches them once, later starts put them on the JVM's class path.

With ``spark.jars.packages`` every start would resolve them with Ivy, copy them, and load their classes with Spark's own
class loader, which a class-data archive (`class_data_archive`) does not cover.

Delta's are in front of Spark's JARs, those of other packages (of object stores, Kafka, the user) behind them: the JVM
takes an archive whose class path is a prefix of its own, and so each start has the same one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from checkback.storage.files.paths import local_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
PACKAGES, CLASS_PATH = "spark.jars.packages", "spark.driver.extraClassPath"
#: environment of Spark's launcher: the end of the class path (`AbstractCommandBuilder.buildClassPath`)
_END = "SPARK_DIST_CLASSPATH"

_log = logging.getLogger(__name__)


def cache() -> Path:
    """The cache folder (XDG Base Directory Specification); a temporary one if there is no home directory."""
    given, home = os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~")
    if os.path.isabs(given):
        return Path(given) / "checkback"
    return Path(home, ".cache", "checkback") if os.path.isabs(home) else Path(tempfile.gettempdir(), "checkback-cache")


def of_spark() -> Path:
    """The folder of Spark's own JARs."""
    from pyspark import __file__ as pyspark

    # Resolved as Spark's launcher does: a linked virtual environment has the same class path, and the same archive.
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark).parent.resolve()) / "jars"


def on_class_path(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings with the packages' JARs, as recorded by an earlier start, on the class path; see `at_end`, too.

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


def _parts(conf: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The JARs of these settings in front of Spark's and behind them. All in front if Delta's are not among them."""
    found = _known(conf)
    delta = _known({**conf, PACKAGES: DELTA_PACKAGE})
    if not delta or not set(delta) <= set(found):
        return found, []
    return delta, [jar for jar in found if jar not in delta]


def remember(conf: Mapping[str, str], spark: SparkSession) -> None:
    """Record the JARs that Ivy resolved for the packages of these settings."""
    if PACKAGES not in conf:
        return
    own = {jar for jar in conf.get("spark.jars", "").split(",") if jar}
    named = (spark.sparkContext.getConf().get("spark.jars") or "").split(",")
    found = [local_path(jar) for jar in named if jar and jar not in own]
    if not found or None in found:
        return
    file = _file(conf)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f"{file.name}.{os.getpid()}")
        new.write_text(json.dumps(found), encoding="utf-8")
        new.replace(file)
    except OSError as error:
        _log.debug("the next start asks Ivy again: %s", error)


def _known(conf: Mapping[str, str]) -> list[str]:
    """The JARs recorded by an earlier start; empty unless all exist."""
    try:
        found = json.loads(_file(conf).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    usable = isinstance(found, list) and all(isinstance(jar, str) and os.path.isfile(jar) for jar in found)
    return found if usable else []


def _file(conf: Mapping[str, str]) -> Path:
    """The file that records the JARs of these settings. Its name is a hash of everything that affects resolution."""
    from pyspark import __version__ as spark_version

    asked = {key: value for key, value in conf.items() if key.startswith("spark.jars")}
    key = json.dumps([spark_version, asked], sort_keys=True)
    return cache() / f"jars-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
