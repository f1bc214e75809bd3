"""Whose the tables are: the checkpoint that owns them is written down in the log of `decisions`.

As versions of applications in Delta's transaction identifiers, which cost nothing and which no reader sees:
``checkpoint`` counts the owners there were, ``checkpoint/<query id>`` is the owner's number, and
``segment_size/<query id>`` the segment size that it began with. Only for tables that delta-rs writes; of others it is
known only whether there are decisions at all.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from checkback import folders
from checkback.checkpoint import PARTITIONS, Checkpoint, read_checkpoint
from checkback.deltalog import DeltaLog
from checkback.reconcile.guards import Facts, Ledger, Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from checkback.settings import Settings
    from checkback.tables import Tables

_NAME = "reconcile"
#: the folder beside the checkpoint that is there while a rebuild is
REBUILDING = f"{_NAME}.rebuilding"
#: application whose version counts the owners there were
OWNERS = "checkpoint"
_WRITTEN = ("decisions", "discarded", "check_requests", "rejected")
_COMMIT = re.compile(r"([0-9]{20})\.json")


def facts(spark: SparkSession, settings: Settings, tables: Tables) -> Facts:
    """What a start of `reconcile` finds. The tables must be there. Raises StorageError."""
    place = tables.checkpoint(_NAME)
    checkpoint = read_checkpoint(spark, place)
    return Facts(
        place=place,
        checkpoint=checkpoint,
        ledger=_ledger(spark, tables, checkpoint),
        partitions=int(spark.conf.get(PARTITIONS) or settings.reconcile.partitions),
        segment_size=settings.reconcile.segment_size,
        rebuilding=folders.exists(spark, tables.checkpoint(REBUILDING)),
        logs={name: _log(tables, name) for name in ("half", "op", "ticks")} if tables.by_files else {},
    )


def claim(tables: Tables, query_id: str, segment_size: int) -> None:
    """Write down that this query's checkpoint owns the tables, unless it is the owner already.

    Raises FencedError when another one is written down at the same time, StorageError.
    """
    if not tables.by_files:
        return
    own, size = f"{OWNERS}/{query_id}", f"segment_size/{query_id}"
    log = DeltaLog("decisions", tables.location("decisions"))  # its own: batches may use the tables' meanwhile
    found = log.versions([OWNERS, own])
    if found[own] is None or found[own] != found[OWNERS]:
        number = (found[OWNERS] or 0) + 1
        log.commit_after([], found, {OWNERS: number, own: number, size: segment_size})


def _ledger(spark: SparkSession, tables: Tables, checkpoint: Checkpoint | None) -> Ledger:
    if not tables.by_files:
        written = bool(tables.read(spark, "decisions").limit(1).count())
        return Ledger(written, owner=1, owned=1)
    log = tables.log("decisions")
    written = bool(log.data_files())
    if checkpoint is None:
        return Ledger(written)
    query_id = checkpoint.query_id
    own, size = f"{OWNERS}/{query_id}", f"segment_size/{query_id}"
    found = log.versions([OWNERS, own, size])
    batches = [tables.log(name).versions([f"{query_id}/{name}"]) for name in _WRITTEN]
    return Ledger(
        written,
        owner=found[OWNERS] or 0,
        owned=found[own],
        last_batch=max((batch for one in batches for batch in one.values() if batch is not None), default=None),
        segment_size=found[size],
    )


def _log(tables: Tables, name: str) -> Log:
    log = tables.log(name)
    found = [_COMMIT.fullmatch(file) for file in os.listdir(f"{tables.location(name)}/_delta_log")]
    versions = [int(match.group(1)) for match in found if match]
    return Log(log.table_id(), oldest=min(versions, default=0), newest=max(versions, default=0))
