"""A topic's messages as Spark's DataFrames: at once, and as a stream (docs/consumer.md)."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from checkback.bodies.body_format import format_of
from checkback.errors import CheckbackError, SettingsError, StorageError
from checkback.messages.names import is_topic
from checkback.query.engines.spark_engine import SparkEngine, whole_columns
from checkback.query.typed_frames import value_columns, with_value_columns
from checkback.query.typed_sql import has_sql, lasting_query
from checkback.query.versions.view import moment_column
from checkback.query.versions.whole_batches import Cut, read_batches
from checkback.storage.catalog_names import TABLE_PREFIX, table_name
from checkback.storage.log.spark_log import quoted
from checkback.storage.schemas import TOPIC_PREFIX
from checkback.storage.tables import Tables
from checkback.storage.timestamps import aware, ms_of, time_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from pyspark.sql import DataFrame, SparkSession

    from checkback.filter import MessageSelector
    from checkback.settings import Settings


#: topics that an error names
_NAMED = 10
#: how far the clocks of the batches and of the log may differ (ms)
_CLOCKS_MS = 600_000
#: so much before the newest commit a stream begins at the latest (ms): Delta takes no time after the newest commit
_BEFORE_NEWEST_MS = 60_000


def read(
    spark: SparkSession,
    settings: Settings,
    topic: str,
    selector: MessageSelector | None = None,
    isolation: Literal["batch", "none"] = "batch",
) -> DataFrame:
    """A topic's messages that the selector matches (None: all), without erased ones.

    Columns: ``topics/<topic>`` (docs/tables.md), with ``topics.NAME.body`` in the settings also value and value_error
    (docs/queries.md).

    ``isolation``: ``batch`` = only messages of batches that have their row in `batches`, as of this call; the table's
    version is fixed by it, so use the DataFrame within the time that VACUUM keeps files (`maintain.retention`). Runs a
    small Spark job. ``none`` = whatever the table has whenever
    the DataFrame is evaluated, messages of a batch in progress included.

    To join topics take `checkback.query.snapshot`: of two calls the second may see a batch more. Raises StorageError
    if the topic has no table, SettingsError for another isolation; for a schema that cannot be had, either.
    """
    if isolation not in ("batch", "none"):
        raise SettingsError(f"{str(isolation)[:60]!r} is no isolation", "isolation", "write batch or none")
    tables, name = Tables.of(settings.storage), TOPIC_PREFIX + topic
    version, _ = _newest(spark, tables, topic)
    if isolation == "none":
        rows = tables.read(spark, name)
    else:
        # The version before the batches: a batch commits to a topic once, so those known afterwards have all of their
        # messages in it or, if they have just been completed, none; and only the batch in progress can have more.
        rows = tables.read(spark, name, version)
        cut = Cut.at(read_batches(SparkEngine(spark, tables)), None)
        rows = rows.where(F.lit(False)) if cut is None else cut.of(rows, name)
    rows = whole_columns(rows, name).where(F.col("erased_at").isNull())
    return _typed(rows if selector is None else rows.where(selector.column()), settings, topic)


def _typed(rows: DataFrame, settings: Settings, topic: str) -> DataFrame:
    body = format_of(settings, topic)
    return rows if body is None else with_value_columns(rows, body)


def read_stream(
    spark: SparkSession,
    settings: Settings,
    topic: str,
    selector: MessageSelector | None = None,
    starting: Literal["first"] | datetime = "first",
) -> DataFrame:
    """As `read`, as a stream.

    ``starting``: where a query without a checkpoint begins. ``first`` = all messages there are, a datetime with a time
    zone = messages whose ``published_at`` is at or after it; for one longer ago than half of `maintain.retention` the
    whole table is read once, since the files that older commits added may be gone. Give the same datetime at each
    start: the checkpoint has no position before the first message, so the query starts over until then.

    Each message is delivered once to a query with a checkpoint, as soon as its topic's table has it, which may be
    moments before its batch is in `batches`. The order within a micro-batch is not defined. OPTIMIZE and VACUUM change
    nothing as long as the query lags behind by less than `maintain.retention`. Commits by which users delete or update
    messages are skipped (Delta's skipChangeCommits): what was delivered stays delivered, what is deleted before the
    query comes to it may be delivered all the same, and an updated message is not delivered again. A query that
    is behind an erasure gets the messages as they were, or fails if the files are gone (docs/runbook.md, Erasure).

    Options for the source (maxFilesPerTrigger, ...) can be set on the session. Raises StorageError if the topic has no
    table yet, SettingsError for another start, or one without a time zone.
    """
    since = _since(starting)
    tables, name = Tables.of(settings.storage), TOPIC_PREFIX + topic
    newest = _newest(spark, tables, topic)
    options = {"skipChangeCommits": "true"}
    if since is not None:
        options |= options_since(since, newest, round(time.time() * 1000), settings.maintain.retention)
    rows = whole_columns(tables.stream(spark, name, **options), name).where(F.col("erased_at").isNull())
    if since is not None:
        rows = rows.where(F.col("published_at") >= moment_column(time_of(since)))
    return _typed(rows if selector is None else rows.where(selector.column()), settings, topic)


def options_since(since: int, newest: tuple[int, int], now: int, retention: timedelta) -> dict[str, str]:
    """Options of Delta's streaming source that leave out no commit with messages of ``since`` (ms) or later.

    ``newest``: version and time (ms) of the newest commit; ``now``: ms; ``retention``: how long files are kept that
    OPTIMIZE has replaced. The stream may begin too early: messages before ``since`` are to be filtered out.
    """
    version, made = newest
    begin = since - _CLOCKS_MS
    if begin < now - retention.total_seconds() * 500:
        return {}  # the table as it is, then its commits
    if begin > made:
        return {"startingVersion": str(version)}
    return {"startingTimestamp": time_of(min(begin, made - _BEFORE_NEWEST_MS)).isoformat(" ", "milliseconds")}


def _since(starting: str | datetime) -> int | None:
    """A start's time (ms); None = it is none."""
    if isinstance(starting, datetime):
        return ms_of(aware(starting, "starting"))
    if starting != "first":
        fix = "write first, or give a datetime that is the same at each start"
        raise SettingsError(f"{str(starting)[:60]!r} is no start", "starting", fix)
    return None


def _newest(spark: SparkSession, tables: Tables, topic: str) -> tuple[int, int]:
    """Version and time (ms) of the newest commit to a topic's table. Raises StorageError if there is no such table."""
    found = tables.history(spark, TOPIC_PREFIX + topic, 1) if is_topic(topic) else {}
    if not found:
        raise _no_table(topic, [name.removeprefix(TOPIC_PREFIX) for name in tables.topics(spark)], tables)
    return max(found.items())


def _no_table(topic: str, topics: list[str], tables: Tables) -> StorageError:
    where = tables.root or f"{tables.catalog}.{tables.schema}"
    what = f"the topic {topic[:127]!r} has no table"
    if not topics:
        return StorageError(what, where, "no topic has one yet: `checkback reconcile` makes it with the first message")
    more = f" and {len(topics) - _NAMED} more" if len(topics) > _NAMED else ""
    fix = f"these have one: {', '.join(topics[:_NAMED])}{more}; it is made with the topic's first message"
    return StorageError(what, where, fix)


_BATCHES = "batches"


def create_views(spark: SparkSession, settings: Settings, database: str | None = None) -> dict[str, str]:
    """Create or replace a view of each topic that has a table; by topic the view's name as SQL takes it.

    ``database``: None = temporary views of this session, named as the topics; otherwise lasting views in this schema
    (``schema`` or ``catalog.schema``), which is created if it does not exist. Their names: `view_names`. Columns: those
    of ``topics/<topic>`` (docs/tables.md), and ``body_text`` (string): the body if it is UTF-8, else null. With
    ``topics.NAME.body`` in the settings also value and value_error (docs/queries.md), in lasting views for text and
    JSON only. Temporary views call a function of the session for them: ``checkback_value_`` and the view's name.

    A view shows the messages of batches that have their row in `batches`, at the time of each query, and reads that
    table for it. A topic that comes later has a view after the next call. Raises StorageError if there is no table
    `batches`; the error of a topic whose schema cannot be had, once all others have their views.
    """
    tables = Tables.of(settings.storage)
    if not tables.exists(spark, _BATCHES):
        raise StorageError("there is no such table", tables.location(_BATCHES), "run `checkback reconcile` first")
    place, kind = "", "TEMPORARY VIEW"
    if database is not None:
        schema = ".".join(quoted(part) for part in database.split("."))
        if not spark.catalog.databaseExists(schema):
            spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        place, kind = f"{schema}.", "VIEW"
    topics = [name.removeprefix(TOPIC_PREFIX) for name in tables.topics(spark)]
    made: dict[str, str] = {}
    failed: dict[str, Exception] = {}
    for topic, name in view_names(topics, lasting=database is not None).items():
        view = place + quoted(name)
        try:
            body = _select(tables.in_sql(TOPIC_PREFIX + topic), tables.in_sql(_BATCHES))
            form = format_of(settings, topic) if database is None or has_sql(settings.topics.get(topic)) else None
            if form is not None and database is not None:
                body = lasting_query(form, body)
            elif form is not None:
                values = value_columns(spark, form, f"checkback_value_{name}")
                body = f"SELECT message.*, {values} FROM ({body}) AS message"  # noqa: S608 - quoted names
            spark.sql(f"CREATE OR REPLACE {kind} {view} AS {body}")
            made[topic] = view
        except (CheckbackError, PySparkException) as error:
            failed[topic] = error
    if failed:
        raise _no_views(failed)
    return made


def _no_views(failed: dict[str, Exception]) -> CheckbackError:
    """The error of the topics that have no view: the first one's, with their names."""
    first = next(iter(failed.values()))
    names = ", ".join(list(failed)[:_NAMED]) + (f" and {len(failed) - _NAMED} more" if len(failed) > _NAMED else "")
    rest = f"; there is no new view of {names}, of all others there is"
    if isinstance(first, CheckbackError):
        return type(first)(first.what + rest, first.where, first.fix)
    return StorageError(str(first).partition("\n")[0] + rest)


def view_names(topics: Iterable[str], lasting: bool) -> dict[str, str]:
    """The views' names by topic; unique if case is ignored, as Spark does.

    Temporary: the topic, except for topics that differ in case only, or have ``__``. Those, and names of ``lasting``
    views, have the form of tables in a catalog (`catalog_names`) without the prefix: of lower-case letters, digits and
    underscores. Two such names differ, and all but plain topics' have ``__``.
    """
    topics = list(topics)
    alike = Counter(topic.casefold() for topic in topics)
    return {
        topic: table_name(TOPIC_PREFIX + topic).removeprefix(TABLE_PREFIX)
        if lasting or alike[topic.casefold()] > 1 or "__" in topic
        else topic
        for topic in topics
    }


def _select(topic: str, batches: str) -> str:
    """The query of a view; both are identifiers in SQL. A run of batches is found by its days: an equality."""
    return f"""
        SELECT message.*, try_validate_utf8(CAST(message.body AS STRING)) AS body_text
        FROM {topic} AS message
        WHERE message.erased_at IS NULL AND (EXISTS (
            SELECT 1 FROM {batches} AS whole
            WHERE whole.batch_id = message.batch_id AND whole.batch_time = message.published_at
        ) OR EXISTS (
            SELECT 1
            FROM (
                SELECT *, explode(sequence(CAST(first_batch_time AS DATE), CAST(batch_time AS DATE))) AS day
                FROM {batches} WHERE first_batch_id IS NOT NULL) AS run
            WHERE run.day = CAST(message.published_at AS DATE)
                AND message.batch_id BETWEEN run.first_batch_id AND run.batch_id
                AND message.published_at BETWEEN run.first_batch_time AND run.batch_time
        ))"""  # noqa: S608 - quoted names
