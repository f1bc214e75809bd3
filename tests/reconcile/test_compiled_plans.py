"""Plans of small batches are interpreted, those after a large one compiled; the caller's session is left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checkback.reconcile.publish import publisher
from checkback.reconcile.publish.publisher import Publisher
from reconcile.test_batch_rules import Lakehouse

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession

_MODE = "spark.sql.codegen.factoryMode"


def test_plan_after_a_large_batch_is_compiled(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, modes = Lakehouse(spark, tmp_path), []
    before = spark.conf.get(_MODE)
    for offsets in ((0, 1), range(2, 11), (11, 12)):
        lake.half(*offsets)
        lake.commit(*offsets)
    publish = Publisher.publish

    def publishing(self: Publisher, spark: SparkSession, *more: Any) -> Any:
        modes.append(spark.conf.get(_MODE))
        return publish(self, spark, *more)

    monkeypatch.setattr(Publisher, "publish", publishing)
    monkeypatch.setattr(publisher, "ROWS_A_TASK", 5)
    settings = lake.settings()
    lake.run(settings.model_copy(update={"reconcile": settings.reconcile.model_copy(update={"max_files": 1})}))
    assert modes == ["NO_CODEGEN", "FALLBACK", "NO_CODEGEN"]
    assert spark.conf.get(_MODE) == before
    assert len(lake.rows("topics/t")) == 13
