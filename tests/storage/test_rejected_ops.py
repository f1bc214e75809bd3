"""Which rows of `op` those of `rejected` are about."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from checkback.storage.rejected_ops import RejectedOps, about

T0 = datetime(2026, 3, 1, tzinfo=timezone.utc)
OP: dict[str, Any] = {
    "queue_id": 3,
    "queue_offset": 7,
    "producer_group": "orders",
    "transaction_id": "tx",
    "state": "COMMIT",
    "born_timestamp": T0 + timedelta(microseconds=1_999),
    "store_timestamp": T0 + timedelta(seconds=1),
}


def rejected(at: datetime | None = T0 + timedelta(hours=1), **other: object) -> RejectedOps:
    raw = OP | {"born_timestamp": 1_772_323_200_001} | other
    del raw["store_timestamp"]
    raw = {name: value for name, value in raw.items() if value is not None}  # as Spark writes it
    return RejectedOps([{"raw": json.dumps(raw), "rejected_at": at}])


def test_op_is_known_by_what_reconcile_has_written_of_it() -> None:
    found = rejected()
    assert OP in found
    assert found.offsets == [7]
    assert OP | {"transaction_id": None} in rejected(transaction_id=None)
    assert OP | {"born_timestamp": None, "store_timestamp": None} in rejected(born_timestamp=None)


@pytest.mark.parametrize(
    "other",
    [
        {"queue_id": 4},
        {"queue_offset": 8},
        {"producer_group": "billing"},
        {"transaction_id": "ty"},
        {"transaction_id": None},
        {"state": "ROLLBACK"},
        {"born_timestamp": T0},
        {"born_timestamp": None},
        {"store_timestamp": T0 + timedelta(hours=2)},
    ],
    ids=str,
)
def test_any_other_op_is_not(other: dict[str, Any]) -> None:
    """One that landed after the batch is another, too: the producer has sent it again."""
    assert OP | other not in rejected()


def test_only_rows_at_the_offsets_are_parsed() -> None:
    """A text may say what it likes."""
    raws = [
        '{"queue_id":0,"queue_offset":7,"state":"COMMIT"}',
        '{"queue_id":0,"queue_offset":77,"state":"COMMIT"}',
        '{"queue_id":0,"queue_offset":-7}',
        '{"queue_id":0,"queue_offset":99999999999999999999999,"remark":"{\\"queue_offset\\":7}"}',
        '{"queue_offset":8,"transaction_id":"\\"queue_offset\\":7"}',
        None,
        "",
    ]
    rows = pa.table({"raw": pa.array(raws, pa.string()), "rejected_at": pa.array([T0] * len(raws))})
    assert [row["raw"] for row in about(rows, [7])] == raws[:1]
    assert [row["raw"] for row in about(rows, np.array([7, 8]))] == [raws[0], raws[4]]
    assert about(rows, []) == []


@pytest.mark.parametrize(
    "raw",
    [None, "", "{", "[]", '"x"', "NaN", '{"queue_id": []}', '{"queue_id": true}', '{"state": {}}', "[" * 100_000],
    ids=lambda raw: str(raw)[:20],
)
def test_what_is_no_op_rejects_none(raw: str | None) -> None:
    assert OP not in RejectedOps([{"raw": raw, "rejected_at": T0}])
    assert OP not in rejected(at=None)
    assert not rejected(at=None)
