"""What one batch of inputs becomes: rows of `half` or `op`, and rows of `rejected`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from checkback.landing.lines import RAW_MAX, SCHEMAS, Kind, Reader, parser
from checkback.landing.repeats import find_repeats, take_census

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from checkback.sync import QueryFlush
    from checkback.tables import Tables


class Landing:
    """Batch function of a landing query; ``taken`` and ``rejected`` count the rows it has seen since its start.

    Step 1: parse the lines and keep the rows. Step 2: count them, find repeated half messages.
    Step 3: write good rows. Step 4: write rejected ones. Each write is skipped when the batch has done it before.
    """

    def __init__(self, tables: Tables, kind: Kind, reader: Reader, flush: QueryFlush | None = None) -> None:
        """``flush``: of the query's checkpoint."""
        self._flush = flush
        self.tables = tables
        self.kind = kind
        self.reader = reader
        self.taken = 0
        self.rejected = 0

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Take a batch of (line, file, file_time, file_block, store_timestamp, and what the reader wants besides)."""
        if self._flush is not None:
            self._flush()
        lines = batch.withColumn("row", F.monotonically_increasing_id())
        with _kept(lines.mapInArrow(parser(self.kind, self.reader), SCHEMAS[self.kind])) as parsed:
            if self.kind == "half":
                self._half(lines, parsed, batch_id)
            else:
                self._op(parsed, batch_id)

    def _half(self, lines: DataFrame, parsed: DataFrame, batch_id: int) -> None:
        census = take_census(parsed)
        repeats = find_repeats(parsed, census, self.tables.read(parsed.sparkSession, "half"))
        if repeats is None:
            self._write(_good(parsed), census.good, _bad(parsed), census.rejected, batch_id)
            return
        with _kept(repeats) as repeats:
            number = repeats.count()
            # Row numbers are small, bodies are not: the numbers go to the bodies.
            few = F.broadcast(repeats.select("row"))
            good = _good(parsed).join(few, on="row", how="left_anti")
            bad = _bad(parsed).unionByName(_repeated(lines, repeats))
            self._write(good, census.good - number, bad, census.rejected + number, batch_id)

    def _op(self, parsed: DataFrame, batch_id: int) -> None:
        rows, rejected = parsed.agg(F.count("*"), F.count("reason")).first() or (0, 0)
        good = _good(parsed).withColumns({"source": F.lit("producer"), "remark": F.lit(None).cast("string")})
        self._write(good, rows - rejected, _bad(parsed), rejected, batch_id)

    def _write(self, good: DataFrame, taken: int, bad: DataFrame, rejected: int, batch_id: int) -> None:
        spark = good.sparkSession
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        if taken:
            self.tables.append(good, self.kind, app=f"land/{query}/{self.kind}", version=batch_id)
        if rejected:
            rows = bad.withColumn("source", F.lit(self.kind))
            self.tables.append(rows, "rejected", app=f"land/{query}/rejected", version=batch_id)
        self.taken += taken
        self.rejected += rejected


@contextmanager
def _kept(rows: DataFrame) -> Iterator[DataFrame]:
    """The rows, computed once for all that is done with them."""
    rows.persist()
    try:
        yield rows
    finally:
        rows.unpersist()


def _good(parsed: DataFrame) -> DataFrame:
    return parsed.where(F.col("reason").isNull())


def _bad(parsed: DataFrame) -> DataFrame:
    """raw, reason, file, rejected_at of lines that are no messages."""
    rejected = parsed.where(F.col("reason").isNotNull())
    return rejected.select("raw", "reason", "file", F.col("store_timestamp").alias("rejected_at"))


def _repeated(lines: DataFrame, repeats: DataFrame) -> DataFrame:
    """raw, reason, file, rejected_at of repeated half messages. Their text is read from the source once more."""
    text = F.col("line").cast("string")  # valid UTF-8: it has been parsed
    which = F.format_string("repeated (queue_id, queue_offset) %d/%d", "queue_id", "queue_offset")
    found = lines.select("line", "store_timestamp", "row").join(F.broadcast(repeats), on="row", how="inner")
    return found.select(
        F.left(text, F.lit(RAW_MAX)).alias("raw"),
        which.alias("reason"),
        "file",
        F.col("store_timestamp").alias("rejected_at"),
    )
