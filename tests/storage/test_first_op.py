"""Which op a half message is decided by: one answer of the segments, the gateway and an operator's command."""

from __future__ import annotations

import tempfile
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checkback.gateway.deduplication.history import DeduplicationHistory
from checkback.gateway.deduplication.remembered_half import STATE_OF
from checkback.operate.lookup import find
from checkback.operate.operator_tables import FileStore
from checkback.operate.transaction import Asked
from checkback.reconcile.records.segment_records import EVENT, NOT_STATED, Action, Kind
from checkback.reconcile.segment import Rules, Segment, decide
from checkback.storage.first_op import is_own, misfit, turn
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables

T0 = datetime(2026, 3, 1, tzinfo=timezone.utc)
EPOCH = datetime.fromtimestamp(0, timezone.utc)
LONG = "tx" * 50
GROUPS, IDS = ["orders", "evil", None], ["tx", "other", LONG, None]
KINDS = {"COMMIT": Kind.COMMIT, "ROLLBACK": Kind.ROLLBACK, "COUNTED": Kind.COUNTED}
TIMES = st.none() | st.integers(0, 4000).map(lambda us: T0 + timedelta(microseconds=500 * us))
OPS = st.lists(
    st.fixed_dictionaries(
        {
            "producer_group": st.sampled_from(GROUPS),
            "transaction_id": st.sampled_from(IDS),
            "state": st.sampled_from(["COMMIT", "ROLLBACK", "COUNTED", "MAYBE", None]),
            "born_timestamp": TIMES,
            "store_timestamp": TIMES,
        }
    ),
    max_size=8,
)


def _us(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


def decided(transaction_id: str, ops: list[dict[str, Any]]) -> str | None:
    """What `reconcile` decides when it all lands in one batch; rows become events as `event_columns` has it."""
    events = np.zeros(1 + len(ops), EVENT)
    events["immunity"], events["born"], events["store"] = -1, _us(T0) // 1000, _us(T0)
    for event, row in zip(events, [{"state": None}, *ops], strict=True):
        if row["state"] is None and "producer_group" not in row:
            event["kind"], event["group"], event["transaction"] = Kind.HALF, 1, 1 + IDS.index(transaction_id)
            continue
        stored = row["store_timestamp"] or EPOCH
        event["kind"] = KINDS.get(row["state"], Kind.UNKNOWN)
        event["group"] = 1 + GROUPS.index(row["producer_group"])
        event["transaction"] = NOT_STATED if row["transaction_id"] is None else 1 + IDS.index(row["transaction_id"])
        event["born"], event["store"] = _us(row["born_timestamp"] or stored) // 1000, _us(stored)
    _, actions = decide(Segment.empty(0, 16), events, _us(T0) // 1000, Rules(), check=False)
    states = [Action(one).name for one in actions["action"] if one in (Action.COMMIT, Action.ROLLBACK)]
    assert len(states) <= 1
    return states[0] if states else None


def land(root: str, name: str, rows: list[dict[str, Any]]) -> None:
    DeltaLog.create(name, f"{root}/{name}")
    with FileWriter(root) as writer:
        writer.write(name, pa.Table.from_pylist(rows, schema=arrow_schema(name)))
        files = writer.close()
    DeltaLog(name, f"{root}/{name}").commit(files)


def op(state: str, us: int = 0, **more: Any) -> dict[str, Any]:
    own = {"producer_group": "orders", "transaction_id": "tx", "state": state, "born_timestamp": T0}
    return own | {"store_timestamp": T0 + timedelta(microseconds=us)} | more


@pytest.mark.slow
@given(st.sampled_from(["tx", LONG]), OPS)
@example("tx", [op("ROLLBACK", producer_group="evil"), op("COMMIT", 1)])
@example("tx", [op("COMMIT"), op("ROLLBACK")])
@example("tx", [op("COMMIT", born_timestamp=T0 + timedelta(microseconds=100)), op("ROLLBACK", born_timestamp=None)])
@example("tx", [op("COMMIT", 1), op("ROLLBACK", 1, transaction_id=None), op("ROLLBACK", transaction_id="other")])
def test_all_go_by_the_same_op(transaction_id: str, ops: list[dict[str, Any]]) -> None:
    """At a start and at a look-up of the gateway, and where an operator asks."""
    own = {"queue_id": 0, "queue_offset": 7, "transaction_id": transaction_id, "producer_group": "orders"}
    half = own | {"real_topic": "payments", "body": b"", "born_timestamp": T0, "store_timestamp": T0}
    place = {"queue_id": 0, "queue_offset": 7, "source": "producer"}
    expected = decided(transaction_id, ops)
    with tempfile.TemporaryDirectory() as root:
        land(root, "half", [half])
        land(root, "op", [place | row for row in ops])
        (found,) = find(FileStore(Tables(root=root, by_files=True)), Asked(transaction_id), 9).transactions
        assert (found.ops[0].state if found.ops else None) == expected
        assert DeduplicationHistory(root).find({(0, 7)})[0, 7].state == expected
        # A start looks at what landed within gateway.dedup_window only.
        (recent,) = DeduplicationHistory(root).recent([0], T0, 10).states
        recently = [row for row in ops if row["store_timestamp"] is not None]
        assert STATE_OF[recent] == decided(transaction_id, recently)


@pytest.mark.parametrize(
    ("op_identity", "wrong"),
    [
        (("orders", "tx"), None),
        (("orders", None), None),
        (("evil", "tx"), "producer_group"),
        (("evil", None), "producer_group"),
        (("evil", "other"), "producer_group"),
        (("orders", "other"), "transaction_id"),
    ],
)
def test_op_fits_its_half(op_identity: tuple[str, str | None], wrong: str | None) -> None:
    """The group always; the transaction id unless the op states none."""
    assert misfit(*op_identity, "orders", "tx") == wrong
    row = {"producer_group": op_identity[0], "transaction_id": op_identity[1], "state": "COMMIT"}
    assert is_own(row, "orders", "tx") == (wrong is None)
    assert not is_own(row | {"state": "UNKNOWN"}, "orders", "tx")


def test_turns() -> None:
    """store_timestamp to the microsecond, then born_timestamp to the millisecond, then ROLLBACK."""
    late = timedelta(microseconds=1)
    ops = [op("COMMIT"), op("ROLLBACK", born_timestamp=T0 + 999 * late), op("COMMIT", born_timestamp=T0 + 1000 * late)]
    ops.append(op("ROLLBACK", 1, born_timestamp=EPOCH))
    assert sorted(ops, key=turn) == [ops[1], ops[0], ops[2], ops[3]]
