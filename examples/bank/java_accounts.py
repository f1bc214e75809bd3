"""The accounts service in Java, with RocketMQ's own client: examples/rocketmq-java/Accounts.java.

It needs a Java with a compiler, from a JDK. The client and the database's driver are fetched as Spark's packages are.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from checkback.errors import CheckbackError
from checkback.spark import jars
from checkback.spark.jvm import fetch_packages, java_check
from examples.bank.plan import TAG, TOPIC, transfers
from examples.bank.processes import Service

PROGRAM = Path(__file__).parents[1] / "rocketmq-java" / "Accounts.java"
CLIENT, _DRIVER = "org.apache.rocketmq:rocketmq-client-java:5.1.0", "org.xerial:sqlite-jdbc:3.50.3.0"


def class_path() -> str:
    """The JARs, fetched once. Raises CheckbackError."""
    conf = {jars.PACKAGES: f"{CLIENT},{_DRIVER}"}
    if jars.PACKAGES in jars.on_class_path(conf):
        try:
            fetch_packages([conf])
        except CheckbackError as error:
            what = "RocketMQ's client for Java could not be fetched"
            raise CheckbackError(what, conf[jars.PACKAGES], "connect to Maven Central once") from error
    return jars.on_class_path(conf)[jars.CLASS_PATH]


def compiling_java() -> str:
    """A ``java`` that runs a source file. Raises CheckbackError."""
    java = java_check()
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=False)  # noqa: S603
    if "jdk.compiler@" not in modules.stdout:
        raise CheckbackError("this Java has no compiler", java, "install a JDK")
    return java


def service(root: Path, rocketmq_port: int, seed: int, count: int) -> Service:
    """The service, with its plan in ``root``. Raises CheckbackError."""
    plan = root / "plan.tsv"
    lines = ((one.number, one.debtor, one.amount, one.fate.name, one.body().decode()) for one in transfers(seed, count))
    plan.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines), "utf-8")
    # The client writes its log there.
    program = [compiling_java(), f"-Duser.home={root}", f"-Djava.io.tmpdir={root}", "-cp", class_path()]
    told = [str(root / "accounts.db"), f"127.0.0.1:{rocketmq_port}", TOPIC, TAG, str(plan)]
    return Service(os.fspath(PROGRAM), told, root / "accounts.log", program=program)
