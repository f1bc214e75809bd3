"""The row of the table `batches`: a batch's counts and rules, and what it has read. No Spark, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from checkback.reconcile.records.segment_records import Action
from checkback.storage.checkpoints.checkpoint import StreamPosition
from checkback.storage.schemas import SOURCES, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.reconcile.checkpointed_rules import BatchRules
    from checkback.storage.checkpoints.checkpoint import Batch


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


#: the query whose batches these are, and its sources with rows
_QUERY, READ = "reconcile", ("half", "op")


class ReadRange(NamedTuple):
    """The files after ``from_index`` of ``from_version``, up to ``to_index`` of ``to_version``; -1 = none of it."""

    from_version: int
    from_index: int
    to_version: int
    to_index: int


def read_ranges(batch: Batch, before: Batch | None, restored: Mapping[str, int] | None = None) -> dict[str, ReadRange]:
    """By source what the batch read: from the end of the batch ``before`` it to its own.

    ``before``: None = it is the first of its checkpoint, which begins with the tables' beginning or, after a rebuild,
    with the versions ``restored``. A source is left out while its first snapshot is read in several batches: the
    snapshot's files are numbered otherwise than those of a version.
    """
    found = {}
    for at, name in enumerate(SOURCES[_QUERY]):
        if name not in READ:
            continue
        begin = (None if before is None else before.position(at)) or StreamPosition("", (restored or {}).get(name, 0))
        end = batch.position(at) or begin
        if not (begin.starting or end.starting):
            found[name] = ReadRange(begin.version, max(begin.index, -1), end.version, max(end.index, -1))
    return found
