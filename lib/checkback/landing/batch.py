"""One batch of a landing query: inputs become rows of `half` or `op`, or rows of `rejected`.

Each input is in exactly one of the two, even if an interrupted batch is replayed with other settings or by a release
that parses differently: `rejected` is committed first, and what it has of the batch stays rejected in a replay; once
`half` or `op` has the batch, it is complete.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from checkback.errors import FencedError, StateError
from checkback.landing.chunked_reader import FAULT
from checkback.landing.duplicates import (
    COPIES_MAX,
    SURPLUS,
    find_repeated_ids,
    find_repeats,
    numbered,
    split_copies,
    summarize,
    summarize_ids,
    summarize_ops,
)
from checkback.landing.parser import DIGEST, DIGEST_OF, SCHEMAS, Kind, Reader, parser
from checkback.messages.limits import RAW_MAX
from checkback.storage.checkpoints.checkpoint import plan_versions
from checkback.storage.checkpoints.checkpoint_fit import recorded_plan
from checkback.storage.horizon import floors, horizon
from checkback.storage.log.optimistic_transaction import fenced
from checkback.storage.timestamps import iso

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from pyspark.sql import Column, DataFrame, SparkSession

    from checkback.landing.duplicates import BatchSummary
    from checkback.storage.checkpoints.seen_commits import SeenCommits
    from checkback.storage.files.fsync import QueryFlush
    from checkback.storage.queue_owners import OwnedQueues
    from checkback.storage.tables import Tables

_log = logging.getLogger("checkback.land")
#: Files of a batch that are logged; `rejected` has all.
_WARNINGS = 20
#: Each retry is due to a concurrent claim of a queue by another owner, which claims a queue once, or to a batch that
#: another `land` has committed to the queue.
_TRIES = 100
#: fix for a checkpoint that does not belong to the tables
ANEW = "move this checkpoint away: what is still there lands again, and what has landed is known"


class Landing:
    """Batch function of a landing query; ``taken`` and ``rejected`` count the rows it has seen since its start.

    Step 1: parse the lines and cache the rows. Step 2: count them, find those of others' queues and duplicate half
    messages. Step 3: write rejected rows. Step 4: write good ones. Writes are idempotent: a replayed batch, which can
    only be the first of a run, skips those done before. ``confirm`` is called before anything is written; an exception
    ends the query.
    """

    def __init__(
        self,
        tables: Tables,
        kind: Kind,
        reader: Reader,
        queues: OwnedQueues,
        lines: Callable[[DataFrame], DataFrame | None],
        confirm: Callable[[], object],
        seen: SeenCommits,
        flush: QueryFlush | None = None,
        max_delay: timedelta = timedelta(days=40),
        outbox: int | None = None,
    ) -> None:
        """``flush``: of the query's checkpoint. ``seen``: the commits of the target table noted in the checkpoint.

        ``max_delay``: delay.max. ``outbox``: the half queue in which inputs get the next offsets, each transaction id
        once; None = inputs state their places.
        """
        self._outbox = outbox
        #: the next offset of that queue after so many commits; None = not looked up yet
        self._next: int | None = None
        self._commits = 0
        self._flush = flush
        self._max_delay = max_delay // timedelta(milliseconds=1)
        self._seen = seen
        self.tables = tables
        self.kind = kind
        self.reader = reader
        self.queues = queues
        self.lines = lines
        self.confirm = confirm
        self.taken = 0
        self.rejected = 0
        #: may an earlier attempt have committed part of the batch?
        self._again = True
        #: has an earlier attempt committed to `rejected`, whose rows are none of this attempt's?
        self._more = False
        self._time = 0

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Process a batch: ``lines`` turns it into lines, their positions, and the reader's other columns."""
        if self._flush is not None:
            self._flush()
        found = self.lines(batch)
        if found is None:
            return
        lines = found.withColumn("row", F.monotonically_increasing_id())
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        before = self.rejected
        with _kept(lines.mapInArrow(parser(self.kind, self.reader, self._max_delay), SCHEMAS[self.kind])) as parsed:
            self._time = _time(parsed)
            for left in reversed(range(_TRIES)):
                try:
                    self._take(lines, parsed, f"land/{query}", batch_id)
                except FencedError:  # noqa: PERF203 - a batch has few attempts
                    if not left or not self.queues.changed():
                        raise
                    self.rejected, self._again, self._next = before, True, None
                else:
                    self._again = False
                    if self.rejected > before:
                        _warn(parsed)
                    return

    def _take(self, lines: DataFrame, parsed: DataFrame, app: str, batch_id: int) -> None:
        """One attempt: what earlier attempts committed stands, the rest is decided by the current state."""
        take = self._op if self.kind == "op" else self._half if self._outbox is None else self._assigned
        self._more = self._again and self._has(parsed, "rejected", app, batch_id)
        if not self._more:
            if self._again and self._has(parsed, self.kind, app, batch_id):
                self.taken += _good(parsed).count()
            else:
                take(lines, parsed, app, batch_id)
            return
        # A row that reports surplus copies does not reject its line, whose other ops are good.
        there = self.tables.read(parsed.sparkSession, "rejected").where(
            (F.col("source") == self.kind) & ~F.coalesce(F.col("reason").startswith(SURPLUS), F.lit(False))
        )
        with _kept(_known(parsed, there)) as known:
            self.rejected += known.count()
            left = parsed.join(F.broadcast(known), on="row", how="left_anti")
            if self._has(parsed, self.kind, app, batch_id):
                self.taken += _good(left).count()
            else:
                take(lines, left, app, batch_id)

    def _has(self, parsed: DataFrame, name: str, app: str, batch_id: int) -> bool:
        """Has an earlier attempt committed to the table? Raises StateError if that had another plan (`checkpoint`)."""
        app = f"{app}/{name}"
        if self.tables.readable:
            if not self.tables.log(name).has(app, batch_id):
                return False
            planned = recorded_plan(self.tables, name, app)
            if self._time and planned is not None and planned[0] >= batch_id and planned != (batch_id, self._time):
                raise self._other(name, batch_id)
            return True
        last = self.tables.last_version(parsed.sparkSession, name, app)
        return last is not None and last >= batch_id

    def _half(self, lines: DataFrame, parsed: DataFrame, app: str, batch_id: int) -> None:
        census = summarize(parsed)
        self.confirm()
        foreign = self._foreign(parsed, census.queues)
        ours, kept = parsed, census
        if foreign is not None:
            ours = parsed.join(F.broadcast(foreign.select("row")), on="row", how="left_anti")
            kept = summarize(ours)
        half = self._earlier(parsed)
        repeats = find_repeats(ours, kept, half)
        if repeats is not None:
            which = F.format_string("repeated (queue_id, queue_offset) %d/%d", "queue_id", "queue_offset")
            repeats = repeats.select("row", "file", "digest", which.alias("reason"))
        # After the table: a half message that is gone from it by then lies below the floor.
        removed = self._removed(parsed, census)
        refused = _union(foreign, _union(removed, repeats))
        if refused is None:
            self._write(_good(parsed), census.good, _bad(parsed), census.rejected, app, batch_id)
            return
        with _kept(refused) as refused:
            number = refused.count()
            # Broadcast the row numbers, which are small, instead of shuffling bodies.
            good = _good(parsed).join(F.broadcast(refused.select("row")), on="row", how="left_anti")
            bad = _bad(parsed).unionByName(self._told(lines, refused))
            self._write(good, census.good - number, bad, census.rejected + number, app, batch_id)

    def _assigned(self, lines: DataFrame, parsed: DataFrame, app: str, batch_id: int) -> None:
        """Rows of an outbox table get the next offsets of its queue; one whose transaction id has landed is refused."""
        queue = self._outbox or 0
        summary = summarize_ids(parsed)
        self.confirm()
        foreign = self._foreign(parsed, {queue})
        half = self._earlier(parsed).where(F.col("queue_id") == queue)
        refused = foreign if foreign is not None else find_repeated_ids(parsed, summary, half)
        if foreign is None and refused is not None:
            which = F.format_string("repeated transaction_id %s", "transaction_id")
            refused = refused.select("row", "file", "digest", which.alias("reason"))
        if foreign is None:
            refused = _union(refused, self._forgotten(lines, parsed, queue))
        good, bad, taken, rejected = _good(parsed), _bad(parsed), summary.good, summary.rejected
        with _kept(refused) if refused is not None else nullcontext() as refused:
            if refused is not None:
                number = refused.count()
                good = good.join(F.broadcast(refused.select("row")), on="row", how="left_anti")
                bad = bad.unionByName(self._told(lines, refused))
                taken, rejected = taken - number, rejected + number
            if taken:  # else nothing is committed to the queue, and what is known of it stays
                commits = self.queues.commits(queue)
                # Another `land` may have taken offsets since this one's last commit.
                if self._next is None or commits != self._commits:
                    self._next = self._next_offset(parsed.sparkSession, half, queue)
                good = numbered(good, self._next, taken)
                # Once it is committed; a commit that fails ends the query, or has the next offset looked up.
                self._next, self._commits = self._next + taken, commits + 1
            self._write(good, taken, bad, rejected, app, batch_id)

    def _forgotten(self, lines: DataFrame, parsed: DataFrame, queue: int) -> DataFrame | None:
        """row, file, digest, reason of a snapshot's rows whose ids `half` may have lost; None: there are none.

        They may have been published once.
        """
        spark = parsed.sparkSession
        since = horizon(spark, self.tables) if floors(spark, self.tables, [queue]) else None
        if since is None:
            return None
        old = lines.where(F.col("snapshot") < since).select("row")
        if old.isEmpty():
            return None
        reason = (
            f"op: 'r' of a row from before {iso(since)}, or without a time: whether it has landed is removed"
            " (retention.history); if it has not, append it with op 'c'"
        )
        rows = _good(parsed).join(F.broadcast(old), on="row", how="left_semi")
        return rows.select("row", "file", "digest", F.lit(reason).alias("reason"))

    def _next_offset(self, spark: SparkSession, half: DataFrame, queue: int) -> int:
        """The first offset of the queue beyond those in `half` and `decisions`, and beyond what retention removed.

        `half` may have been restored from a backup: decisions at the lost offsets stand.
        """
        places = half.select("queue_offset")
        if self.tables.exists(spark, "decisions"):
            decided = self.tables.read(spark, "decisions").where(F.col("queue_id") == queue)
            places = places.unionAll(decided.select("queue_offset"))
        last = places.agg(F.max("queue_offset")).first()
        floor = floors(spark, self.tables, [queue]).get(queue, 0)
        return max(-1 if last is None or last[0] is None else int(last[0]), floor - 1) + 1

    def _earlier(self, parsed: DataFrame) -> DataFrame:
        """`half` without the rows of the batch itself."""
        half = self.tables.read(parsed.sparkSession, "half")
        if not self.tables.readable:
            # Whether the table has the batch is not always known (`_has`): rows of its time are its own. Those of
            # another `land` may have the same time.
            half = half.where(F.unix_millis("store_timestamp") != self._time)
        return half

    def _op(self, lines: DataFrame, parsed: DataFrame, app: str, batch_id: int) -> None:
        summary = summarize_ops(parsed)
        self.confirm()
        good, bad, taken, rejected = _good(parsed), _bad(parsed), summary.good, summary.rejected
        foreign = self._foreign(parsed, summary.queues)
        if foreign is not None:
            # A line may hold several ops, all of one queue.
            foreign = foreign.distinct()
            good = good.join(F.broadcast(foreign.select("row")), on="row", how="left_anti")
            bad = bad.unionByName(self._told(lines, foreign))
            taken, rejected = good.count(), rejected + foreign.count()
        if summary.copies > COPIES_MAX:
            good, surplus = split_copies(good)
            taken = good.count()
            if not self._more:  # else they are reported already
                bad = bad.unionByName(self._told(lines, surplus))
                rejected += surplus.count()
        good = good.withColumns({"source": F.lit("producer"), "remark": F.lit(None).cast("string")})
        self._write(good, taken, bad, rejected, app, batch_id)

    def _foreign(self, parsed: DataFrame, queues: Collection[int]) -> DataFrame | None:
        """row, file, digest, reason of the messages in queues of other owners; None: there are none."""
        reasons = self.queues.refused(queues)
        if not reasons:
            return None
        rows = _good(parsed).where(F.col("queue_id").isin(list(reasons)))
        told = F.create_map(*(F.lit(part) for reason in reasons.items() for part in reason))
        return rows.select("row", "file", "digest", told[F.col("queue_id")].alias("reason"))

    def _removed(self, parsed: DataFrame, census: BatchSummary) -> DataFrame | None:
        """row, file, digest, reason of half messages at offsets that retention has removed; None: there are none.

        They may have been published once.
        """
        known = floors(parsed.sparkSession, self.tables, census.queues) if census.queues else {}
        if not any(box.first < floor for box in census.ranges for floor in known.values()):
            return None
        floor = F.create_map(*(F.lit(part) for pair in known.items() for part in pair))[F.col("queue_id")]
        reason = F.format_string("queue_offset: what landed below %d is removed (retention.history)", floor)
        rows = (
            _good(parsed).where(F.col("queue_offset") < floor).select("row", "file", "digest", reason.alias("reason"))
        )
        return None if rows.isEmpty() else rows

    def _told(self, lines: DataFrame, refused: DataFrame) -> DataFrame:
        """raw, reason, file, rejected_at of refused messages (row, file, digest, reason).

        Their text is read from the source again; raw is null if that has lost or replaced them since.
        """
        # First an inner join, which shuffles none of the other lines.
        found = lines.select("row", "line").join(F.broadcast(refused.select("row")), on="row")
        raw = F.left(F.col("line").cast("string"), F.lit(RAW_MAX))  # valid UTF-8: it has been parsed
        found = found.select("row", raw.alias("raw"), _digest(raw).alias("digest"))
        told = refused.join(found, on=["row", "digest"], how="left")
        return told.select("raw", "reason", "file", F.timestamp_millis(F.lit(self._time)).alias("rejected_at"))

    def _write(self, good: DataFrame, taken: int, bad: DataFrame, rejected: int, app: str, batch_id: int) -> None:
        if rejected:
            if self.tables.readable and self._has(good, self.kind, app, batch_id):
                raise fenced(self._seen.place)  # its messages may have been found as repeated
            rows, name = bad.withColumn("source", F.lit(self.kind)), f"{app}/rejected"
            plan = {} if self._more else plan_versions(name, batch_id, self._time)
            if not self.tables.append(rows, "rejected", None if self._more else name, batch_id, plan, rejected):
                raise fenced(self._seen.place)
        if taken:
            fence = self.queues.fence() if self.kind == "half" else ({}, {})
            name = f"{app}/{self.kind}"
            plan = plan_versions(name, batch_id, self._time)
            new = self.tables.append(good, self.kind, name, batch_id, plan, taken, fence)
            if not (new or self._again):
                raise self._other(self.kind, batch_id)
            if self.tables.readable:  # a table restored from a backup lacks what has landed
                self._seen.keep_newest(good.sparkSession, self.kind)
        self.taken += taken
        self.rejected += rejected

    def _other(self, name: str, batch_id: int) -> StateError:
        what = f"{name} has a batch {batch_id} of this query already, with other rows: nothing was landed"
        return StateError(what, self._seen.place, ANEW)


def _union(one: DataFrame | None, other: DataFrame | None) -> DataFrame | None:
    """The rows of both; what both have as the first one has it."""
    if one is None or other is None:
        return other if one is None else one
    return one.unionByName(other.join(F.broadcast(one.select("row")), on="row", how="left_anti"))


@contextmanager
def _kept(rows: DataFrame) -> Iterator[DataFrame]:
    """Persist the rows, so that they are computed once."""
    rows.persist()
    try:
        yield rows
    finally:
        rows.unpersist()


def _known(parsed: DataFrame, rejected: DataFrame) -> DataFrame:
    """The column row of this batch's inputs that are in `rejected`, matched by file, time of the batch, and text.

    Of identical inputs as many as `rejected` has, those that are invalid now first.
    """
    key = ["file", "at", "digest"]
    inputs = parsed.groupBy("row", "file", "digest").agg(
        F.max("store_timestamp").alias("at"), (F.count("reason") == 0).alias("good")
    )
    inputs = inputs.withColumn("place", F.row_number().over(Window.partitionBy(*key).orderBy("good", "row")))
    there = rejected.select("file", F.col("rejected_at").alias("at"), _digest(F.col("raw")).alias("digest"))
    counts = there.groupBy(*key).agg(F.count("*").alias("number"))
    return inputs.join(counts, on=key, how="inner").where(F.col("place") <= F.col("number")).select("row")


def _digest(raw: Column) -> Column:
    """`parser.digest` of the text of a row of `rejected`."""
    text = F.left(F.coalesce(raw, F.lit("")), F.lit(DIGEST_OF))
    return F.left(F.sha2(text, 256), F.lit(DIGEST))


def _warn(parsed: DataFrame) -> None:
    """Log files that are not read to their end, and oversized lines."""
    faults = parsed.where(F.col("reason").rlike(f"^({FAULT}|line: )")).select("file", "reason").distinct()
    for row in faults.limit(_WARNINGS).collect():
        _log.warning("%s: %s", row["file"], row["reason"])


def _time(parsed: DataFrame) -> int:
    """The time of the batch (ms); 0 = it has no rows."""
    row = parsed.agg(F.unix_millis(F.max("store_timestamp"))).first()
    return 0 if row is None else row[0] or 0


def _good(parsed: DataFrame) -> DataFrame:
    return parsed.where(F.col("reason").isNull())


def _bad(parsed: DataFrame) -> DataFrame:
    """raw, reason, file, rejected_at of invalid lines."""
    rejected = parsed.where(F.col("reason").isNotNull())
    return rejected.select("raw", "reason", "file", F.col("store_timestamp").alias("rejected_at"))
