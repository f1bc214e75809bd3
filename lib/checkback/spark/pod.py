"""The first process of a pod that Spark has made: `python3 -m checkback.spark.pod executor`, or `driver ...`.

The image's entry point is `checkback`: the templates of conf/kubernetes/spark name this module as the command. Spark
gives the arguments and variables (its `BasicExecutorFeatureStep` and `DriverCommandFeatureStep`).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from checkback.spark import jars
from checkback.spark.jvm import java_check, nameless_user

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_OPTION = "SPARK_JAVA_OPT_"


def executor(environ: Mapping[str, str], java: str) -> list[str]:
    """The command of an executor. The class path is the driver's, which has the same image."""
    numbers = sorted(int(name[len(_OPTION) :]) for name in environ if name.startswith(_OPTION))
    front = environ.get("SPARK_CLASSPATH", "")
    shared = jars.with_archive({jars.CLASS_PATH: front, jars.OPTIONS: ""} if front else {}, java).get(jars.OPTIONS, "")
    path = [front, f"{jars.of_spark()}/*", environ.get("SPARK_DIST_CLASSPATH", "")]
    memory = environ["SPARK_EXECUTOR_MEMORY"]
    return [
        *(java, *shared.split(), *(environ[f"{_OPTION}{number}"] for number in numbers)),
        *(f"-Xms{memory}", f"-Xmx{memory}", "-cp", os.pathsep.join(filter(None, path)), _BACKEND),
        *(part for option, name in _ARGUMENTS.items() for part in (option, environ[name])),
    ]


def driver(arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The command of a driver in cluster mode: spark-submit in client mode, in its pod."""
    address = environ["SPARK_DRIVER_BIND_ADDRESS"]
    submit = str(jars.of_spark().parent / "bin/spark-submit")
    return [submit, "--deploy-mode", "client", "--conf", f"spark.driver.bindAddress={address}", *arguments]


def named_user(folder: Path) -> dict[str, str]:
    """The environment in which this user id has a name, which Hadoop's client needs; empty if it has one anyway.

    With a read-only root nothing can be added to /etc/passwd: nss_wrapper, which the image has, reads another file.
    """
    uid = nameless_user()
    if uid is None:
        return {}
    file = folder / "passwd"
    file.write_text(f"checkback:x:{uid}:{os.getgid()}::{folder}:/bin/false\n", encoding="utf-8")
    return {"LD_PRELOAD": "libnss_wrapper.so", "NSS_WRAPPER_PASSWD": str(file), "NSS_WRAPPER_GROUP": "/etc/group"}


def main(role: str, *arguments: str) -> None:
    """Become the driver or the executor."""
    os.environ |= named_user(Path(tempfile.gettempdir()))
    os.environ["SPARK_HOME"] = str(jars.of_spark().parent)
    java = java_check()
    command = executor(os.environ, java) if role == "executor" else driver(arguments, os.environ)
    os.execv(command[0], command)  # noqa: S606 - a pod's first process gets its signals


if __name__ == "__main__":
    main(*sys.argv[1:])
