"""Finding Java, and starting the JVM."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkback.errors import CheckbackError, SettingsError, reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from checkback.spark.stderr import HeldStderr

OLDEST_JAVA = 17


def java_check(environ: Mapping[str, str] = os.environ) -> str:
    """Path of the ``java`` that Spark will run: that of JAVA_HOME, else the one on PATH.

    Raises SettingsError if there is none, or it is older than Java 17.
    """
    home = environ.get("JAVA_HOME", "")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java", path=environ.get("PATH", ""))
    fix = "install Java 17 or 21 and put it on PATH or in JAVA_HOME"
    if not java or not os.access(java, os.X_OK):
        raise SettingsError("JAVA_HOME has no bin/java" if home else "Java is not installed", home, fix)
    try:
        run = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
        match = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    except (OSError, subprocess.TimeoutExpired):
        match = None
    if match is None:
        raise SettingsError("Java does not say its version", java, fix)
    if int(match[1]) < OLDEST_JAVA:
        raise SettingsError(f"Java {match[1]} is too old", java, fix)
    return java


def quick_start(conf: Mapping[str, str], java: str) -> tuple[dict[str, str], dict[str, str]]:
    """The settings for a JVM started here, with the JARs and archive that earlier starts and `prefetch` cached.

    And what its environment has for them.
    """
    from checkback.spark import class_data_archive, jars

    if re.match(r"local(\[|$)", conf.get("spark.master", "local")) is None:
        return dict(conf), {}  # separate executors do not have our class path
    return class_data_archive.with_archive(with_class_path(conf), java), jars.at_end(conf)


def with_class_path(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings with the class path of a JVM started here."""
    from checkback.spark import hadoop_defaults, jars

    return jars.on_class_path(hadoop_defaults.on_class_path(conf))


def names_locale(environ: Mapping[str, str], python: str) -> dict[str, str]:
    """Additions to the JVM's environment that make it decode file names as Python does (``python``: its encoding).

    In the C locale (cron, services, containers) Java cannot open files with non-ASCII names and has no option for it;
    Python uses UTF-8 there.
    """
    locale = next(filter(None, map(environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "C")
    if python.lower() != "utf-8" or re.search(r"utf-?8", locale, re.IGNORECASE):
        return {}
    return {"LC_ALL": "C.UTF-8"}


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    """Temporarily extend this process's environment, for child processes started inside."""
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def worker_python(master: str) -> dict[str, str]:
    """The environment of the JVM that makes Python workers run this Python, on this machine by `worker-python`.

    That starts each process half a second of CPU time sooner: two are started with the query.
    """
    from pyspark import __file__ as pyspark

    script = Path(__file__).with_name("worker-python")
    installed = Path(pyspark).parent.parent == Path(sysconfig.get_path("purelib"))
    if master.startswith("local") and installed and os.access(script, os.X_OK):
        return {"PYSPARK_PYTHON": str(script), "CHECKBACK_PYTHON": sys.executable}
    return {"PYSPARK_PYTHON": sys.executable}


def start_jvm(conf: Mapping[str, str], environment: Mapping[str, str], held: HeldStderr, kafka: bool) -> None:
    """Start the JVM of this process, with more in its environment, without Ivy's and Spark's output.

    ``kafka``: its packages include Spark's Kafka source. Raises CheckbackError if the JVM does not start, or JARs
    cannot be fetched.
    """
    from pyspark import SparkConf, SparkContext, java_gateway

    from checkback.spark.launch_settings import ARGUMENTS, launch_settings

    # By default Spark's workers run the first python3 on PATH, which may lack the packages.
    if "PYSPARK_PYTHON" not in os.environ:
        os.environ |= worker_python(conf.get("spark.master", "local"))
    launch: Callable[..., Any] = java_gateway.launch_gateway
    try:
        # Its stdout, too: ours is for a command's output.
        told: dict[str, Any] = {"stdout": held.fileno(), "stderr": held.fileno()}
        if sys.version_info >= (3, 11):  # a signal to this process's group (`timeout`, `kill %1`) is for it alone
            told["process_group"] = 0
        locale = names_locale(os.environ, sys.getfilesystemencoding())
        with (
            launch_settings(conf, os.environ) as (shown, arguments),
            _environment({**environment, **locale, ARGUMENTS: arguments}),
        ):
            gateway = launch(SparkConf().setAll(list(shown.items())), told)
    except Exception as error:
        lines = held.lines()
        if any("unresolved dependency" in line or "download failed" in line for line in lines):
            whose, own = (
                ("Delta Lake's and Kafka's", ", or Kafka's own JARs in spark.jars") if kafka else ("Delta Lake's", "")
            )
            raise CheckbackError(
                f"{whose} JARs could not be fetched",
                conf.get("spark.jars.packages", ""),
                f"connect to Maven Central once, or name a mirror in spark.jars.repositories{own}",
            ) from error
        why = next((line for line in lines if re.search(r"(Error|Exception)\b", line)), reason(error))
        raise CheckbackError(f"Spark did not start: {why}", fix="check Java and the spark settings") from error
    SparkContext._ensure_initialized(gateway=gateway)


if __name__ == "__main__":
    # For the Makefile, before anything is installed: `python -m checkback.spark.jvm`.
    try:
        java_check()
    except CheckbackError as problem:
        sys.exit(f"checkback: {problem}")
