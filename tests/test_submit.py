"""A job by spark-submit on this machine, from the ZIP file, as docs/deploy.md prints it for tables in a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from checkback.settings import Settings
from checkback.spark import jars
from checkback.spark.session import spark_settings
from conftest import TRACE
from crash.process import PATIENCE_S
from docs.blocks import ROOT
from support import expected
from support.jvm import SHORT_LIVED
from support.lines import land_lines
from support.rows import records_of
from support.standalone_cluster import ZIP, Submitted, conf, package, python_without_checkback

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.processes]


def test_job_by_spark_submit_decides_by_ops(tmp_path: Path) -> None:
    """Under a Python that lacks Checkback. Instead of `--packages`: the JARs of `make install`."""
    package()
    land_lines(tmp_path / "data", TRACE / "half.jsonl", TRACE / "op.jsonl")
    delta = jars.on_class_path(spark_settings(Settings()))[jars.CLASS_PATH]
    settings = {
        "spark.pyspark.python": str(python_without_checkback(tmp_path / "python")),
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
    }
    overrides = {"storage.root": tmp_path / "data", "transaction.timeout": "1h", "transaction.max_age": "36500d"}
    arguments = [
        *("--master", "local[2]", *conf(settings), "--jars", delta.replace(":", ",")),
        *("--properties-file", str(ROOT / "conf/spark-defaults.conf"), "--py-files", str(ZIP)),
        *(str(ROOT / "jobs/reconcile.py"), "--available-now", "--config", str(ROOT / "conf/base.yml")),
        *(part for name, value in overrides.items() for part in ("--set", f"{name}={value}")),
    ]
    with Submitted(tmp_path / "log", arguments, {}) as submitted:
        assert submitted.process.wait(PATIENCE_S) == 0, submitted.said()
    found = {row["queue_offset"]: row["state"] for row in records_of(tmp_path / "data", "decisions")}
    expect = {offset: state for offset, (state, _) in expected.decisions(TRACE, 0).items() if state != "DISCARD"}
    assert found == expect
