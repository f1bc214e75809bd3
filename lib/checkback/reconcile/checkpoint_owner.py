"""Ownership of the tables by a checkpoint, stored with the table `decisions`.

In local folders and object stores it is stored as Delta transaction identifiers, which are invisible to readers: the
version of ``checkpoint`` counts the owners so far, that of ``checkpoint/<query id>`` is an owner's number, and
``segment_size/<query id>`` its segment size. SQL cannot read these: elsewhere, and if delta-rs may not commit to the
table, they are table properties, ``checkback.checkpoint`` (the owner's query id), ``checkback.checkpoints`` (its
number) and ``checkback.segment_size``. The owner with the greatest number is the current one.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from checkback.errors import FencedError
from checkback.storage.failure_scope import own_failure
from checkback.storage.files.fsync import flush_owner
from checkback.storage.files.paths import local_path
from checkback.storage.log import spark_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

    from checkback.storage.log.delta_log import DeltaLog
    from checkback.storage.tables import Tables

#: the query, and the folder of its checkpoint
NAME = "reconcile"
#: folder next to the checkpoint that marks a rebuild in progress
REBUILDING = f"{NAME}.rebuilding"
#: application whose version counts the owners so far
OWNERS = "checkpoint"
#: the table of each batch's last commit
CONCLUDED = "batches"
#: tables that a batch commits to, besides topics; the last one is that of its last commit
WRITTEN = ("decisions", "deliveries", "discarded", "check_requests", "rejected", "unpublished", CONCLUDED)
_OWNER, _NUMBER, _SIZE = "checkback.checkpoint", "checkback.checkpoints", "checkback.segment_size"


def claim(spark: SparkSession, tables: Tables, query_id: str, segment_size: int, *, if_unowned: bool = False) -> None:
    """Make this query's checkpoint the owner of the tables. Idempotent.

    If stored as properties, no process may append to `decisions` meanwhile: the append would fail.
    ``if_unowned``: only if no other checkpoint has ever owned them.
    Raises FencedError if another owner is stored concurrently, or has been with ``if_unowned``, StorageError.
    """
    # a separate log: batches may use that of `tables` concurrently
    log = tables.open_log("decisions") if tables.readable else None
    own = f"{OWNERS}/{query_id}"
    before = log.versions([OWNERS, own]) if log is not None else {}
    found = owner_of(spark, tables, log, query_id)
    if found.stands:
        if log is not None:
            log.flush()
        return
    if if_unowned and found.last:
        raise FencedError(
            "the tables belong to another checkpoint: another `checkback reconcile` works on them",
            tables.checkpoint(NAME),
            "let one process work on them, with one storage.checkpoints; if that one is lost, run `checkback rebuild`",
        )
    number, place = found.last + 1, local_path(tables.checkpoint(NAME))
    if log is None or not log.appendable():
        tables.refuse_spark("decisions")
        mine = {_OWNER: query_id, _NUMBER: str(number), _SIZE: str(segment_size)}
        spark_log.set_properties(spark, tables.in_sql("decisions"), mine)
        return
    if tables.sync and place is not None:
        flush_owner(place)
    log.commit_after([], before, {OWNERS: number, own: number, f"segment_size/{query_id}": segment_size})


def committed(spark: SparkSession, tables: Tables, query_id: str, batch_id: int) -> list[str]:
    """Names of the tables that a query's batch has committed to; unreadable topic tables are left out.

    Raises StorageError.
    """
    names = [*WRITTEN, *tables.topics(spark)]

    def last(name: str) -> int | None:
        try:
            return tables.last_version(spark, name, f"{query_id}/{name}")
        except Exception as error:
            if name in WRITTEN:
                raise
            own_failure(error)
            return None

    with ThreadPoolExecutor(max_workers=8) as pool:
        found = pool.map(last, names)
        return [name for name, version in zip(names, found, strict=True) if version is not None and version >= batch_id]


def last_owner(spark: SparkSession, tables: Tables, applications: Iterable[str]) -> str | None:
    """The one of the applications (query ids) that owned the tables last; None: none of them, or unknown.

    Raises StorageError.
    """
    log = tables.log("decisions") if tables.readable else None
    for name in applications:
        if owner_of(spark, tables, log, name).stands:
            return name
    return None


class Owner(NamedTuple):
    """``last``: the number of owners so far. ``own``: the number of a query's checkpoint, None = it never was an owner.

    ``size``: its segment size, None = unknown.
    """

    last: int
    own: int | None = None
    size: int | None = None

    @property
    def stands(self) -> bool:
        """True if the query's checkpoint is the current owner."""
        return bool(self.last) and self.own == self.last


def owner_of(spark: SparkSession, tables: Tables, log: DeltaLog | None, query_id: str) -> Owner:
    """``log``: that of `decisions`; None: use Spark."""
    if log is None:
        properties = spark_log.properties(spark, tables.in_sql("decisions"))
        return _of_properties(properties, query_id)
    own, size = f"{OWNERS}/{query_id}", f"segment_size/{query_id}"
    found = log.versions([OWNERS, own, size])
    noted = Owner(found[OWNERS] or 0, found[own], found[size])
    # The greater number of both forms is the current one.
    other = _of_properties(log.properties(), query_id)
    if other.last <= noted.last:
        return noted
    return other if other.own is not None else Owner(other.last, noted.own, noted.size)


def _of_properties(found: Mapping[str, str], query_id: str) -> Owner:
    if _OWNER not in found:
        return Owner(0)
    number = int(found.get(_NUMBER, 1))
    if found[_OWNER] != query_id:
        return Owner(number)
    return Owner(number, number, int(found[_SIZE]) if _SIZE in found else None)
