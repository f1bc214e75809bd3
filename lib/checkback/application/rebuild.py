"""Rebuilds the checkpoint from the tables alone: pending is what `half` holds and `decisions` lacks.

For a checkpoint that is lost, or incompatible (another number of partitions, another segment size). No transaction is
decided twice: the initial state is what is pending, and the query reads what lands from then on.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F

from checkback.application.queries import tick, without_no_data_batches
from checkback.check.checkpoint_reset import renew
from checkback.errors import FencedError, SettingsError, StorageError
from checkback.reconcile.checkpoint_owner import NAME, REBUILDING, WRITTEN, claim
from checkback.reconcile.checkpointed_rules import batch_rules, in_force, keep, rules_of
from checkback.reconcile.lost_checkpoint import interrupted_batch
from checkback.reconcile.lost_checkpoint.batch_recovery import Deleted, finish
from checkback.reconcile.lost_checkpoint.lost_decisions import refuse_lost
from checkback.reconcile.publish.batch_row import TABLE as BATCHES
from checkback.reconcile.publish.batch_row import batch_row, read_ranges
from checkback.reconcile.publish.check_counts import CHECKED, checks_so_far
from checkback.reconcile.publish.event_columns import half_events, identity_columns, op_events
from checkback.reconcile.publish.rejected import raw_op, rejected_halves
from checkback.reconcile.publish.topic_tables import side_by_side
from checkback.reconcile.query import Restored, reconcile_query
from checkback.reconcile.records.segment_records import NOT_STATED, Action, Kind
from checkback.reconcile.start.start_facts import partitions
from checkback.reconcile.state.packed_events import parse_key
from checkback.reconcile.state.processor import STATE_SCHEMA
from checkback.reconcile.state.state_codec import encode
from checkback.reconcile.state.state_restore import ROW, Known, restore
from checkback.spark.connect import classic_only
from checkback.spark.shutdown import stop_on_signal
from checkback.storage.checkpoints.checkpoint import read_batch, read_checkpoint
from checkback.storage.crash_recovery import recover_tables
from checkback.storage.dataframes import is_connect
from checkback.storage.failure_scope import own_failure
from checkback.storage.files import filesystem
from checkback.storage.files.object_store import is_registered
from checkback.storage.horizon import refuse_older_half
from checkback.storage.lock import exclusive_lock
from checkback.storage.schemas import SCHEMAS, SOURCES
from checkback.storage.table_scan import read_table
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from checkback.reconcile.lost_checkpoint.interrupted_batch import InterruptedBatch
    from checkback.reconcile.publish.batch_row import ReadRange
    from checkback.reconcile.segment import Rules
    from checkback.settings import Settings
    from checkback.storage.lock import Lock

BLOCKS_SCHEMA = f"segment STRING, {STATE_SCHEMA}"
_KEY = ["queue_id", "offset"]
_OWN = ["queue_id", "queue_offset"]


@dataclass(frozen=True)
class Rebuilt:
    """The result of a rebuild. ``set_aside``: new path of the old checkpoint; None = there was none."""

    segments: int
    finished: dict[str, int] = field(default_factory=dict)
    set_aside: str | None = None


def rebuild(
    spark: SparkSession, settings: Settings, tell: Callable[[str], object], deleted: Deleted = Deleted.REFUSE
) -> Rebuilt | None:
    """Rebuild the checkpoint of `reconcile`; the next `reconcile` resumes from it. None if interrupted by a signal.

    No `reconcile` may run meanwhile. Step 1: mark the rebuild as in progress; until it is done no `reconcile` starts,
    unless an error ends it before it has changed anything (`_marked`). Step 2: complete a batch that was interrupted.
    Step 3: restore the segments. Step 4: move the old checkpoint aside, where it is kept, and start a query in its
    place with the segments as initial state (Spark stores absolute paths in a checkpoint: it cannot be built elsewhere
    and moved). If interrupted at any point, run it again: each step works from the tables as they are then.

    ``tell`` is called with a line before each step. ``deleted``: what to do with messages deleted from their tables.
    Raises FencedError if another process works on the tables, StateError if there are deleted messages and ``deleted``
    is REFUSE, or what has ended is there without its decision (`lost_decisions`) and it is not PUBLISH_AGAIN,
    StorageError, CheckbackError if the query fails, SettingsError if there is none of the tables, or with Spark Connect
    if the checkpoint is in an object store.
    """
    tables = Tables.of(settings.storage)
    if is_registered(tables.checkpoint(NAME)):  # Spark refuses S3A's folder markers, which Hadoop's client removes
        classic_only(spark, "rebuild")
    if not any(tables.exists(spark, name) for name in SCHEMAS):
        raise SettingsError(
            "there is no such table",
            tables.location("half"),
            "name the place of the tables; a first start is `reconcile`",
        )
    with exclusive_lock(tables) as lock:

        def step(what: str) -> None:
            lock.confirm()
            tell(what)

        if tables.sync:
            recover_tables(tables)
        tables.create(spark, *SCHEMAS)
        refuse_older_half(spark, tables)
        with _marked(spark, tables.checkpoint(REBUILDING)) as changing:
            return _rebuild(spark, settings, tables, lock, step, changing, deleted)


@contextmanager
def _marked(spark: SparkSession, mark: str) -> Iterator[Callable[[], object]]:
    """Make the folder that marks a rebuild; yields a function to call before anything is changed.

    Rows that a rebuild appends are unknown to the old checkpoint, which would write them again. An error before that
    removes the mark: the checkpoint is as good as before.
    """
    changed = filesystem.exists(spark, mark)  # by a rebuild that was broken off

    def changing() -> None:
        nonlocal changed
        changed = True

    filesystem.make(spark, mark)
    try:
        yield changing
    except FencedError:  # the mark may be the other process's
        raise
    except BaseException:
        if not changed:
            filesystem.delete(spark, mark)
        raise


def _rebuild(
    spark: SparkSession,
    settings: Settings,
    tables: Tables,
    lock: Lock,
    tell: Callable[[str], object],
    changing: Callable[[], object],
    deleted: Deleted,
) -> Rebuilt | None:
    place = tables.checkpoint(NAME)
    renew(spark, tables)
    _forestall(spark, tables)
    tell("finishing what a batch has left half done")
    interrupted = interrupted_batch.find(spark, tables)
    finished = finish(spark, tables, interrupted, deleted, changing)
    if deleted is not Deleted.PUBLISH_AGAIN:
        refuse_lost(spark, tables, tables.topics(spark), settings.transaction.timeout)
    _conclude(spark, tables, interrupted, changing)
    tell("restoring the segments from the tables")
    versions = {name: _first_unread(spark, tables, name) for name in SOURCES[NAME]}
    now = round(time.time() * 1000)
    _reject_repeated(spark, tables, versions, now, changing)
    blocks = segment_blocks(spark, tables, settings, versions, now).persist()
    try:
        segments = blocks.count()
        tell(f"starting with {segments} segments")
        changing()
        set_aside = filesystem.put_aside(spark, place)
        with stop_on_signal(lock.confirm) as stopper, without_no_data_batches(spark):
            tick(spark, tables)
            decided = batch_rules(settings, partitions(spark, settings), is_connect(spark))
            restored = Restored(blocks, versions)
            keep(spark, place, 0, decided)
            query = stopper.start(*reconcile_query(spark, settings, tables, True, decided, restored))
            stopper.wait()
            if query is None or stopper.wanted:
                return None
    finally:
        blocks.unpersist()
    claim(spark, tables, query.id, settings.reconcile.segment_size)
    filesystem.delete(spark, tables.checkpoint(REBUILDING))
    return Rebuilt(segments, finished, set_aside)


def _forestall(spark: SparkSession, tables: Tables) -> None:
    """Commit to each table that batches write, without rows: a commit that another process has sent comes too late.

    In an object store, that process may have lost its lease while the request was on its way, or it was stopped. What
    the rebuild appends has no application id by which the other one would see that it is not to commit again; its next
    attempt confirms the lease.
    """
    if not tables.by_files or tables.local:
        return

    def commit(name: str) -> None:
        try:
            tables.mark(spark, name)
        except Exception as error:
            if name in WRITTEN:
                raise
            own_failure(error)  # a damaged topic stops no other

    side_by_side(commit, (*WRITTEN, *tables.topics(spark)))


def _conclude(
    spark: SparkSession, tables: Tables, found: InterruptedBatch | None, changing: Callable[[], object]
) -> None:
    """Append the interrupted batch, now complete, to `batches`. No-op if that has lost its rows."""
    if found is None or not (found.first or tables.read(spark, BATCHES).head() is not None):
        return
    decided = in_force(spark, tables.checkpoint(NAME), found.rows.batch_id)
    now = round(time.time() * 1000)
    read = _read(spark, tables, found)
    row = batch_row(found.application, found.rows.batch_id, found.rows.time, now, decided, read=read)
    changing()
    # A separate txnAppId: the query's own transaction version may already be past this batch.
    tables.append_arrow(spark, row, BATCHES, f"concluded/{found.rows.batch_id}/{found.rows.time}", 0)


def _read(spark: SparkSession, tables: Tables, found: InterruptedBatch) -> dict[str, ReadRange] | None:
    """What the interrupted batch has read, if its checkpoint is still there and tells."""
    place, number = tables.checkpoint(NAME), found.rows.batch_id
    with suppress(StorageError):
        checkpoint = read_checkpoint(spark, place)
        # What the first batch of a rebuilt checkpoint begins with is not in it.
        if checkpoint is not None and checkpoint.query_id == found.application and number > 0:
            return read_ranges(read_batch(spark, place, number), read_batch(spark, place, number - 1))
    return None


def _first_unread(spark: SparkSession, tables: Tables, name: str) -> int:
    """The first version that the new query reads: no query has seen its rows. Earlier versions are restored.

    It is an empty commit made here, or a later one. The lost query may have read up to the newest version before it,
    which is made here, too: Delta reads no version but the newest that is older than a week
    (delta.deletedFileRetentionDuration), and nothing may have been committed for as long.
    """
    for _ in range(2):
        tables.mark(spark, name)
    return tables.version(spark, name)


def _reject_repeated(
    spark: SparkSession, tables: Tables, versions: Mapping[str, int], now: int, changing: Callable[[], object]
) -> None:
    """Append the repeated half messages that no query rejects any more to `rejected`, unless they are there.

    They landed before ``versions``. Of an offset one counts, as in `restore`: the decided one, or the first to land.
    """
    half = read_table(spark, tables, "half", versions["half"] - 1)
    offsets = half.groupBy(*_OWN).count().where("count > 1").select(*_OWN)
    if offsets.head() is None:
        return
    rejected = read_table(spark, tables, "rejected").where("source = 'half'").select("raw")
    half = half.join(F.broadcast(offsets), on=_OWN, how="left_semi")
    first = Window.partitionBy(*_KEY).orderBy(F.desc("about"), "store", "group", "transaction")
    halves = _judged(half, read_table(spark, tables, "decisions")).withColumn("turn", F.row_number().over(first))
    again = halves.where("turn > 1").select(
        "queue_id",
        F.col("offset").alias("queue_offset"),
        F.col("store").alias("store_us"),
        F.col("group").alias("group_hash"),
        F.col("transaction").alias("transaction_hash"),
        F.lit(int(Action.REJECT_HALF)).alias("action"),
        F.lit(now).alias("batch_time"),
    )
    rows = rejected_halves(again, half).join(rejected, on="raw", how="left_anti").persist()
    try:
        if rows.head() is not None:
            changing()
            tables.append(rows, "rejected")
    finally:
        rows.unpersist()


def segment_blocks(
    spark: SparkSession, tables: Tables, settings: Settings, versions: Mapping[str, int], now: int
) -> DataFrame:
    """BLOCKS_SCHEMA: the segments restored from the tables, excluding half and op from ``versions`` on.

    The query that starts with them reads those itself. ``now``: the time, in ms.
    """
    size, rules = settings.reconcile.segment_size, rules_of(settings)
    read = {name: read_table(spark, tables, name) for name in ("decisions", "deliveries", "check_requests", "rejected")}
    read |= {name: read_table(spark, tables, name, versions[name] - 1) for name in ("half", "op")}
    rows = _halves(read, now - rules.max_age, rules).unionByName(_ops(read))
    segment = F.concat_ws("/", "queue_id", F.expr(f"offset div {size}"))

    def block(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
        found = np.empty(table.num_rows, ROW)
        for name in ROW.names or ():
            found[name] = table.column(name).to_numpy()
        restored = restore(parse_key(key[0].as_py(), size)[1], size, found, now, rules)
        blocks = [] if restored is None else [(key[0].as_py(), encode(restored))]
        columns = zip(*blocks, strict=True) if blocks else ([], [])
        kinds = (pa.string(), pa.binary())
        arrays = [pa.array(list(values), kind) for values, kind in zip(columns, kinds, strict=True)]
        return pa.Table.from_arrays(arrays, ["segment", "block"])

    return rows.withColumn("segment", segment).groupBy("segment").applyInArrow(block, BLOCKS_SCHEMA)


def _halves(read: Mapping[str, DataFrame], since: int, rules: Rules) -> DataFrame:
    """Half messages: all undecided and scheduled ones, and those that landed or were decided ``since`` (ms).

    A decision that matches no half message at its offset is ignored: `half` was restored to an older state, and the
    offset assigned again. Checks, deliveries and cancels of another half message at the offset do not count either.
    """
    is_scheduled = F.col("scheduled").isNotNull()
    checks = checks_so_far(read["check_requests"], read["op"], rules.count_undelivered, rules.check_max)
    halves = (
        _judged(read["half"], read["decisions"])
        .join(_scheduled(read), on=CHECKED, how="left")
        .withColumn("decided", F.max("about").over(Window.partitionBy(*_KEY)))
        .join(checks, on=CHECKED, how="left")
        .withColumns(
            {
                "known": F.when(is_scheduled, _known(Known.SCHEDULED))
                .when(F.col("decided"), _known(Known.DECIDED))
                .otherwise(_known(Known.UNDECIDED)),
                "delay": F.when(is_scheduled, F.col("scheduled")).otherwise(F.col("delay")),
                "check_times": F.coalesce("check_times", F.lit(0)),
                "requested": F.coalesce("requested", F.lit(0)),
                "at": F.coalesce(F.when(F.col("decided"), F.col("decided_at")), "checked", F.lit(0)),
            }
        )
        .withColumn("at", F.col("at").cast("bigint"))
        .drop("decided_at", "decided", "checked", "about", "scheduled")
    )
    recent = (F.col("store") >= since * 1000) | (F.col("at") >= since)
    return halves.where((F.col("known") != Known.DECIDED) | recent)


def _judged(half: DataFrame, decisions: DataFrame) -> DataFrame:
    """EVENT_COLUMNS of half messages; decided_at (ms) of their offset; about BOOLEAN: a decision there is theirs."""
    decided_at = F.max(F.unix_millis("decided_at")).alias("decided_at")
    group, transaction = identity_columns()
    group = F.when(F.col("producer_group").isNotNull(), group).alias("group_hash")
    whose = F.collect_set(F.struct(group, transaction)).alias("whose")
    decided = decisions.groupBy("queue_id", F.col("queue_offset").alias("offset")).agg(decided_at, whose)
    about = F.coalesce(F.exists("whose", _is_about), F.lit(False))
    return half_events(half).join(decided, on=_KEY, how="left").withColumn("about", about).drop("whose")


def _scheduled(read: Mapping[str, DataFrame]) -> DataFrame:
    """CHECKED, scheduled BIGINT: when what is neither delivered nor cancelled is to be delivered (ms)."""

    def of(rows: DataFrame, *more: Column) -> DataFrame:
        group, transaction = identity_columns()
        own = F.col("queue_offset").alias("offset"), group.alias("group"), transaction.alias("transaction")
        return rows.select("queue_id", *own, *more)

    committed = of(read["decisions"].where("state = 'COMMIT'"), F.unix_millis("deliver_at").alias("scheduled"))
    ended = of(read["decisions"].where("state = 'CANCEL'")).union(of(read["deliveries"]))
    left = committed.where("scheduled IS NOT NULL").join(ended, on=CHECKED, how="left_anti")
    return left.groupBy(*CHECKED).agg(F.max("scheduled").alias("scheduled"))


def _is_about(decision: Column) -> Column:
    """True if a decision matches the row's half message; null if there is none. Without a group it matches any."""
    group = decision["group_hash"].isNull() | (decision["group_hash"] == F.col("group"))
    return group & decision["transaction_hash"].isin(F.col("transaction"), F.lit(NOT_STATED))


def _ops(read: Mapping[str, DataFrame]) -> DataFrame:
    """Ops without a decision at their offset, or of another transaction than the decided one, not yet rejected.

    The others are the deciding ops, or duplicates without effect. A CANCEL is without a decision CANCEL.
    """
    # An identical op that landed after the rejection has not been handled.
    rejected = read["rejected"].where(F.col("source") == "op").groupBy(F.col("raw").alias("_raw"))
    dealt = rejected.agg(F.max("rejected_at").alias("_until"))
    op = read["op"].withColumn("_raw", raw_op())
    op = op.join(dealt, on="_raw", how="left")
    op = op.where(F.col("_until").isNull() | (F.col("store_timestamp") > F.col("_until")))
    left = op_events(op).where((F.col("kind") < Kind.COUNTED) | (F.col("kind") == Kind.CANCEL))
    group, transaction = identity_columns()
    decided = read["decisions"].select(*_OWN, group, transaction, (F.col("state") == "CANCEL").alias("cancelled"))
    same = [left[name] == decided[own] for name, own in zip(_KEY, _OWN, strict=True)]
    own = (F.col("transaction") == F.col("transaction_hash")) | (F.col("transaction") == NOT_STATED)
    alike = (F.col("kind") == Kind.CANCEL) == F.col("cancelled")
    ops = left.join(decided, on=[*same, F.col("group") == F.col("group_hash"), own, alike], how="left_anti")
    return ops.withColumns(
        {"known": _known(Known.OP), "check_times": F.lit(0), "requested": F.lit(0), "at": F.lit(0).cast("bigint")}
    )


def _known(known: Known) -> Column:
    return F.lit(int(known)).cast("tinyint")
