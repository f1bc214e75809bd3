"""Each way in which a checkpoint and tables do not belong together is refused, with what to do; the others start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from checkback.errors import StateError
from checkback.reconcile.start.preconditions import DecisionFacts, StartFacts, refuse
from checkback.storage.checkpoints.checkpoint import Batch, Checkpoint, StreamPosition
from checkback.storage.checkpoints.checkpoint_fit import TableLog

HALF = TableLog("h", oldest=0, newest=9)
GOOD = StartFacts(
    place="data/_checkpoints/reconcile",
    checkpoint=Checkpoint("q", Batch(5, 0, (StreamPosition("h", 8), None), partitions=4)),
    decisions=DecisionFacts(written=True, owner=2, owned=2, last_batch=5, segment_size=4096),
    partitions=4,
    segment_size=4096,
    logs={"half": HALF, "op": replace(HALF, table="o")},
)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"checkpoint": None, "decisions": DecisionFacts(written=False)},
        {"checkpoint": Checkpoint("q"), "decisions": DecisionFacts(written=False)},
        {"decisions": replace(GOOD.decisions, last_batch=4)},
        {"decisions": replace(GOOD.decisions, last_batch=None)},
        {"done": 5, "decisions": replace(GOOD.decisions, concluded=5)},
        {"decisions": replace(GOOD.decisions, owner=0, owned=None)},
        {"decisions": DecisionFacts(written=False, owner=3)},
        {"decisions": replace(GOOD.decisions, segment_size=None)},
        {"decisions": replace(GOOD.decisions, planned={5: frozenset({7})}), "times": {5: 7}},
        {"decisions": replace(GOOD.decisions, planned={4: frozenset({6})})},  # Spark has deleted the entry
        {"logs": {}},
        {"logs": {"half": replace(HALF, oldest=8)}},
        {"logs": {"half": replace(HALF, newest=7)}},
    ],
)
def test_what_belongs_together_starts(changes: dict[str, Any]) -> None:
    """A first start, a restart in the middle of a batch, a rebuilt checkpoint, tables of others' writers."""
    refuse(replace(GOOD, **changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rebuilding": True}, "a rebuild is in progress"),
        ({"checkpoint": None}, "this checkpoint is new"),
        ({"checkpoint": Checkpoint("q")}, "this checkpoint is new"),
        ({"decisions": replace(GOOD.decisions, owned=1)}, "belong to another checkpoint"),
        ({"decisions": replace(GOOD.decisions, owned=None)}, "belong to another checkpoint"),
        ({"decisions": replace(GOOD.decisions, owner=0, owned=None, last_batch=None)}, "belong to another checkpoint"),
        ({"decisions": replace(GOOD.decisions, last_batch=6)}, "it knows 5 as the last batch, they hold 6"),
        ({"done": 5, "decisions": replace(GOOD.decisions, concluded=4)}, "batch 5 is done, they end with 4"),
        ({"replaced": "the table half was restored"}, "the table half was restored"),
        ({"missing_schema": "file:/a/b"}, "the checkpoint was moved or copied: .*, file:/a/b"),
        (
            {"decisions": replace(GOOD.decisions, planned={5: frozenset({7})}), "times": {5: 6}},
            "written by another batch 5 than the checkpoint has",
        ),
        (
            {"decisions": replace(GOOD.decisions, planned={4: frozenset({6}), 5: frozenset({6, 7})}), "times": {5: 7}},
            "written by another batch 5 than the checkpoint has",
        ),
        ({"partitions": 8}, "reconcile.partitions: is 8, but the checkpoint .* made with 4"),
        ({"segment_size": 100}, "reconcile.segment_size: is 100, but the checkpoint .* made with 4096"),
        ({"logs": {"half": replace(HALF, table="x")}}, "the table half is another one"),
        (
            {
                "checkpoint": Checkpoint("q", Batch(5, 0, (StreamPosition("h", 8), StreamPosition("o", 8)))),
                "logs": {"half": replace(HALF, table="x"), "op": replace(HALF, table="y")},
            },
            "the checkpoint is that of other tables; give these tables a storage.checkpoints of their own",
        ),
        ({"logs": {"half": replace(HALF, newest=6)}}, "ends with version 6, the checkpoint goes on from 8"),
        ({"logs": {"half": replace(HALF, oldest=9)}}, "stopped for longer than delta.logRetentionDuration"),
    ],
)
def test_what_does_not_belong_together_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(StateError, match=says) as refused:
        refuse(replace(GOOD, **changes))
    assert "checkback rebuild" in refused.value.fix
