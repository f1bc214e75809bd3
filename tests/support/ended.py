"""How the transactions of a made-up trace must have ended, read from the tables."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from checkback.settings import Settings
    from support.scripted import Made


def assert_ended(spark: SparkSession, settings: Settings, trace: Made) -> None:
    """Decided once, published once byte for byte or not at all, discarded whole; what is wrong is rejected, once."""
    tables = Tables.of(settings.storage)

    def rows(name: str) -> list[Row]:
        return tables.read(spark, name).collect()

    decided = {(row["queue_id"], row["queue_offset"]): row["state"] for row in rows("decisions")}
    assert len(decided) == tables.read(spark, "decisions").count()
    assert decided == {key: state or "DISCARD" for key, state in trace.states.items()}
    published = [row for topic in ("orders", "b_b", "c-c") for row in rows(f"topics/{topic}")]
    keys = [(row["half_queue_id"], row["half_queue_offset"]) for row in published]
    assert sorted(keys) == sorted(key for key, state in trace.states.items() if state == "COMMIT")
    for key, row in zip(keys, published, strict=True):
        half = trace.halves[key]
        assert bytes(row["body"]) == base64.b64decode(half["body"])
        assert row["queue_id"] == half["real_queue_id"]
        for name in ("transaction_id", "producer_group", "tags", "keys", "properties"):
            assert row[name] == half[name], name
    discarded = {(row["queue_id"], row["queue_offset"]): row for row in rows("discarded")}
    assert set(discarded) == {key for key, state in trace.states.items() if state is None}
    for key, row in discarded.items():
        assert bytes(row["body"]) == base64.b64decode(trace.halves[key]["body"])
        assert (row["reason"], row["check_times"]) == ("CHECK_MAX", settings.transaction.check_max)
    assert sum(row["source"] == "op" for row in rows("rejected")) == trace.not_obeyed
