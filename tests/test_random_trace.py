"""The whole job on a trace made up at random: a new one each time, or that of SEED=n."""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from checkback.application.queries import reconcile
from checkback.landing.file_query import land
from checkback.settings import Settings
from support.ended import assert_ended
from support.scripted import made

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    assert_ended(spark, settings, trace)
