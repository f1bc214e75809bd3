"""The check query: `check_requests` -> HTTP -> `check_answers`, and `op` for what the answers decide.

It is a separate query, so that a slow producer delays its own answers but never a commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from checkback.check.circuit_breaker import limits_of
from checkback.check.endpoint import CheckedGroup
from checkback.check.endpoint_health import EndpointHealth, Rate
from checkback.check.recorded_answers import KEY, SKEW, deduplicate_requests, key_numbers, recorded_answers
from checkback.check.superseded import (
    not_sent,
    offset_ranges,
    possibly_superseded,
    superseded_by,
    superseding_rows,
    undecided,
)
from checkback.check.wire import COMMIT, NO_ANSWER, ROLLBACK, SKIPPED, nobody_of
from checkback.check.worker import (
    ANSWERS_SCHEMA,
    CheckWorker,
    answers_of,
    check_partitions,
    check_rows,
    partition_requests,
)
from checkback.settings.model import MOST_PARTITIONS
from checkback.settings.secrets import secrets_of
from checkback.spark.connect import parallelism, query_id
from checkback.storage.checkpoints.seen_commits import SeenCommits
from checkback.storage.dataframes import frame
from checkback.storage.files.paths import for_spark
from checkback.storage.offset_ranges import within
from checkback.storage.queue_owners import log_of_half, operators_queues
from checkback.storage.schemas import CONTENT, arrow_schema
from checkback.storage.spark_schemas import CHECK_REQUESTS, HALF
from checkback.storage.starting_versions import first_read
from checkback.storage.valid_texts import NOT_UTF8, OVERTAKEN, is_valid, valid_texts

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from checkback.rotated import Rotated, Texts
    from checkback.settings import Settings
    from checkback.storage.log.delta_log import DeltaLog
    from checkback.storage.tables import Tables


NAME = "check"
#: state of a row of `op` that is no op: the check counts. `messages` refuses it from producers
COUNTED = "COUNTED"
#: the names in a request that are sent
_NAMES = ["transaction_id", "producer_group", "real_topic"]
#: A batch of reconcile whose time is so much later than an op was committed has read it.
_READ_AFTER = timedelta(seconds=10)
#: most checks that are known to count: of a backlog of old requests none is dropped by its time
_MOST_COUNTED = 250_000
#: Bytes of requests in a batch, including the file that exceeds them (`parquet_files.MOST_ROWS`): at 18 to 50 bytes
#: each, 30,000 to 60,000 requests. Answers are written when all have come; at 2,000/s that is within check.batch_time.
_BATCH_BYTES = str(896 << 10)


def check_query(
    spark: SparkSession,
    settings: Settings,
    tables: Tables,
    available_now: bool,
    dispatch: type[CheckBatches] | None = None,
    observer: AnswerListener | None = None,
) -> tuple[DataStreamWriter, CheckBatches]:
    """The query, not yet started, and its batch function. Its checkpoint is the folder `check`.

    The tables must exist. ``dispatch``: the class of the batch function; tests pass one that crashes. ``observer``:
    is notified of each batch.
    Raises SettingsError if an endpoint, a secret or the CA file is invalid.
    """
    begin = first_read(spark, tables, NAME)
    writer = (
        tables.stream(spark, "check_requests", maxBytesPerTrigger=_BATCH_BYTES, **begin["check_requests"])
        .writeStream.queryName(NAME)
        .option("checkpointLocation", for_spark(tables.checkpoint(NAME)))
    )
    batches = (dispatch or CheckBatches)(tables, settings, parallelism(spark))
    batches.observer = observer
    if available_now:
        return writer.trigger(availableNow=True), batches
    trigger = round(settings.reconcile.trigger.total_seconds() * 1000)
    return writer.trigger(processingTime=f"{trigger} milliseconds"), batches


def decisive_ops(spark: SparkSession, tables: Tables, since: datetime) -> int:
    """The number of deciding ops of checks from ``since`` on, and maybe some earlier ones.

    Not of the answers: a batch that is done again may have recorded them before.
    """
    decides = (F.col("source") == "check") & F.col("state").isin(COMMIT, ROLLBACK)
    return tables.read(spark, "op").where(decides & (F.col("store_timestamp") >= F.lit(since - SKEW))).count()


def groups_of(settings: Settings) -> Rotated[dict[str, CheckedGroup]]:
    """The configured groups, for the client, with their secrets as these are. Raises SettingsError."""

    def groups(secrets: Texts) -> dict[str, CheckedGroup]:
        return {
            name: CheckedGroup(tuple(producer.endpoints), secrets.get(name), producer.include_body)
            for name, producer in settings.producers.items()
        }

    return secrets_of(settings.producers, groups)


def rates_of(settings: Settings) -> dict[str, Rate]:
    """The rate limits of the groups that have one."""
    return {
        name: Rate(producer.checks_per_second, producer.checks_burst)
        for name, producer in settings.producers.items()
        if producer.checks_per_second is not None
    }


class AnswerListener(Protocol):
    """Notified of each batch of checks once it is in the tables. Must not raise."""

    def asked(self, answers: pa.Table, batch_id: int) -> None:
        """``answers``: CHECK_ANSWERS of the batch."""


class CheckBatches:
    """The batch function of the check query, for foreachBatch.

    ``slots``: concurrent tasks. At most half of them send checks, so that the reconcile query always has one (of at
    least two); ``check.concurrency`` is shared by all tasks. ``decided``: deciding answers so far. What a batch learns
    about endpoints and groups (`EndpointHealth`) is passed on to the next.
    """

    def __init__(self, tables: Tables, settings: Settings, slots: int) -> None:
        check, transaction = settings.check, settings.transaction
        self._tables = tables
        self._flush = tables.flush_of(NAME, "check_requests", "check_answers", "half", "op")
        self._seen = SeenCommits(tables, NAME, "start again: what is missing is sent again")
        self._tasks = max(1, min(settings.reconcile.partitions or MOST_PARTITIONS, check.concurrency, slots // 2))
        self._groups = groups_of(settings)
        self._worker = CheckWorker(
            groups=self._groups.current,
            timeout_s=check.timeout.total_seconds(),
            ca_file=check.ca_file,
            concurrency=check.concurrency // self._tasks,
            limits=limits_of(settings),
            rates={name: rate.shared(self._tasks) for name, rate in rates_of(settings).items()},
            batch_time_s=check.batch_time.total_seconds(),
        )
        self._operators_queue = settings.operator.queue
        self._half: DeltaLog | None = None
        self._reached = pa.array([name for name, group in self._worker.groups.items() if group.endpoints], pa.string())
        self._check_interval = transaction.check_interval
        self._last = transaction.check_max if transaction.count_undelivered else None
        self.decided = 0
        self.observer: AnswerListener | None = None
        self._with_body = sorted(name for name, producer in settings.producers.items() if producer.include_body)
        self._started = datetime.now(timezone.utc)
        self._first = True
        self._written: set[str] = set()  # files of our answers
        self._counted: list[tuple[datetime, pa.Table]] = []  # KEYs of checks that count by an op, and when it was there
        self._worker.client().close()  # report invalid settings now, not on an executor

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Process one batch.

        Step 1: fetch the requests, deduplicated, and the answers that some may have already.
        Step 2: send the others, except superseded ones, and append the answers to `check_answers`.
        Step 3: append to `op` what the answers decide. Those of step 1 are used as recorded, so that a crash between
        steps 2 and 3 changes nothing, even if a producer would answer differently by now, and only if their
        transactions are still undecided. Also append which checks count that do not count when requested
        (docs/protocol.md, rules 6 and 9).
        """
        self._tables.guard()
        spark, app = batch.sparkSession, f"{NAME}/{query_id(batch, NAME)}"
        # Step 1
        requests = deduplicate_requests(batch.select(*CHECK_REQUESTS.names).toArrow())
        self._flush()
        if requests.num_rows:
            answers = self._answered(spark, requests, app, batch_id)
            deciding = undecided(spark, self._tables, requests, answers)
            # Step 2
            wanted, answered = key_numbers(requests, answers)
            unanswered = requests.filter(pa.array(~np.isin(wanted, answered)))
            if unanswered.num_rows:
                asked = self.ask(spark, unanswered, app, batch_id)
                answers, deciding = (pa.concat_tables([before, asked]) for before in (answers, deciding))
            # Step 3
            self.send_ops(spark, deciding, app, batch_id)
            if self._tables.by_files:  # a table restored from a backup lacks them, and they exist nowhere else
                self._seen.keep_newest(spark, "check_answers", "op")
            if self.observer is not None:
                self.observer.asked(answers, batch_id)
        self._first = False

    def _answered(self, spark: SparkSession, requests: pa.Table, app: str, batch_id: int) -> pa.Table:
        """The answers (CHECK_ANSWERS) that ``requests`` have already.

        Some may have one in a replayed batch, or after the checkpoint was lost. Only the first batch after a start can
        be a replay. After a lost checkpoint batch ids restart, and all requests are read again: those older than this
        start. None of this run's own answers can belong to one of them: a run reads each request once.
        """
        oldest = pc.min(requests.column("requested_at")).as_py()
        if not self._first and oldest is not None and oldest >= self._started + SKEW:
            self._written.clear()
            return arrow_schema("check_answers").empty_table()
        written = self._first and self._tables.last_version(spark, "check_answers", f"{app}/check_answers") == batch_id
        own = batch_id if written else None
        return recorded_answers(spark, self._tables, requests, batch_id, self._first, self._written, own)

    def ask(self, spark: SparkSession, requests: pa.Table, app: str, batch_id: int) -> pa.Table:
        """Send or skip each of ``requests`` (CHECK_REQUESTS); append the answers (CHECK_ANSWERS) and return them."""
        why = self._overtaken(spark, requests)
        fresh, overtaken = requests.filter(pc.is_null(why)), requests.filter(pc.is_valid(why))
        named = has_valid_names(fresh)
        fresh, nameless = fresh.filter(named), fresh.filter(pc.invert(named))
        reached = pc.is_in(fresh.column("producer_group"), self._reached)
        fresh, nobody = fresh.filter(reached), fresh.filter(pc.invert(reached))
        now = datetime.now(timezone.utc)
        answers = pa.concat_tables(
            [
                not_sent(overtaken, why.drop_null(), now, batch_id),
                not_sent(nameless, pa.repeat(NOT_UTF8, nameless.num_rows), now, batch_id, NO_ANSWER),
                not_sent(nobody, has_no_endpoints(nobody.column("producer_group")), now, batch_id, NO_ANSWER),
            ]
        )
        if fresh.num_rows:
            answers = pa.concat_tables([answers, self._asked(spark, fresh, batch_id)])
        self._written.update(
            self._tables.append_arrow(spark, answers, "check_answers", f"{app}/check_answers", batch_id)
        )
        return answers

    def _overtaken(self, spark: SparkSession, requests: pa.Table) -> pa.ChunkedArray:
        """By what each request is overtaken, as text; null = by nothing: it is sent."""
        counted = self._counted_already(requests)
        old = possibly_superseded(requests, datetime.now(timezone.utc), self._check_interval)
        if not old.num_rows:  # nor does one supersede another here: that comes a check_interval later
            return counted
        return pc.coalesce(superseded_by(requests, *superseding_rows(spark, self._tables, old)), counted)

    def _counted_already(self, requests: pa.Table) -> pa.ChunkedArray:
        """A text for requests made before reconcile has read that a check of their number counts; else null.

        Otherwise a producer is asked once more than check_max times when its answer takes longer than check_interval.
        """
        nothing = pa.nulls(requests.num_rows, pa.string())
        oldest = pc.min(requests.column("requested_at")).as_py()
        self._counted = [one for one in self._counted if oldest is None or one[0] + _READ_AFTER >= oldest]
        if not self._counted:
            return pa.chunked_array([nothing])
        asked, counted = key_numbers(requests, pa.concat_tables([keys for _, keys in self._counted]))
        return pa.chunked_array([pc.if_else(pa.array(np.isin(asked, counted)), OVERTAKEN, nothing)])

    def _asked(self, spark: SparkSession, requests: pa.Table, batch_id: int) -> pa.Table:
        # The number of partitions is the number of tasks that send checks concurrently.
        wanted = self._with_body, self._resumed_queues(spark)
        worker = replace(self._worker, resumed_queues=wanted[1], groups=self._groups.current)
        if wanting(requests, *wanted).num_rows:
            rows = with_messages(spark, self._tables, requests, *wanted).coalesce(self._tasks)
            ask = check_rows(worker)
        else:
            shares = partition_requests(requests, self._tasks)
            rows, ask = spark.range(0, len(shares), 1, len(shares)), check_partitions(worker, shares)
        returned = answers_of(rows.mapInArrow(ask, ANSWERS_SCHEMA).toArrow())
        learned = [EndpointHealth.from_json(text) for text in returned.column("health").drop_null().to_pylist()]
        health = reduce(EndpointHealth.and_then, learned, self._worker.health)
        self._worker = replace(self._worker, health=health)
        found = returned.filter(pc.is_null(returned.column("health")))
        batch_ids = pa.repeat(pa.scalar(batch_id, pa.int64()), found.num_rows)
        schema = arrow_schema("check_answers")
        return found.append_column("batch_id", batch_ids).select(schema.names).cast(schema)

    def _resumed_queues(self, spark: SparkSession) -> frozenset[int]:
        """The queues of resumed messages: operator.queue may have been another one.

        `half` tells, whose log names its queues' owners; if only Spark reads that, the operators' ledger does.
        """
        found = {self._operators_queue}
        self._half = self._half or log_of_half(self._tables)
        if self._half is not None:
            found |= operators_queues(self._half)
        elif self._tables.exists(spark, "operations"):
            ledger = self._tables.read(spark, "operations")
            found.update(ledger.agg(F.collect_set("new_queue_id")).collect()[0][0])
        return frozenset(found)

    def send_ops(self, spark: SparkSession, answers: pa.Table, app: str, batch_id: int) -> None:
        """Append a row to `op` for each of ``answers`` (CHECK_ANSWERS) that decides, or makes its check count."""
        ops = op_rows(answers, datetime.now(timezone.utc), self._last)
        self.decided += pc.sum(pc.not_equal(ops.column("state"), COUNTED)).as_py() or 0
        self._tables.append_arrow(spark, ops, "op", f"{app}/op", batch_id)
        counted = answers.filter(_counts(answers, self._last)).select(KEY)
        if counted.num_rows:
            self._counted.append((datetime.now(timezone.utc), counted))
            while sum(keys.num_rows for _, keys in self._counted[1:]) >= _MOST_COUNTED:
                del self._counted[0]


def has_no_endpoints(groups: pa.ChunkedArray) -> pa.ChunkedArray:
    """Why a request of each of the ``groups`` is not sent: it has no endpoints."""
    coded = groups.combine_chunks().dictionary_encode()
    return pa.chunked_array([pa.array(map(nobody_of, coded.dictionary.to_pylist()), pa.string()).take(coded.indices)])


def has_valid_names(requests: pa.Table) -> pa.Array:
    """Whether the names of each of ``requests`` (CHECK_REQUESTS) are UTF-8: others are another writer's.

    They are not replaced: no producer has a transaction of another name, and an op for it would end none.
    """
    names = requests.select(_NAMES)
    if all(is_valid(chunk) for column in names.columns for chunk in column.chunks):
        return pa.repeat(True, requests.num_rows)
    same = (
        pc.equal(names.column(name).cast(pa.binary()), valid.cast(pa.binary())).fill_null(True)
        for name, valid in zip(_NAMES, valid_texts(names).columns, strict=True)
    )
    return reduce(pc.and_, same)


def op_rows(answers: pa.Table, now: datetime, last: int | None) -> pa.Table:
    """OP rows, landed ``now``, of the ``answers`` (CHECK_ANSWERS) that decide: COMMIT and ROLLBACK.

    Also a row COUNTED for each other check that counts by it: those from number ``last`` on that were not skipped;
    ``last`` None: all that an endpoint received.
    """
    decides = pc.is_in(answers.column("outcome"), pa.array([COMMIT, ROLLBACK]))
    counts = _counts(answers, last)
    states = pc.if_else(decides, answers.column("outcome"), COUNTED)
    kept = pc.or_(decides, counts)
    answers, states = answers.filter(kept), states.filter(kept)
    columns = {
        "queue_id": answers.column("queue_id"),
        "queue_offset": answers.column("queue_offset"),
        "transaction_id": answers.column("transaction_id"),
        "producer_group": answers.column("producer_group"),
        "state": states,
        "source": pa.repeat("check", answers.num_rows),
        "remark": pc.binary_join_element_wise("check", answers.column("check_times").cast(pa.string()), " "),
        "born_timestamp": answers.column("answered_at"),
        "store_timestamp": pa.repeat(pa.scalar(now, pa.timestamp("us", "UTC")), answers.num_rows),
    }
    return pa.table(columns).cast(arrow_schema("op"))


def _counts(answers: pa.Table, last: int | None) -> pa.ChunkedArray:
    """Which of the ``answers`` make their checks count; ``last``: see `op_rows`."""
    if last is None:
        return answers.column("delivered").fill_null(True)
    skipped = pc.equal(answers.column("outcome"), SKIPPED)
    return pc.and_(pc.greater_equal(answers.column("check_times"), last), pc.invert(skipped))


#: the columns in which a request and its half message are equal
_SAME_HALF = ["queue_id", "queue_offset", "transaction_id", "producer_group", "real_topic", "born_timestamp"]
_MESSAGE = StructType([HALF[name] for name in CONTENT])


def wanting(requests: pa.Table, groups: Sequence[str], resumed: Collection[int]) -> pa.Table:
    """Those of ``requests`` (CHECK_REQUESTS) that want their messages: of the ``groups``, or in ``resumed`` queues."""
    of_group = pc.is_in(requests.column("producer_group"), pa.array(groups, pa.string()))
    return requests.filter(pc.or_(of_group, pc.is_in(requests.column("queue_id"), pa.array(list(resumed), pa.int32()))))


def with_messages(
    spark: SparkSession, tables: Tables, requests: pa.Table, groups: Sequence[str], resumed: Collection[int]
) -> DataFrame:
    """``requests`` (CHECK_REQUESTS) as the input of CheckWorker: identity, born_ms, and ``message``.

    ``message``: a struct of tags, keys, properties and body of the half message for the ``groups`` and in the
    ``resumed`` queues, else null.
    """
    rows = frame(spark, requests)
    identity, born = CHECK_REQUESTS.names[:6], F.unix_millis("born_timestamp").alias("born_ms")
    bare = F.lit(None).cast(_MESSAGE).alias("message")
    wanted = F.col("producer_group").isin(list(groups)) | F.col("queue_id").isin(list(resumed))
    wanted = F.coalesce(wanted, F.lit(False))
    ranges = offset_ranges(wanting(requests, groups, resumed))
    half = tables.read(spark, "half").where(within(ranges))
    both = rows.where(~wanted).select("*", bare).unionByName(_join(rows.where(wanted), half))
    return both.select(*identity, born, "message")


def _join(requests: DataFrame, half: DataFrame) -> DataFrame:
    """``requests`` with the ``message`` of their half; one row each, even if it landed several times or is gone."""
    messages = half.select(
        *(F.col(name).alias(f"half_{name}") for name in _SAME_HALF), F.struct(*_MESSAGE.names).alias("message")
    )
    same = reduce(and_, (F.col(name).eqNullSafe(F.col(f"half_{name}")) for name in _SAME_HALF))
    return requests.join(messages, same, "left").dropDuplicates(list(KEY)).select(*requests.columns, "message")
