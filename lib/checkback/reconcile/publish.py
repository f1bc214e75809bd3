"""Publishing a batch: the actions, joined back to `half`, become rows of the tables.

Strings and bodies never pass through Python: the actions are integers, and Spark joins them to the very rows of
`half` that the segments took (queue_id, queue_offset and store_timestamp name a row).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import reduce

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame

from checkback.errors import StorageError
from checkback.reconcile import rows
from checkback.reconcile.segment import Action
from checkback.reconcile.summary import Summary, sum_up
from checkback.stopping import query_id
from checkback.tables import TOPIC_PREFIX, Tables

#: Settings of a batch's own session (a clone of the query's). The plans are small and known beforehand: planning them
#: adaptively, stage by stage, and compressing what is read once from the cache cost more than they bring (a quarter of
#: the batch's time, measured on two cores with 250,000 transactions).
_CHEAP_PLANS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
}


def _plan_cheaply(batch: DataFrame) -> None:
    for key, value in _CHEAP_PLANS.items():
        batch.sparkSession.conf.set(key, value)


class Publisher:
    """Writes the batches of the reconcile query; foreachBatch calls it.

    Delta's application id is the query's id and the table's name.
    """

    def __init__(self, tables: Tables, segment_size: int) -> None:
        self._tables = tables
        self._size = segment_size
        self._topics: set[str] = set()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Publish one batch.

        Step 1: keep the actions (a second pass would run the stateful operator again) and sum them up.
        Step 2: fetch what they are about from `half`, in one pass, and keep it; each action must find its row.
        Step 3: write all tables side by side, each once by its own (application, batch id).
        Step 4: let go.

        Raises StorageError when `half` no longer holds a row that a segment took.
        """
        _plan_cheaply(batch)
        # Step 1
        actions = batch.persist()
        messages: DataFrame | None = None
        try:
            summary = sum_up(actions, self._size)
            if not summary.counts:
                return
            half = self._tables.read(batch.sparkSession, "half").where(summary.covers("queue_offset"))
            # Step 2
            messages = rows.acted_on(half, actions, summary).persist()
            topics = self._topics_of(messages, summary)
            # Step 3
            self._write(batch, self._outputs(actions, messages, half, topics, summary, batch_id), batch_id)
        finally:
            # Step 4
            if messages is not None:
                messages.unpersist()
            actions.unpersist()

    def _topics_of(self, messages: DataFrame, summary: Summary) -> list[str]:
        """Topics of the batch's commits; and the proof that the join lost and doubled nothing."""
        counts = messages.groupBy("action", "real_topic").count().collect()
        wanted, found = summary.count(*rows.ACTED_ON), sum(row["count"] for row in counts)
        if found != wanted:
            raise StorageError(
                f"{wanted} half messages were acted on, {found} rows have their offset and store_timestamp",
                where=self._tables.location("half"),
                fix="rows were removed from the table or changed in it: restore it to its last good version",
            )
        return sorted(row["real_topic"] for row in counts if row["action"] == Action.COMMIT)

    def _outputs(
        self,
        actions: DataFrame,
        messages: DataFrame,
        half: DataFrame,
        topics: list[str],
        summary: Summary,
        batch_id: int,
    ) -> dict[str, DataFrame]:
        """Table name to the rows that this batch adds to it; tables without rows are left out."""
        outputs = {TOPIC_PREFIX + topic: rows.topic_rows(messages, topic, batch_id) for topic in topics}
        if summary.count(*rows.DECISIONS):
            outputs["decisions"] = rows.decision_rows(messages, batch_id)
        if summary.count(Action.DISCARD):
            outputs["discarded"] = rows.discarded_rows(messages, batch_id)
        if summary.count(Action.CHECK):
            outputs["check_requests"] = rows.request_rows(messages, batch_id)
        rejected = []
        if summary.count(Action.REJECT_OP, Action.LATE_OP):
            op = self._tables.read(actions.sparkSession, "op").where(summary.covers("half_offset"))
            rejected.append(rows.rejected_ops(actions, op, half))
        if summary.count(Action.REJECT_HALF):
            rejected.append(rows.rejected_halves(actions, half))
        if rejected:
            outputs["rejected"] = reduce(DataFrame.unionByName, rejected)
        return outputs

    def _write(self, batch: DataFrame, outputs: dict[str, DataFrame], batch_id: int) -> None:
        new = [name for name in outputs if name.startswith(TOPIC_PREFIX) and name not in self._topics]
        self._tables.create(batch.sparkSession, *new)
        self._topics.update(new)
        app = query_id(batch)

        def append(name: str) -> None:
            self._tables.append(outputs[name], name, f"{app}/{name}", batch_id)

        with ThreadPoolExecutor(max_workers=max(1, len(outputs))) as pool:
            # Inheritable: the jobs keep the query's name in Spark's UI, and its scheduler pool.
            list(pool.map(inheritable_thread_target(batch.sparkSession)(append), outputs))
