"""The spark-submit commands that docs/deploy.md prints, run on a cluster of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.lake import ENVIRON
from docs.blocks import ROOT, blocks
from docs.shell import Call
from support.jvm import SHORT_LIVED
from support.standalone_cluster import HOME, Cluster, Submitted, conf

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.lake import Lake

PAGE = "docs/deploy.md"
CLIENT, CLUSTER, FOLDER = "Client mode", "Cluster mode", "Tables in a shared folder"
_SPARK = {
    "spark.executor.memory": "640m",
    "spark.executor.extraJavaOptions": SHORT_LIVED,
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.databricks.delta.snapshotPartitions": "1",
    # With two tasks the second is late as soon as the first has ended.
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    # Else Spark makes no second attempt at the only task of a stage.
    "spark.speculation.task.duration.threshold": "10s",
}


def submit(cluster: Cluster, lake: Lake, log: Path, heading: str, *options: str) -> Submitted:
    """The command that stands under ``heading``, with this cluster's places, and the settings of ``lake``."""
    call = next(
        Call.of(line)
        for block in blocks("sh")
        if (block.page, block.heading) == (PAGE, heading)
        for line in block.lines()
        if line.startswith("spark-submit --master ")
    )
    here = {
        "spark://master:7077": cluster.url,
        "/opt/checkback/ivy/jars": str(cluster.jars()),
        "/opt/checkback/.venv/bin/python": str(cluster.python),
        "/opt/checkback": str(ROOT),
        "/opt/spark": str(HOME),
        "/etc/checkback/checkback.yml": f"{ROOT}/conf/base.yml",
    }
    words = "\0".join(call.arguments)
    for printed, instead in here.items():
        words = words.replace(printed, instead)
    arguments = [*conf(_SPARK), *words.split("\0"), *lake.overrides(lake.through), *options]
    return Submitted(log, arguments, ENVIRON)
