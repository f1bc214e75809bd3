"""The number of checks of each half message, from the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from checkback.reconcile.publish.event_columns import identity_columns, op_events
from checkback.reconcile.records.segment_records import Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: what `check` writes of a check that counts: an answered one, too
_COUNTED = [int(kind) for kind in (Kind.COUNTED, Kind.COMMIT, Kind.ROLLBACK)]
#: identifies the half message whose checks are counted
CHECKED = ["queue_id", "offset", "group", "transaction"]


def checks_so_far(check_requests: DataFrame, op: DataFrame, count_undelivered: bool, check_max: int) -> DataFrame:
    """By half message: the checks that count, all checks, and the time of the last one.

    Columns CHECKED, check_times INT, requested INT, checked BIGINT (ms). CHECKED includes `identity_columns`, because
    after a restore of `half` from a backup an offset may be reused. With ``count_undelivered`` checks count when
    requested, the last of ``check_max`` when sent; otherwise when a producer has received them (docs/protocol.md,
    rule 9).
    """
    last = F.max(F.struct("requested_at", "check_times")).alias("last")
    number = F.count("*").cast("int").alias("requested")
    group, transaction = identity_columns()
    whose = "queue_id", F.col("queue_offset").alias("offset"), group.alias("group"), transaction.alias("transaction")
    requests = check_requests.groupBy(*whose).agg(last, number)
    told = op_events(op).where(F.col("kind").isin(*_COUNTED))
    counted = told.groupBy(*CHECKED).agg(F.max("check").alias("counted"))
    confirmed, newest = F.coalesce("counted", F.lit(0)), F.col("last.check_times")
    if count_undelivered:
        not_sent = (newest >= check_max) & (confirmed < newest)
        # check_max may have been greater when the last one was requested.
        times = F.when(not_sent, F.greatest(confirmed, F.lit(check_max - 1))).otherwise(newest)
    else:
        times = F.least(confirmed, "requested")
    checked = F.unix_millis("last.requested_at").alias("checked")
    counts = requests.join(counted, on=CHECKED, how="left")
    return counts.select(*CHECKED, times.cast("int").alias("check_times"), "requested", checked)
