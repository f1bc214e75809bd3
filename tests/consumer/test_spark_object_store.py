"""Topics for Spark in an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from checkback.consumer import MessageSelector, create_views, read, read_stream
from checkback.errors import StorageError
from checkback.settings import Settings
from checkback.storage.tables import Tables
from consumer.published import Published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
def test_topic_in_an_object_store(spark: SparkSession, s3_storage: dict[str, Any]) -> None:
    settings = Settings.model_validate({"storage": s3_storage})
    published = Published(Tables.of(settings.storage))
    published.publish({"orders": [published.messages(2, tags="a"), published.messages(1, tags="b")]})
    published.publish({"orders": [published.messages(1, tags="a")]}, concluded=False)
    found = read(spark, settings, "orders", MessageSelector.by_tag("a"))
    assert sorted(row["half_queue_offset"] for row in found.collect()) == [0, 1]
    view = create_views(spark, settings)["orders"]
    assert sorted(row["body_text"] for row in spark.table(view).collect()) == ["body-0", "body-1", "body-2"]
    assert read_stream(spark, settings, "orders").isStreaming
    with pytest.raises(StorageError, match="these have one: orders;"):
        read(spark, settings, "payments")
