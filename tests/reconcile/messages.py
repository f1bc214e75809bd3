"""Rows of `half` and actions on them, for tests of what is published."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from checkback.reconcile.publish.half_lookup import HalfLookup
from checkback.reconcile.records.actions import QUEUED, Actions
from checkback.storage.schemas import arrow_schema

if TYPE_CHECKING:
    from checkback.reconcile.records.segment_records import Action

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
T1 = datetime(2026, 1, 1, 0, 0, 1, tzinfo=timezone.utc)
T0_US, T1_US = 1_767_225_600_000_000, 1_767_225_601_000_000
BATCH_MS = T1_US // 1000
BATCH_ID = 7


def half(offset: int, topic: str = "a", stored: datetime | None = T0, queue: int = 0) -> dict[str, Any]:
    """A row of `half`."""
    return {
        "queue_id": queue,
        "queue_offset": offset,
        "transaction_id": f"tx-{offset}",
        "producer_group": "orders",
        "real_topic": topic,
        "real_queue_id": 3,
        "tags": "tag",
        "keys": "key",
        "properties": [("k", "v")],
        "body": bytes([offset % 256]),
        "erased_at": None,
        "born_timestamp": T0,
        "store_timestamp": stored,
        "check_immunity_s": None,
        "delay_ms": None,
        "deliver_at": None,
        "committed": None,
    }


def halves(*rows: dict[str, Any]) -> pa.RecordBatch:
    """Rows of `half` as the tasks get them."""
    return pa.RecordBatch.from_pylist(list(rows), schema=arrow_schema("half"))


def action(kind: Action, offset: int, store_us: int = T0_US, queue: int = 0, **more: int) -> tuple[Any, ...]:
    """An action on a half message that was checked twice."""
    fields = {"check_times": 2, "detail": 0, "repeated": 0, "group": 0, "transaction": 0, "due": 0} | more
    return (
        queue,
        int(kind),
        offset,
        fields["check_times"],
        fields["detail"],
        fields["repeated"],
        store_us,
        fields["group"],
        fields["transaction"],
        fields["due"],
    )


def actions(*rows: tuple[Any, ...]) -> Actions:
    """The actions of a batch at T1."""
    return Actions(np.array(list(rows), QUEUED), BATCH_MS)


def wanted(*rows: tuple[Any, ...]) -> HalfLookup:
    """What the batch wants of `half`."""
    return HalfLookup.of(actions(*rows), BATCH_ID)
