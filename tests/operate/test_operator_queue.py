"""`operator.queue` is changed: a message is resumed once all the same, by whom the new or the old one is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from checkback.operate.action import Outcome, act
from checkback.operate.permissions import RefusedError
from checkback.operate.resume import resuming
from checkback.operate.resume_all import resumable, resume_some
from checkback.operate.transaction import Asked, Place
from operate.fixtures import ALICE, BOB, QUEUE, Lakehouse
from operate.test_action import CrashError, Crashing, Meanwhile

if TYPE_CHECKING:
    from pathlib import Path

    from checkback.operate.operations import OperatorSignature
    from checkback.operate.operator_tables import OperatorTables

BEFORE = QUEUE - 1


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    found = Lakehouse(tmp_path)
    found.discarded()
    return found


def resume(
    lake: Lakehouse, queue: int, signed: OperatorSignature, asked: Asked, store: OperatorTables | None = None
) -> Outcome:
    return act(store or lake.store(), asked, queue, resuming(queue, signed, lake.clock))


def resume_all(lake: Lakehouse, store: OperatorTables) -> Outcome:
    chosen = resumable(store, QUEUE)
    if not chosen:
        raise RefusedError("nothing to resume", "--all")
    (outcome,) = resume_some(store, chosen, QUEUE, BOB, lake.clock)
    if not isinstance(outcome, Outcome):
        raise outcome
    return outcome


@pytest.mark.parametrize("way", ["by its id", "by its place", "all"])
def test_what_was_resumed_into_the_queue_before_and_not_recorded(lake: Lakehouse, way: str) -> None:
    """A crash before the ledger: the log of `half` names the queue; the row is the first one's."""
    with pytest.raises(CrashError):
        resume(lake, BEFORE, ALICE, Asked("tx"), Crashing(lake.store(), before="operations"))
    if way == "all":
        outcome = resume_all(lake, lake.store())
    else:
        outcome = resume(lake, QUEUE, BOB, Asked("tx", place=Place(0, 12) if way == "by its place" else None))
    assert outcome.repeated
    assert [row["queue_id"] for row in lake.rows("half")] == [0, BEFORE]
    assert [(row["actor"], row["new_queue_id"]) for row in lake.rows("operations")] == [("alice", BEFORE)]
    assert not resumable(lake.store(), QUEUE)


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(12))
@pytest.mark.parametrize("everything", [False, True])
def test_operators_with_different_queues_resume_a_message_once(lake: Lakehouse, turn: int, everything: bool) -> None:
    """One began before the change. Whenever he comes."""
    late = []

    def other() -> None:
        try:
            late.append(resume(lake, BEFORE, ALICE, Asked("tx")).repeated)
        except RefusedError:
            late.append(True)

    store = Meanwhile(lake.store(), turn, other)
    try:
        _ = resume_all(lake, store) if everything else resume(lake, QUEUE, BOB, Asked("tx"), store)
    except RefusedError as error:
        assert late == [False], error  # noqa: PT017 - it may be refused only if the other was first
    assert len(lake.rows("half")) == 2
    assert len(lake.rows("operations")) == 1
