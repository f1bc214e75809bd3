"""How the transactions of a made-up trace must have ended, read from the tables."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from checkback.storage.tables import Tables
from support.rows import records_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from checkback.settings import Settings
    from support.scripted import Made


def assert_ended(spark: SparkSession, settings: Settings, trace: Made) -> None:
    """Decided once, published once byte for byte or not at all, discarded whole; what is wrong is rejected, once."""
    tables = Tables.of(settings.storage)

    def rows(name: str) -> list[dict[str, Any]]:
        if tables.local:
            return records_of(tables.root, name)
        return [row.asDict() for row in tables.read(spark, name).collect()]

    decisions = rows("decisions")
    decided = {(row["queue_id"], row["queue_offset"]): row["state"] for row in decisions}
    assert len(decided) == len(decisions)
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
