"""A name that collides with another group's: what its op ends, by the hash that the checkpoint was begun with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from checkback.application.rebuild import rebuild
from checkback.errors import CheckbackError, StateError
from checkback.inspect.answers import Answers
from checkback.reconcile import batch_rules
from checkback.reconcile.batch_rules import BatchRules, group_hash_of, keep
from checkback.reconcile.publish.event_columns import half_events, op_events
from checkback.reconcile.records.records import EVENT, NOT_STATED, Kind
from checkback.reconcile.segment import Rules, Segment, decide
from checkback.reconcile.state.group_hash import GROUP_HASH, GroupHash
from checkback.reconcile.state.state_codec import decode, encode
from reconcile.frames import half_frame, op_frame
from reconcile.messages import half
from reconcile.test_batch_rules import Lakehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: computed: xxhash64 of this name, seed 42, is that of "orders"
_COLLIDES = "-ZtIkm5SjQ6feh7ldNMSc04RvwwHVYHqyceT1AIn"
#: of this transaction id it is 0
_ZERO = "5ycOC_GE8f9DUs<TyUPiYfDsm^3;b3n1o[bbE2tk"


def test_only_the_hash_of_a_release_before_takes_them_for_one(spark: SparkSession) -> None:
    halves, ops = half_frame(spark, half(1)), op_frame(spark, (1, None, _COLLIDES))
    for group_hash, same in ((GroupHash.XXHASH64, True), (GroupHash.SHA1, False)):
        (own,), (alien,) = half_events(halves, group_hash).collect(), op_events(ops, group_hash).collect()
        assert (own["group"] == alien["group"]) is same
    assert GROUP_HASH is GroupHash.SHA1


def test_transaction_id_that_is_stated_is_never_taken_for_none(spark: SparkSession) -> None:
    (op,) = op_events(op_frame(spark, (1, _ZERO, "orders"))).collect()
    assert op["transaction"] != NOT_STATED


def test_op_of_a_colliding_group_ends_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """It is rejected, and the owner's op is obeyed."""
    lake = Lakehouse(spark, tmp_path)
    lake.land("half", *_halves(0, 1))
    lake.land("op", _op(0, "COMMIT", _COLLIDES), _op(1, "ROLLBACK", _COLLIDES))
    lake.run(lake.settings())
    lake.land("op", _op(0, "ROLLBACK", "orders"), _op(1, "COMMIT", "orders"))
    lake.run(lake.settings())
    assert lake.rows("decisions", "queue_offset", "state") == [(0, "ROLLBACK"), (1, "COMMIT")]
    assert [(json.loads(raw)["producer_group"], reason) for raw, reason in lake.rows("rejected", "raw", "reason")] == [
        (_COLLIDES, "wrong producer_group: not that of the half message")
    ] * 2


def test_checkpoint_keeps_its_hash_until_rebuild_and_audit_finds_what_it_let_through(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lakehouse(spark, tmp_path)
    lake.land("half", *_halves(0, 1, 2))
    with monkeypatch.context() as patch:
        patch.setattr(batch_rules, "GROUP_HASH", GroupHash.XXHASH64)
        lake.run(lake.settings())
    for rules in Path(lake.tables.checkpoint("reconcile"), batch_rules.FOLDER).iterdir():
        found = json.loads(rules.read_text())
        del found["group_hash"]  # as the release before wrote it
        rules.write_text(json.dumps(found))
    lake.land("op", _op(0, "COMMIT", "orders"), _op(1, "COMMIT", _COLLIDES))
    lake.run(lake.settings())
    assert lake.rows("decisions", "queue_offset", "state") == [(0, "COMMIT"), (1, "COMMIT")]
    assert Answers(lake.settings()).audit().broken
    assert rebuild(spark, lake.settings(), print) is not None
    for state, group in (("COMMIT", _COLLIDES), ("ROLLBACK", "orders")):
        lake.land("op", _op(2, state, group))
    lake.run(lake.settings())
    assert lake.rows("decisions", "queue_offset", "state")[2:] == [(2, "ROLLBACK")]


def test_checkpoint_is_not_read_by_another_hash_than_its_own(spark: SparkSession, tmp_path: Path) -> None:
    """With the folder `rules` lost, it is refused, with what to do; with it back, it goes on."""
    lake = Lakehouse(spark, tmp_path)
    lake.land("half", *_halves(0))
    lake.run(lake.settings())
    rules = Path(lake.tables.checkpoint("reconcile"), batch_rules.FOLDER)
    aside = rules.rename(tmp_path / "aside")
    lake.land("op", _op(0, "COMMIT", "orders"))
    with pytest.raises(CheckbackError, match="names producer groups by sha1"):
        lake.run(lake.settings())
    for file in rules.iterdir():
        file.unlink()
    aside.rename(rules)
    lake.run(lake.settings())
    assert lake.rows("decisions", "queue_offset", "state") == [(0, "COMMIT")]


def test_rules_that_cannot_be_read_are_not_guessed(spark: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "reconcile")
    assert group_hash_of(spark, place, None) is GROUP_HASH
    assert group_hash_of(spark, place, 5) is GroupHash.XXHASH64
    keep(spark, place, 0, BatchRules(Rules(), group_hash=GroupHash.SHA1))
    keep(spark, place, 3, BatchRules(Rules(timeout=1), group_hash=GroupHash.SHA1))
    (tmp_path / "reconcile/rules/3").write_text("torn")
    assert group_hash_of(spark, place, 5) is GroupHash.SHA1
    (tmp_path / "reconcile/rules/0").write_text("")
    with pytest.raises(StateError, match="`checkback rebuild`"):
        group_hash_of(spark, place, 5)


def test_block_says_by_which_hash_it_was_made() -> None:
    event = np.zeros(1, EVENT)
    event["kind"], event["group"] = Kind.HALF, 7
    segment, _ = decide(Segment.empty(0, 4), event, 0, Rules())
    for group_hash in GroupHash:
        block = encode(segment, group_hash=group_hash)
        assert decode(block, 0, 4, group_hash)[0].pending["group"].tolist() == [7]
        (other,) = set(GroupHash) - {group_hash}
        with pytest.raises(StateError, match="`checkback rebuild`"):
            decode(block, 0, 4, other)


def _halves(*offsets: int) -> list[dict[str, object]]:
    common = {"producer_group": "orders", "real_topic": "t"}
    return [common | {"queue_offset": offset, "transaction_id": f"t{offset}"} for offset in offsets]


def _op(offset: int, state: str, group: str) -> dict[str, object]:
    return {"half_offset": offset, "state": state, "producer_group": group, "source": "producer"}
