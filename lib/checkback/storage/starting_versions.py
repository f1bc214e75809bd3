"""How a query begins to read its tables: with a snapshot of each, or with their commits from version 0 on.

Delta begins with a snapshot, and computes it in Spark jobs over the log: some five times at a first start and the next
one, a second of CPU time for each table. A log that is short, whole, and of appends alone says the same in a few small
files. Batches are recorded by where they end, so a batch that was begun is replayed the way it was begun.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.storage.checkpoints.checkpoint import last_done, read_batch, read_checkpoint
from checkback.storage.log.commit_reader import CommitReader
from checkback.storage.schemas import SOURCES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from checkback.storage.checkpoints.checkpoint import Batch, StreamPosition
    from checkback.storage.tables import Tables

#: longest log that is read commit by commit: each is read here, then by Delta in the driver
MOST_COMMITS = 20


def first_read(spark: SparkSession, tables: Tables, query: str) -> dict[str, dict[str, str]]:
    """By source of the query, in its order, the options of its stream: empty, or to begin with version 0.

    Raises StorageError if the checkpoint or the log of a table cannot be read.
    """
    sources = SOURCES[query]
    if not tables.by_files:
        return {name: {} for name in sources}
    place = tables.checkpoint(query)
    checkpoint = read_checkpoint(spark, place)
    newest = None if checkpoint is None else checkpoint.newest
    before: Batch | None = None
    if newest is not None:
        done = last_done(spark, place)
        before = newest if done >= newest.batch_id else read_batch(spark, place, done) if done >= 0 else None

    def options(at: int, name: str) -> dict[str, str]:
        commits = CommitReader.of(tables.location(name))
        plain = commits is not None and commits.only_appends(MOST_COMMITS)
        ended, begun = (None if batch is None else batch.position(at) for batch in (before, newest))
        return {"startingVersion": "0"} if with_commits(ended, begun, plain) else {}

    return {name: options(at, name) for at, name in enumerate(sources)}


def with_commits(done: StreamPosition | None, newest: StreamPosition | None, plain: bool) -> bool:
    """True if Delta is told to begin with version 0 of a source.

    ``done``, ``newest``: where the last batch that is done, and the newest, end in it. After the first batch Delta
    goes on from there, but still reads that batch once more at a start. ``plain``: whether the log is short and of
    appends alone. If not, and the first batch ends with a whole version, Delta replays it from the snapshot before,
    which has the same rows.
    """
    if newest is not None and newest.starting:
        return False  # begun with a snapshot
    if newest is None or plain:
        return plain
    return done is None and newest.index >= 0
