"""Fixtures that more than one folder of tests uses. Whoever asks for `spark` is marked `spark`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

TRACE = Path(__file__).parent / "data" / "rocketmq-trace"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts Spark, so that `make test-fast` can leave it out."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for all tests, on two cores."""
    from checkback.session import open_session
    from checkback.settings import Settings

    warehouse = tmp_path_factory.mktemp("warehouse")
    settings = Settings.model_validate(
        {
            "reconcile": {"partitions": 2},
            "spark": {
                "spark.master": "local[2]",
                "spark.sql.warehouse.dir": str(warehouse),
                "spark.driver.extraJavaOptions": f"-Dderby.system.home={warehouse}",
            },
        }
    )
    session = open_session(settings, "checkback-tests")
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
