"""Half messages that ended once, though no table tells how: retention has removed that, but they are there.

Somebody has taken `half` back to before a removal (RESTORE), or `decisions` is older than the other tables. As pending
ones they would be asked about, and published again.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from checkback.errors import StateError, StorageError
from checkback.storage.dataframes import frame
from checkback.storage.horizon import horizon
from checkback.storage.schemas import TOPIC_PREFIX
from checkback.storage.table_scan import read_table

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import DataFrame, SparkSession

    from checkback.storage.tables import Tables

_KEY = ["queue_id", "queue_offset"]
#: how far the clocks of whoever lands and of the batches may differ (ms)
_CLOCKS_MS = 600_000


def refuse_lost(spark: SparkSession, tables: Tables, topics: Collection[str], timeout: timedelta) -> None:
    """Raise StateError if there are such half messages.

    ``topics``: the tables of topics, which have horizons, too. ``timeout``: transaction.timeout.

    A batch has read all that landed before a horizon. So it has ended what has a COMMIT from before that of its topic,
    and, before that of the history, what has any op, or was never checked though its first check was due.
    """
    history = horizon(spark, tables)
    known: dict[str, int] = {}
    for name in topics:
        with suppress(StorageError):  # a damaged topic, which is left out
            since = horizon(spark, tables, name)
            known |= {} if since is None else {name.removeprefix(TOPIC_PREFIX): since}
    if history is None and not known:
        return
    lost = _lost(spark, tables, history or 0, known, timeout)
    number = lost.count()
    if number:
        first = lost.select("transaction_id").first()
        what = (
            f"{number} half messages have no decision, though batches have ended them (one is {first and first[0]!r})"
        )
        fix = "put all tables back from one backup, or `half` to its version before a RESTORE; or "
        fix += "`checkback rebuild --publish-again` asks about them, and publishes what is committed, again"
        raise StateError(f"{what}: retention has removed how", tables.location("decisions"), fix)


def _lost(spark: SparkSession, tables: Tables, history: int, topics: dict[str, int], timeout: timedelta) -> DataFrame:
    """transaction_id of these half messages."""
    horizons = pa.table(
        {"real_topic": pa.array(topics, pa.string()), "of_topic": pa.array(topics.values(), pa.int64())}
    )
    half = read_table(spark, tables, "half").withColumn("landed", F.unix_millis("store_timestamp") + _CLOCKS_MS)
    half = half.join(F.broadcast(frame(spark, horizons)), on="real_topic", how="left")
    half = half.where((F.col("landed") < history) | (F.col("landed") < F.col("of_topic")))
    immunity = F.coalesce(F.col("check_immunity_s").cast("bigint"), F.lit(timeout // timedelta(seconds=1))) * 1000
    half = half.withColumn("due", F.col("landed") + immunity)
    half = half.select(*_KEY, "transaction_id", "producer_group", "landed", "due", "of_topic", "committed")
    half = half.join(read_table(spark, tables, "decisions").select(*_KEY), on=_KEY, how="left_anti")
    ops = read_table(spark, tables, "op").where("state IN ('COMMIT', 'ROLLBACK')")
    ops = ops.withColumnsRenamed({"transaction_id": "its_id", "producer_group": "its_group"})
    ops = ops.select(*_KEY, "state", "its_id", "its_group", F.unix_millis("store_timestamp").alias("op_landed"))
    own = "its_group = producer_group AND (its_id IS NULL OR its_id = transaction_id)"
    ended = half.join(ops, on=_KEY, how="inner").where(own).groupBy(*_KEY)
    at = F.col("op_landed") + _CLOCKS_MS
    ended_at = ended.agg(F.min(F.when(F.col("state") == "COMMIT", at)).alias("commit"), F.min(at).alias("any_op"))
    checked = read_table(spark, tables, "check_requests").select(*_KEY).distinct().withColumn("checked", F.lit(True))
    found = half.join(ended_at, on=_KEY, how="left").join(checked, on=_KEY, how="left")
    commit, any_op = (
        F.when(F.col("committed"), F.col("landed")).otherwise(F.col(name)) for name in ("commit", "any_op")
    )
    unchecked = F.col("checked").isNull() & (F.col("due") < history)
    return found.where((commit < F.col("of_topic")) | (any_op < history) | unchecked)
