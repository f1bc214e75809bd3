"""A Delta table to land from: found, its changes told apart, and what Spark's source says of it in one line."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql import types as T

from checkback.errors import CheckbackError, SettingsError, one_line
from checkback.landing.drained_tables import QUERY
from checkback.storage.files.paths import for_spark
from checkback.storage.log.spark_log import quoted
from checkback.storage.queue_owners import mark_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: The half queues of outbox tables: the first, and how many of them. A table's own follows from its id.
FIRST_QUEUE, QUEUES = 1_500_000_000, 1 << 28
#: Rate limits, as of files: a backlog must not become one batch.
_LIMITS = {"maxFilesPerTrigger": "1000", "maxBytesPerTrigger": "1g"}
_FEED = "delta.enableChangeDataFeed"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_NAME = re.compile(r"[^\s/\\]+")
#: Debezium's op: create, read (a row of a snapshot); then update, delete, truncate, message
_CREATE, _READ, _OTHERS = "c", "r", ("u", "d", "t", "m")
#: columns of `stream` that are not the table's
OWN = ("_checkback_ignored", "_checkback_fault", "_checkback_commit_time", "_checkback_snapshot")
#: columns of the change data feed
_CHANGE, _VERSION, _TIME = "_change_type", "_commit_version", "_commit_timestamp"


@dataclass(frozen=True)
class TableSource:
    """A Delta table: ``name`` as it was given, ``place`` for Spark (``by_path``) or in SQL, Delta's ``id`` of it.

    ``feed``: has it a change data feed? ``location``: its folder, the same under each name. ``full_name``: in its
    catalog, however it was given; None for a path.
    """

    name: str
    place: str
    by_path: bool
    id: str
    feed: bool
    location: str
    full_name: str | None

    @classmethod
    def find(cls, spark: SparkSession, name: str, option: str) -> TableSource:
        """The table that a path, a URI or a catalog's name denotes. Raises SettingsError if there is none."""
        by_path = _SCHEME.match(name) is not None or "/" in name or os.path.isdir(name)
        if by_path:
            place = for_spark(name)
        elif _NAME.fullmatch(name) and name.count(".") <= 2:
            place = name if "`" in name else ".".join(quoted(part) for part in name.split("."))
        else:
            raise SettingsError(f"{name!r} is no table", option, "give a path or catalog.schema.table")
        try:
            detail = spark.sql(f"DESCRIBE DETAIL {_in_sql(place, by_path)}")
            found = detail.select("format", "id", "properties", "location", "name").first()
        except Exception as error:
            raise SettingsError(f"{name} cannot be opened: {one_line(error)}", option, "check its name") from error
        if found is None or found["format"] != "delta" or found["id"] is None:
            raise SettingsError(f"{name} is no Delta table", option, "land files with --half, --op without --table")
        feed, location = (found["properties"] or {}).get(_FEED) == "true", (found["location"] or place).rstrip("/")
        full_name = None if by_path else str(found["name"] or name).lower()
        return cls(name, place, by_path, str(found["id"]), feed, location, full_name)

    def is_at(self, spark: SparkSession, place: str) -> bool:
        """Is a table with its id in another folder?"""
        try:
            found = spark.sql(f"DESCRIBE DETAIL {_in_sql(place, True)}").select("id").first()
        except Exception:  # noqa: BLE001 - there is no table, or nobody can read it
            return False
        return found is not None and found["id"] == self.id

    def version(self, spark: SparkSession) -> int:
        """Its newest version."""
        found = spark.sql(f"DESCRIBE HISTORY {_in_sql(self.place, self.by_path)} LIMIT 1").first()
        return -1 if found is None else int(found["version"])

    @property
    def query(self) -> str:
        """The name of its query and checkpoint."""
        return QUERY + self.id

    @property
    def queue(self) -> int:
        """The half queue of an outbox table's messages."""
        return FIRST_QUEUE + int.from_bytes(hashlib.sha256(self.id.encode()).digest()[:4], "big") % QUEUES

    @property
    def mark(self) -> int:
        """What identifies the table as the owner of its queue."""
        return mark_of(self.id)

    def stream(self, spark: SparkSession, feed: bool, version: str | None, time: str | None) -> DataFrame:
        """The table as a stream: its columns, or those of ``after`` of Debezium's envelope, and of these only.

        ``feed``: its change data feed. ``version`` or ``time``: where a new checkpoint begins; None = with all rows.
        Besides: OWN, which are BOOLEAN (an update or a delete), STRING (why a row is refused), TIMESTAMP (a feed's
        commit), BOOLEAN (NULL = no): a row of a snapshot of Debezium's, which may not be the first.
        Raises SettingsError for a table of another shape, or if Spark does not take the options.
        """
        starts = {"startingVersion": version, "startingTimestamp": time}
        options = {**_LIMITS, **{key: value for key, value in starts.items() if value is not None}}
        # Without the feed, whole files that are removed were read before, or never will be.
        options |= {"readChangeFeed": "true"} if feed else {"ignoreDeletes": "true"}
        reader = spark.readStream.format("delta").options(**options)
        try:
            rows = reader.load(self.place) if self.by_path else reader.table(self.place)
        except Exception as error:
            raise SettingsError(one_line(error), self.name) from error
        ignored, fault, time_of = F.lit(False), F.lit(None).cast("string"), F.lit(None).cast("timestamp")
        names = [name for name in rows.columns if name not in (_CHANGE, _VERSION, _TIME)] if feed else rows.columns
        if feed:
            # An update is a row with what was there and one with what is there now: the latter counts.
            rows = rows.where(F.col(_CHANGE) != "update_preimage")
            ignored, time_of = F.col(_CHANGE) != "insert", F.col(_TIME)
        snapshot = F.lit(False)
        change, after, kind = _envelope(rows)
        if change is not None:
            if not isinstance(kind, T.StructType):
                what = f"is Debezium's envelope, and its column after is {kind.simpleString()}, not a struct"
                raise SettingsError(what, self.name, "parse it into the table, as by from_json")
            known, snapshot = [_CREATE, _READ, *_OTHERS], change == _READ
            tombstone = change.isNull() & after.isNull()  # it follows a deletion
            ignored = ignored | tombstone | F.coalesce(change.isin(*_OTHERS), F.lit(False))
            wrong = F.format_string("op: '%s' is none of Debezium's c, r, u, d, t, m", F.left(change, F.lit(40)))
            wrong = F.when(change.isNull(), F.lit("op: missing")).when(~change.isin(known), wrong)
            missing = F.when(after.isNull(), F.lit("after: missing"))
            fault = F.when(~ignored, wrong.otherwise(missing))
            own = [after.getField(name).alias(name) for name in kind.names]
        else:
            own = [F.col(f"`{name.replace('`', '``')}`") for name in names]
        return rows.select(
            *own,
            *(column.alias(name) for name, column in zip(OWN, (ignored, fault, time_of, snapshot), strict=True)),
        )


def _envelope(rows: DataFrame) -> tuple[Column | None, Column, T.DataType]:
    """Op and after of Debezium's envelope, and the type of after; op None: it is none.

    Kafka Connect's JSON has it in ``payload``, beside its ``schema``.
    """
    kinds = {field.name: field.dataType for field in rows.schema}
    inner = kinds.get("payload")
    if "schema" in kinds and isinstance(inner, T.StructType) and {"op", "after"} <= set(inner.names):
        return F.col("payload.op"), F.col("payload.after"), inner["after"].dataType
    return F.col("op") if {"op", "after"} <= set(kinds) else None, F.col("after"), kinds.get("after", T.NullType())


def _in_sql(place: str, by_path: bool) -> str:
    return f"delta.{quoted(place)}" if by_path else place


AWAY = (
    "move {checkpoint} away: the table is read anew, and what has landed is known; what was added since, and is deleted"
    " or changed by now, is in older versions only (VERSION AS OF)"
)
_READ_IT = "read it by --changes: the table has a change data feed by now. If that lacks versions: " + AWAY
#: what Spark's and Delta's errors mean for a source table, and what helps
_MEANINGS = (
    (
        r"DELTA_SOURCE_(?:TABLE_)?IGNORE_(?:CHANGES|DELETE)\b.*?version ([0-9]+)",
        "version {found} updated or deleted rows, and only a change data feed says which rows it added",
        "ALTER TABLE ... SET TBLPROPERTIES (delta.enableChangeDataFeed = true), then " + AWAY,
    ),
    (
        # That of a running query, DELTA_SCHEMA_CHANGED, is gone when it is started again.
        r"DELTA_STREAMING_(?:INCOMPATIBLE_SCHEMA_CHANGE|CANNOT_CONTINUE)",
        "a column was renamed or dropped, or its type has changed, which no stream passes",
        AWAY,
    ),
    (
        r"FAILED_READ_FILE\.FILE_NOT_EXIST",
        "VACUUM has removed files of the table before they were read",
        AWAY + "; let VACUUM keep files for longer than land stands still",
    ),
    (
        r"DELTA_LOG_FILE_NOT_FOUND|DELTA_TRUNCATED_TRANSACTION_LOG|DELTA_CHANGE_DATA_FILE_NOT_FOUND",
        "the table's log begins after the position: what was added in between is not told apart any more",
        AWAY + "; raise delta.logRetentionDuration above the time that land stands still",
    ),
    (
        r"DELTA_MISSING_CHANGE_DATA",
        "the change data feed lacks versions after the position",
        "read on without it by --no-changes; or " + AWAY,
    ),
    (
        r"DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",
        "the table was made anew while it was read",
        "run again, which says more",
    ),
    (
        r"DELTA_VERSION_NOT_FOUND.*?Available versions: (\[[0-9, ]+\])",
        "the table has no such --starting-version: it has {found}",
        "give one of these, or leave it out",
    ),
    (
        r"DELTA_TIMESTAMP_(?:GREATER|INVALID|EARLIER)[A-Z_]*\] ([^\n]*)",
        "--starting-timestamp is not one of the table's times: {found}",
        "give a time between its first and last commit, as 2026-11-20T15:00:00",
    ),
)


def explained(error: CheckbackError, source: TableSource, checkpoint: str) -> CheckbackError:
    """The error of a query on the table in words that say what helps; any other one unchanged."""
    whole = f"{error.what}\n{error.__cause__ or ''}"
    for pattern, what, fix in _MEANINGS:
        found = re.search(pattern, whole, re.DOTALL)
        if found is not None:
            parts = {"checkpoint": checkpoint, "found": found[found.re.groups]}
            told = _READ_IT if source.feed and (pattern, what, fix) == _MEANINGS[0] else fix
            return CheckbackError(what.format(**parts), source.name, told.format(**parts))
    return error
