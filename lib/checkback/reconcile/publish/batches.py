"""The row of the table `batches`: a batch's counts and rules. No Spark, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.reconcile.records.records import Action
from checkback.storage.schemas import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.reconcile.batch_rules import BatchRules
    from checkback.reconcile.read_ranges import ReadRange

#: the table, and the actions that a column counts; LATE_OP and the rejections: `Written.rejected`
TABLE = "batches"
#: in ``table_versions``: a table that may have rows of the batch
NOT_KNOWN = -1
_COUNTED = {
    "committed": (Action.COMMIT, Action.SCHEDULE),
    "rolled_back": (Action.ROLLBACK,),
    "discarded": (Action.DISCARD,),
    "scheduled": (Action.SCHEDULE,),
    "delivered": (Action.DELIVER,),
    "cancelled": (Action.CANCEL,),
    "checks": (Action.CHECK,),
}


@dataclass(frozen=True)
class Written:
    """What a batch has written: table names, and some row counts."""

    names: frozenset[str] = field(default_factory=frozenset)
    rejected: int = 0
    unpublished: int = 0


def application(query_id: str) -> str:
    """Delta's txnAppId of a query's rows in `batches`; its txnVersion is the batch id."""
    return f"{query_id}/{TABLE}"


def batch_row(
    query_id: str | None,
    batch_id: int,
    batch_time: int,
    finished_at: int,
    decided: BatchRules | None = None,
    counts: Mapping[Action, int] | None = None,
    written: Written | None = None,
    versions: Mapping[str, int] | None = None,
    read: Mapping[str, ReadRange] | None = None,
    restored: Mapping[str, int] | None = None,
) -> pa.Table:
    """One row, with the columns of `batches`. Times are in ms; None = unknown.

    ``counts``: the batch's actions by type. ``versions``: the table versions with the batch's rows and no later ones,
    or NOT_KNOWN. ``read``: `read_ranges`. ``restored``: of a rebuild's first batch, by source the first version not
    restored.
    """
    row: dict[str, Any] = {
        "application": query_id,
        "batch_id": batch_id,
        "batch_time": _time(batch_time),
        "finished_at": _time(finished_at),
        "table_versions": list((versions or {}).items()),
        "read_ranges": None if read is None else [(name, each._asdict()) for name, each in read.items()],
        "restored_at": None if restored is None else list(restored.items()),
    }
    if decided is not None:
        rules = decided.rules
        row |= {
            "checkback_version": decided.release,
            "timeout_ms": rules.timeout,
            "check_interval_ms": rules.check_interval,
            "check_max": rules.check_max,
            "max_age_ms": rules.max_age,
            "check_jitter_ms": rules.check_jitter,
            "count_undelivered": rules.count_undelivered,
        }
    if counts is not None:
        row |= {name: sum(counts.get(action, 0) for action in kinds) for name, kinds in _COUNTED.items()}
    if written is not None:
        row |= {"rejected": written.rejected, "unpublished": written.unpublished}
    return pa.Table.from_pylist([row], arrow_schema(TABLE))


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms // 1000, timezone.utc).replace(microsecond=ms % 1000 * 1000)
