"""The check query: `check_requests` -> HTTP -> `check_answers`, and `op` for what the answers decide.

It is a query of its own, so that a slow producer delays its own answers and never a commit.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from checkback.check.asker import ANSWERS, Asker
from checkback.check.client import Group
from checkback.check.exchange import COMMIT, ROLLBACK
from checkback.schemas import CHECK_ANSWERS, CHECK_REQUESTS, HALF
from checkback.stopping import query_id

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from checkback.settings import Settings
    from checkback.tables import Tables

NAME = "check"
#: names a check: a transaction's n-th
KEY = ["queue_id", "queue_offset", "check_times"]
#: what a request's half message has in common with it
_SAME_HALF = ["queue_id", "queue_offset", "transaction_id", "producer_group", "real_topic", "born_timestamp"]
_MESSAGE = StructType([HALF[name] for name in ("tags", "keys", "properties", "body")])
_ANSWERS = StructType([CHECK_ANSWERS[name] for name in ANSWERS.names])
#: how far the clocks of the machines may be apart
_SKEW = timedelta(minutes=5)
#: with more queues than this in a batch, all of `half` is read
_MAX_RANGES = 64


def check_query(
    spark: SparkSession,
    settings: Settings,
    tables: Tables,
    available_now: bool,
    dispatch: type[Dispatch] | None = None,
) -> tuple[DataStreamWriter, Dispatch]:
    """The query, not yet started, and its batch function. Its checkpoint is the folder `check`.

    The tables must be there. ``dispatch``: the class that does the batches; tests give one that crashes.
    Raises SettingsError when an endpoint, a secret or the CA file is not fit.
    """
    slots = spark.sparkContext.defaultParallelism
    writer = (
        tables.stream(spark, "check_requests")
        .writeStream.queryName(NAME)
        .option("checkpointLocation", tables.checkpoint(NAME))
    )
    batches = (dispatch or Dispatch)(tables, settings, slots)
    if available_now:
        return writer.trigger(availableNow=True), batches
    trigger = round(settings.reconcile.trigger.total_seconds() * 1000)
    return writer.trigger(processingTime=f"{trigger} milliseconds"), batches


def start_check(
    spark: SparkSession,
    settings: Settings,
    tables: Tables,
    available_now: bool,
    dispatch: type[Dispatch] | None = None,
) -> StreamingQuery:
    """Start the query alone, without a Stopper."""
    writer, batches = check_query(spark, settings, tables, available_now, dispatch)
    return writer.foreachBatch(batches).start()


def groups_of(settings: Settings) -> dict[str, Group]:
    """The groups that the settings name, as the client takes them."""
    return {
        name: Group(
            endpoints=tuple(producer.endpoints),
            secret=None if producer.secret is None else producer.secret.get_secret_value(),
            include_body=producer.include_body,
        )
        for name, producer in settings.producers.items()
    }


class Dispatch:
    """Does the batches of the check query; foreachBatch calls it.

    ``slots``: tasks that run at once. At most half of them ask, so that the reconcile query always has one to decide
    in (on a machine of two); the threads of all tasks together are ``check.concurrency``.
    """

    def __init__(self, tables: Tables, settings: Settings, slots: int) -> None:
        concurrency = settings.check.concurrency
        self._tables = tables
        self._tasks = max(1, min(settings.reconcile.partitions, concurrency, slots // 2))
        self._asker = Asker(
            groups=groups_of(settings),
            timeout_s=settings.check.timeout.total_seconds(),
            ca_file=settings.check.ca_file,
            threads=concurrency // self._tasks,
        )
        self._with_body = sorted(name for name, producer in settings.producers.items() if producer.include_body)
        self._started = datetime.now(timezone.utc)
        self._first = True
        self._asker.client().close()  # what is not fit is known now, not on an executor

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Do one batch.

        Step 1: keep the requests, each once.
        Step 2: ask those that have no answer yet, and append the answers to `check_answers`.
        Step 3: append to `op` what `check_answers` now says of the requests: a crash after step 2 changes nothing,
        even if a producer would by now answer otherwise.
        Step 4: let go.
        """
        # Step 1
        requests = batch.select(*CHECK_REQUESTS.names).repartition(self._tasks, *KEY).dropDuplicates(KEY).persist()
        try:
            count, oldest = requests.agg(F.count("*"), F.min(F.unix_micros("requested_at"))).collect()[0]
            if not count:
                return
            app = f"{NAME}/{query_id(batch)}"
            # Step 2
            if not self._may_be_answered(oldest):
                self.ask(requests, app, batch_id)
            else:
                # Kept, so that the append does not read the table that it appends to: an OPTIMIZE would conflict.
                unanswered = requests.join(self._recorded(requests, oldest, batch_id), KEY, "left_anti").persist()
                if unanswered.count():
                    self.ask(unanswered, app, batch_id)
                unanswered.unpersist()
            # Step 3
            self.send_ops(self._recorded(requests, oldest, batch_id), app, batch_id)
        finally:
            # Step 4
            requests.unpersist()
        self._first = False

    def _may_be_answered(self, oldest: int | None) -> bool:
        """Can any request have been asked before? Only in a batch that is done again, or after a lost checkpoint.

        Done again is only the first batch after a start. After a lost checkpoint batch ids begin anew and all
        requests come again: those that are older than this start.
        """
        return self._first or oldest is None or oldest < _micros(self._started + _SKEW)

    def _recorded(self, requests: DataFrame, oldest: int | None, batch_id: int) -> DataFrame:
        """What `check_answers` says of ``requests``, whichever batch wrote it.

        The filter is there to skip files: nothing is answered before it is asked.
        """
        answers = self._tables.read(requests.sparkSession, "check_answers")
        if oldest is not None:
            since = F.timestamp_micros(F.lit(oldest - _SKEW // timedelta(microseconds=1)))
            answers = answers.where((F.col("batch_id") == batch_id) | (F.col("answered_at") >= since))
        return answers.join(requests.select(*KEY), KEY, "left_semi")

    def ask(self, requests: DataFrame, app: str, batch_id: int) -> None:
        """Append one answer for each of ``requests`` (CHECK_REQUESTS) to `check_answers`."""
        identity, born = CHECK_REQUESTS.names[:6], F.unix_millis("born_timestamp").alias("born_ms")
        # The number of partitions is the number of tasks that ask at once; a join may have made more.
        asked = self._with_messages(requests).select(*identity, born, "message").coalesce(self._tasks)
        answers = asked.mapInArrow(self._asker.ask, _ANSWERS).withColumn("batch_id", F.lit(batch_id).cast("bigint"))
        self._tables.append(answers, "check_answers", f"{app}/check_answers", batch_id)

    def send_ops(self, answers: DataFrame, app: str, batch_id: int) -> None:
        """Append one row to `op` for each of ``answers`` (CHECK_ANSWERS) that decides."""
        ops = op_rows(answers).persist()
        try:
            if not ops.isEmpty():
                self._tables.append(ops, "op", f"{app}/op", batch_id)
        finally:
            ops.unpersist()

    def _with_messages(self, requests: DataFrame) -> DataFrame:
        """``requests`` with ``message``: their half message where the group wants it, else null."""
        bare = F.lit(None).cast(_MESSAGE).alias("message")
        wanted = F.coalesce(F.col("producer_group").isin(self._with_body), F.lit(False))
        asked = requests.where(wanted)
        spans = self._with_body and (
            asked.groupBy("queue_id").agg(F.min("queue_offset"), F.max("queue_offset")).limit(_MAX_RANGES + 1).collect()
        )
        if not spans:
            return requests.select("*", bare)
        half = self._tables.read(requests.sparkSession, "half")
        if len(spans) <= _MAX_RANGES:  # only the files that hold those offsets are read
            half = half.where(reduce(or_, (_span(*row) for row in spans)))
        return requests.where(~wanted).select("*", bare).unionByName(_join_messages(asked, half))


def op_rows(answers: DataFrame) -> DataFrame:
    """OP rows of the ``answers`` (CHECK_ANSWERS) that decide: COMMIT and ROLLBACK."""
    return answers.where(F.col("outcome").isin(COMMIT, ROLLBACK)).select(
        "queue_id",
        F.col("queue_offset").alias("half_offset"),
        "transaction_id",
        "producer_group",
        F.col("outcome").alias("state"),
        F.lit("check").alias("source"),
        F.concat(F.lit("check "), F.col("check_times").cast("string")).alias("remark"),
        F.col("answered_at").alias("born_timestamp"),
        F.current_timestamp().alias("store_timestamp"),
    )


def _join_messages(requests: DataFrame, half: DataFrame) -> DataFrame:
    """``requests`` with the ``message`` of their half; one row each, however often it landed, and if it is gone."""
    messages = half.select(
        *(F.col(name).alias(f"half_{name}") for name in _SAME_HALF), F.struct(*_MESSAGE.names).alias("message")
    )
    same = reduce(and_, (F.col(name).eqNullSafe(F.col(f"half_{name}")) for name in _SAME_HALF))
    return requests.join(messages, same, "left").dropDuplicates(KEY).select(*requests.columns, "message")


def _span(queue_id: int, first: int, last: int) -> Column:
    return (F.col("queue_id") == queue_id) & F.col("queue_offset").between(first, last)


def _micros(moment: datetime) -> int:
    return (moment - datetime.fromtimestamp(0, timezone.utc)) // timedelta(microseconds=1)
