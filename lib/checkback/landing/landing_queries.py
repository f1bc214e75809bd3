"""The landing queries of a run, one for each kind: started, drained or awaited, counted.

What a checkpoint was made with is in small files in it: with something else it would lose or repeat rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkback.errors import StateError
from checkback.landing.batch import ANEW, Landing
from checkback.spark.shutdown import stop_on_signal
from checkback.storage.checkpoints.checkpoint import UnreadableCheckpointError, last_done, numbers
from checkback.storage.checkpoints.checkpoint_fit import fit, misfit
from checkback.storage.checkpoints.seen_commits import SeenCommits
from checkback.storage.crash_recovery import torn_query
from checkback.storage.files import filesystem
from checkback.storage.files.paths import for_spark
from checkback.storage.queue_owners import ANY_TOPIC, OwnedQueues
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from checkback.landing.parser import Kind, Reader
    from checkback.settings import Settings
    from checkback.storage.queue_owners import QueueOwner


def made_with(spark: SparkSession, checkpoint: str, key: str, value: str) -> str | None:
    """The value that the checkpoint was made with, if it is another one; else None, and this one is recorded.

    A checkpoint that has begun no batch takes any value, one without a record the first. Raises StorageError.
    """
    file = f"{checkpoint}/{key}"
    found = filesystem.text(spark, file) if filesystem.exists(spark, file) else None
    if found == value:
        return None
    if found is not None and has_begun(spark, checkpoint):
        return found
    filesystem.write(spark, file, value)
    return None


def has_begun(spark: SparkSession, checkpoint: str) -> bool:
    """Has a batch begun? Raises StorageError."""
    return bool(filesystem.names(spark, f"{checkpoint}/offsets"))


def planned_inside(spark: SparkSession, checkpoint: str, inside: str) -> str | None:
    """What the files of an interrupted batch are inside of, by the run that has listed them; None = there is none.

    ``inside``: what those of later batches are inside of, which is recorded by the first of them. Raises StorageError.
    """
    file, begun = f"{checkpoint}/inside", max(numbers(spark, f"{checkpoint}/offsets"), default=-1)
    kept = json.loads(filesystem.text(spark, file)) if filesystem.exists(spark, file) else {}
    mine = max((int(first) for first in kept if int(first) <= begun), default=None)
    before = None if mine is None or begun <= last_done(spark, checkpoint) else str(kept[str(mine)])
    noted = {str(begun + 1): inside} if before is None else {str(begun): before, str(begun + 1): inside}
    if noted != kept:
        filesystem.write(spark, file, json.dumps(noted))
    return before


@dataclass(frozen=True)
class Landed:
    """The number of rows that a run wrote to `half` and `op`, and of inputs to `rejected`.

    ``ignored``: of updates and deletes in a source table.
    """

    half: int = 0
    op: int = 0
    rejected: int = 0
    ignored: int = 0


def _as_it_is(batch: DataFrame) -> DataFrame:
    return batch


@dataclass(frozen=True)
class LandingStream:
    """A stream to land.

    ``lines`` turns a batch of ``rows`` into line BINARY, file, file_time, file_block, store_timestamp, and the other
    columns of ``reader``; None: the batch has none. ``query`` names the query and its checkpoint. ``confirm`` is
    called in each batch before anything is written; an exception ends the query. ``outbox``: see `Landing`; its lines
    have snapshot BIGINT, too: of a row of a snapshot, which may have landed before, its born_timestamp (ms; 0 =
    unknown), else NULL.
    """

    rows: DataFrame
    query: str
    reader: Reader
    lines: Callable[[DataFrame], DataFrame | None] = _as_it_is
    confirm: Callable[[], object] = bool
    outbox: int | None = None


def run(
    spark: SparkSession,
    settings: Settings,
    inlets: Mapping[Kind, LandingStream],
    owner: QueueOwner,
    available_now: bool,
    meanwhile: Callable[[], object] | None = None,
    mark: int = ANY_TOPIC,
) -> Landed:
    """Land each stream into the table of its kind, in the order given.

    ``mark``: the version that records whose the queues are, a topic's or an outbox table's: see `queue_owners`.

    With ``available_now`` the available input is landed, one stream after the other; else the streams run concurrently
    until SIGINT or SIGTERM, which let the running batch finish, and ``meanwhile`` is called once a second.
    Raises CheckbackError if a query fails, StateError if its checkpoint does not belong to the tables.
    """
    tables = Tables.of(settings.storage)
    tables.create(spark, *inlets, "rejected")
    for kind, inlet in inlets.items():
        _refuse_misfit(spark, tables, kind, inlet.query)

    landings = {
        kind: _landing(
            tables, kind, inlet, OwnedQueues(tables, kind, owner, settings.operator.queue, mark), settings.delay.max
        )
        for kind, inlet in inlets.items()
    }
    writers = {kind: _writer(inlet, tables) for kind, inlet in inlets.items()}
    with stop_on_signal() as stopper:
        if available_now:
            for kind, writer in writers.items():
                stopper.start(writer.trigger(availableNow=True), landings[kind])
                stopper.wait()
        else:
            for kind, writer in writers.items():
                stopper.start(writer.trigger(processingTime=_interval(settings.reconcile.trigger)), landings[kind])
            stopper.wait(meanwhile=meanwhile)
    taken = {kind: landing.taken for kind, landing in landings.items()}
    return Landed(**taken, rejected=sum(landing.rejected for landing in landings.values()))


def _refuse_misfit(spark: SparkSession, tables: Tables, kind: Kind, query: str) -> None:
    if (torn := torn_query(tables, query)) is not None:
        raise StateError(torn, tables.checkpoint(query), ANEW)
    try:
        found = fit(spark, tables, query, (kind, "rejected"))
    except UnreadableCheckpointError as error:
        raise StateError(error.what, error.where, ANEW) from error
    why = None if found is None else misfit(found)
    if why is not None:
        raise StateError(why.what, tables.checkpoint(query), ANEW)
    # Where commits can be read, those that the checkpoint has seen tell (`SeenCommits`).
    if not tables.readable and made_with(spark, tables.checkpoint(query), "table", tables.table_id(spark, kind)):
        what = f"the table {kind} is another one than the checkpoint was made with"
        raise StateError(what, tables.checkpoint(query), ANEW)


def _landing(tables: Tables, kind: Kind, inlet: LandingStream, queues: OwnedQueues, max_delay: timedelta) -> Landing:
    flush, seen = tables.flush_of(inlet.query, "half"), SeenCommits(tables, inlet.query, ANEW)
    return Landing(tables, kind, inlet.reader, queues, inlet.lines, inlet.confirm, seen, flush, max_delay, inlet.outbox)


def _writer(inlet: LandingStream, tables: Tables) -> DataStreamWriter:
    writer = inlet.rows.writeStream.queryName(inlet.query)
    return writer.option("checkpointLocation", for_spark(tables.checkpoint(inlet.query)))


def _interval(trigger: timedelta) -> str:
    return f"{round(trigger.total_seconds() * 1000)} milliseconds"
