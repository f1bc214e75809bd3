"""Operators at the same time, each in a process of its own: no offset twice, one op a transaction, a true ledger."""

from __future__ import annotations

import multiprocessing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checkback.commands.operate import _now
from checkback.errors import CheckbackError
from checkback.operate.action import act
from checkback.operate.operations import OperatorSignature
from checkback.operate.operator_tables import FileStore
from checkback.operate.request import ending
from checkback.operate.resume import resuming
from checkback.operate.transaction import Asked
from checkback.storage.tables import Tables
from operate.fixtures import QUEUE, T0, Lakehouse

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

pytestmark = pytest.mark.slow

_OPERATORS = 2
_MESSAGES = 6
_PATIENCE_S = 60


def _operate(root: str, number: int, barrier: Barrier) -> None:
    """Resumes, resolves and cancels every message that may be, each at the same moment as the others."""
    store = FileStore(Tables(root=root, by_files=True))
    signed = OperatorSignature(f"operator-{number}", "race")
    state = ("COMMIT", "ROLLBACK")[number % 2]
    for step in range(_MESSAGES):
        # First each its own message, then the others': of offsets and of messages there is a race.
        resumed = Asked(f"gone-{(step + number * (step % 2)) % _MESSAGES}")
        for asked, action in (
            (resumed, resuming(QUEUE, signed, _now)),
            (Asked(f"open-{step}"), ending(state, signed, _now)),
            (Asked(f"due-{step}"), ending("CANCEL", signed, _now)),
        ):
            barrier.wait(_PATIENCE_S)
            try:
                act(store, asked, QUEUE, action)
            except CheckbackError as error:
                if type(error).__name__ != "RefusedError":
                    raise


@pytest.mark.processes
def test_operators_of_several_processes(tmp_path: Path) -> None:
    """However they meet."""
    lake = Lakehouse(tmp_path / "data")
    for number in range(_MESSAGES):
        lake.decide(lake.half(number, f"gone-{number}"), "DISCARD", "checkback")
        lake.half(100 + number, f"open-{number}")
        lake.decide(lake.half(200 + number, f"due-{number}"), "COMMIT", "producer", T0 + timedelta(days=36500))
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(_OPERATORS)
    operators = [context.Process(target=_operate, args=(lake.root, n, barrier)) for n in range(_OPERATORS)]
    for operator in operators:
        operator.start()
    for operator in operators:
        operator.join()
    assert [operator.exitcode for operator in operators] == [0] * _OPERATORS

    resumed = [row for row in lake.rows("half") if row["queue_id"] == QUEUE]
    names = [row["transaction_id"] for row in resumed]
    assert sorted(row["queue_offset"] for row in resumed) == list(range(len(resumed)))
    assert len(set(names)) == len(names) >= _MESSAGES // 2
    cancels = [row for row in lake.rows("op") if row["state"] == "CANCEL"]
    assert sorted(row["transaction_id"] for row in cancels) == [f"due-{number}" for number in range(_MESSAGES)]
    ops = [row for row in lake.rows("op") if row["state"] != "CANCEL"]
    assert sorted(row["transaction_id"] for row in ops) == [f"open-{number}" for number in range(_MESSAGES)]
    done = {("RESUME", row["transaction_id"], row["queue_offset"], _actor(row)) for row in resumed}
    done |= {(f"RESOLVE_{row['state']}", row["transaction_id"], None, row["remark"].split(":")[0]) for row in ops}
    done |= {("CANCEL", row["transaction_id"], None, row["remark"].split(":")[0]) for row in cancels}
    ledger = [
        (row["action"], row["transaction_id"], row["new_queue_offset"], row["actor"]) for row in lake.rows("operations")
    ]
    assert sorted(ledger, key=str) == sorted(done, key=str)


def _actor(row: dict[str, Any]) -> str:
    return str(dict(row["properties"])["CHECKBACK_RESUMED_BY"].split(":")[0])
