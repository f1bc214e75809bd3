"""The whole job on a trace made up at random: a new one each time, or that of SEED=n."""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from checkback.landing.files import land
from checkback.reconcile.run import reconcile
from checkback.settings import Settings
from checkback.tables import Tables
from scripted import made

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

_CHECK_MAX = 2


def test_each_transaction_of_a_random_trace_ends_as_its_ops_say(spark: SparkSession, tmp_path: Path) -> None:
    """Decided once, published once byte for byte or not at all; what is wrong is rejected, and nothing beside it."""
    seed = int(os.environ.get("SEED", "0")) or Random().randrange(1, 10**9)
    print(f"run it again with SEED={seed}")
    random = Random(seed)
    trace = made(random, 600, round(time.time() * 1000))
    trace.write(tmp_path, random)
    settings = Settings.model_validate(
        {
            "storage": {"root": str(tmp_path / "data"), "writer": random.choice(["auto", "spark"])},
            "transaction": {"timeout": "0s", "check_max": _CHECK_MAX, "check_interval": "1ms"},
            "reconcile": {"partitions": 2, "segment_size": random.choice([64, 1000, 4096])},
        }
    )
    landed = land(spark, settings, f"{tmp_path}/half", f"{tmp_path}/op", available_now=True)
    assert (landed.half, landed.op, landed.rejected) == (len(trace.halves), len(trace.ops), len(trace.broken))
    for _ in range(_CHECK_MAX + 1):
        reconcile(spark, settings, available_now=True)
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
        assert (row["reason"], row["check_times"]) == ("CHECK_MAX", _CHECK_MAX)
    assert sum(row["source"] == "op" for row in rows("rejected")) == trace.not_obeyed
