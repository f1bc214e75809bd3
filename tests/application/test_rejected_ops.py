"""An op that was rejected, and then its half message comes: it decides nothing, and nobody takes it for one that will.

The op came first, and too many of its offset waited (docs/protocol.md, rule 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from application.test_delay import Lake
from checkback.gateway.deduplication.history import DeduplicationHistory
from checkback.gateway.deduplication.remembered_half import STATE_OF
from checkback.operate.lookup import find
from checkback.operate.operator_tables import FileStore
from checkback.operate.permissions import judge_resolve
from checkback.operate.transaction import Asked
from checkback.query.answers import Answers, records
from checkback.query.frames import Frames
from checkback.storage.timestamps import EPOCH
from reconcile.messages import half
from support.rows import rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """The half message tx-0, and its op, which was rejected before it came."""
    lake = Lake(spark, tmp_path)
    for name in [f"stranger-{number}" for number in range(8)]:
        lake.end("COMMIT", 0, name=name)
    lake.end("COMMIT", 0)
    lake.reconcile()
    lake.land(half(0))
    lake.reconcile()
    assert [reason[:8] for source, reason in rows_of(lake.root, "rejected", "source", "reason")].count("too many") == 1
    assert lake.offsets("decisions") == []
    return lake


def test_it_is_pending_and_may_be_ended(lake: Lake) -> None:
    (row,) = records(Answers(lake.settings).pending())
    assert (row["op_waiting"], row["why"]) == (None, "young: the first check is not due yet")
    (same,) = Frames(lake.settings, lake.spark).pending().collect()
    assert (same["op_waiting"], same["why"]) == (None, row["why"])
    assert Answers(lake.settings).status().facts is not None
    assert not Answers(lake.settings).audit().broken

    history = DeduplicationHistory(str(lake.root))
    known = history.find([(0, 0)])[0, 0]
    assert known.state is None
    assert [STATE_OF[code] for code in history.recent([0], EPOCH, 10).states] == [None]
    (found,) = find(FileStore(lake.tables), Asked("tx-0"), 1).transactions
    assert found.ops == ()
    judge_resolve(found)

    lake.end("ROLLBACK", 0)  # the producer sends one again
    assert history.ended([known])[0, 0].state == "ROLLBACK"
    assert [row["op_waiting"] for row in records(Answers(lake.settings).pending())] == ["ROLLBACK"]
    assert [STATE_OF[code] for code in history.recent([0], EPOCH, 10).states] == ["ROLLBACK"]
    lake.reconcile()
    assert rows_of(lake.root, "decisions", "queue_offset", "state") == [(0, "ROLLBACK")]
