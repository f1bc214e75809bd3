"""The JARs of Kafka's source and broker, and of S3, found by Spark's own resolver and kept for later runs."""

from __future__ import annotations

import fcntl
import json
import subprocess
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyspark

from checkback.errors import CheckbackError, one_line
from checkback.spark.hadoop_settings import packages_for
from checkback.spark.jvm import java_check
from checkback.spark.session import PACKAGED, kafka_package

if TYPE_CHECKING:
    from collections.abc import Callable

SPARK_JARS = Path(pyspark.__file__).parent / "jars"
#: Its client is the one that Spark 4.2 brings.
BROKER_PACKAGE = "org.apache.kafka:kafka_2.13:3.9.2"
#: Only ZooKeeper's own network needs it; the broker has none.
_BROKER_EXCLUDES = "io.netty:*,org.slf4j:*"
_S3 = ",".join(packages_for("s3://any"))
_TOKEN_PROVIDER = Path(__file__).with_name("token_provider.scala")
#: Of Spark's own JARs the broker takes Scala and its log.
_SHARED = ("scala-library-", "slf4j-api-", "log4j-api-", "log4j-core-", "log4j-slf4j2-impl-")


class Jars(NamedTuple):
    """Paths: what a Spark session needs to read from Kafka, the class path of a broker, what a session needs for S3."""

    source: list[str]
    broker: list[str]
    s3: list[str]


def find_jars(folder: Path) -> Jars:
    """The JARs: those that ``folder`` remembers, else fetched from where Spark is set up to fetch packages.

    The processes of one test run wait for each other: two that fetch into Ivy's cache at once spoil it for both. Raises
    CheckbackError when the JARs, or a Java to run them, cannot be had.
    """
    java_check()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _remembered(folder)


def _remembered(folder: Path) -> Jars:
    # Other packages, another stand-in: other JARs.
    asked = f"{kafka_package()} {BROKER_PACKAGE} {_S3} {_TOKEN_PROVIDER.read_text()}"
    found = folder / f"jars-{zlib.crc32(asked.encode())}.json"
    if found.exists():
        jars = Jars(*json.loads(found.read_text()))
        if all(Path(jar).exists() for part in jars for jar in part):
            return jars
    jars = _fetched(folder)
    found.write_text(json.dumps(jars))
    return jars


def _fetched(folder: Path) -> Jars:
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    launch: Callable[..., Any] = launch_gateway
    gateway = launch(SparkConf().set("spark.driver.memory", "512m"), quiet)
    try:
        resolve = resolver(gateway.jvm)
        excludes = PACKAGED["spark.jars.excludes"]
        try:
            source = resolve(kafka_package(), excludes)
        except Exception:  # noqa: BLE001 - py4j's, of whatever Ivy raises
            provider = kafka_package().replace("sql-kafka", "token-provider-kafka").rpartition(":")[0]
            source = [*resolve(kafka_package(), f"{excludes},{provider}"), _compiled(_TOKEN_PROVIDER, folder)]
        broker = resolve(BROKER_PACKAGE, _BROKER_EXCLUDES)
        s3 = resolve(_S3, excludes)
    except Exception as error:
        raise CheckbackError(f"Kafka's JARs, or those for S3, could not be fetched: {one_line(error)}") from error
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
    shared = [str(jar) for jar in sorted(SPARK_JARS.glob("*.jar")) if jar.name.startswith(_SHARED)]
    return Jars(source, broker + shared, s3)


def resolver(jvm: Any) -> Callable[[str, str], list[str]]:
    """Packages and excludes -> paths, by what `spark-submit --packages` uses, with the repositories it is set to."""
    conf = jvm.org.apache.spark.SparkConf()

    def resolve(packages: str, excludes: str) -> list[str]:
        found = jvm.org.apache.spark.util.DependencyUtils.resolveMavenDependencies(
            True,
            excludes,
            packages,
            conf.get("spark.jars.repositories", ""),
            conf.get("spark.jars.ivy", None),
            jvm.scala.Option.apply(conf.get("spark.jars.ivySettings", None)),
        )
        return [str(found.apply(place)) for place in range(found.size())]

    return resolve


def _compiled(source: Path, folder: Path) -> str:
    """A JAR of a Scala file, made by the compiler that Spark brings."""
    jar = folder / f"{source.stem}.jar"
    command = [
        java_check(),
        "-cp",
        f"{SPARK_JARS}/*",
        "scala.tools.nsc.Main",
        "-usejavacp",
        "-d",
        str(jar),
        str(source),
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if run.returncode:
        raise CheckbackError(f"{source.name} does not compile: {run.stderr}")
    return str(jar)
