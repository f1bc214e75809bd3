"""Publishing a batch: the actions, joined back to `half`, become rows of the tables.

Strings and bodies never pass through Python: the actions are integers, and Spark joins them to the very rows of
`half` that the segments took (queue_id, queue_offset and store_timestamp name a row).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from checkback.errors import StorageError
from checkback.reconcile import rows
from checkback.reconcile.segment import Action
from checkback.reconcile.summary import Summary, sum_up
from checkback.tables import TOPIC_PREFIX, Tables

#: what of `half` the ledgers need
_NARROW = ("queue_id", "queue_offset", "store_timestamp", "transaction_id", "producer_group", "real_topic")
_DECISIONS = (Action.COMMIT, Action.ROLLBACK, Action.DISCARD)


class Publisher:
    """Writes the batches of the reconcile query; foreachBatch calls it.

    ``query_id``: the id that Spark keeps in the checkpoint. With the table's name it is Delta's application id.
    """

    def __init__(self, tables: Tables, segment_size: int, query_id: Callable[[DataFrame], str]) -> None:
        self._tables = tables
        self._size = segment_size
        self._query_id = query_id
        self._topics: set[str] = set()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Publish one batch.

        Step 1: keep the actions (a second pass would run the stateful operator again) and sum them up.
        Step 2: name them by the narrow columns of `half`; every one must find its row.
        Step 3: write all tables side by side, each once by its own (application, batch id).
        Step 4: let go.

        Raises StorageError when `half` no longer holds a row that a segment took.
        """
        # Step 1
        actions = batch.persist()
        named: DataFrame | None = None
        try:
            summary = sum_up(actions, self._size)
            if not summary.counts:
                return
            half = self._tables.read(batch.sparkSession, "half").where(summary.covers("queue_offset"))
            # Step 2
            named = self._acted_on(actions, half.select(*_NARROW, "born_timestamp"), summary).persist()
            topics = self._topics_of(named, summary)
            # Step 3
            self._write(batch, self._outputs(actions, named, half, topics, summary, batch_id), batch_id)
        finally:
            # Step 4
            if named is not None:
                named.unpersist()
            actions.unpersist()

    def _acted_on(self, actions: DataFrame, half: DataFrame, summary: Summary, *only: Action) -> DataFrame:
        wanted = only or (*_DECISIONS, Action.CHECK)
        chosen = actions.where(F.col("action").isin([int(action) for action in wanted]))
        return rows.acted_on(half, chosen, summary.count(*wanted) <= rows.MAX_BROADCAST, summary.repeated)

    def _topics_of(self, named: DataFrame, summary: Summary) -> list[str]:
        """Topics of the batch's commits; and the proof that the join lost and doubled nothing."""
        counts = named.groupBy("action", "real_topic").count().collect()
        wanted, found = summary.count(*_DECISIONS, Action.CHECK), sum(row["count"] for row in counts)
        if found != wanted:
            raise StorageError(
                f"{wanted} half messages were acted on, {found} rows have their offset and store_timestamp",
                where=self._tables.location("half"),
                fix="rows were removed from the table or changed in it: restore it to its last good version",
            )
        return sorted(row["real_topic"] for row in counts if row["action"] == Action.COMMIT)

    def _outputs(
        self, actions: DataFrame, named: DataFrame, half: DataFrame, topics: list[str], summary: Summary, batch_id: int
    ) -> dict[str, DataFrame]:
        """Table name to the rows that this batch adds to it; tables without rows are left out."""
        outputs: dict[str, DataFrame] = {}
        for topic in topics:
            committed = self._acted_on(actions, half.where(F.col("real_topic") == topic), summary, Action.COMMIT)
            outputs[TOPIC_PREFIX + topic] = rows.topic_rows(committed, batch_id)
        if summary.count(*_DECISIONS):
            outputs["decisions"] = rows.decision_rows(named, batch_id)
        if summary.count(Action.DISCARD):
            discarded = self._acted_on(actions, half, summary, Action.DISCARD)
            outputs["discarded"] = rows.discarded_rows(discarded, batch_id)
        if summary.count(Action.CHECK):
            outputs["check_requests"] = rows.request_rows(named, batch_id)
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
        app = self._query_id(batch)
        with ThreadPoolExecutor(max_workers=max(1, len(outputs))) as pool:
            list(
                pool.map(
                    lambda name: self._tables.append(outputs[name], name, f"{app}/{name}", batch_id),
                    outputs,
                )
            )
