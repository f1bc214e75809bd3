"""Delta tables -> `half` and `op`: one streaming query per table, with Spark's Delta source.

An outbox's rows are messages whose transactions have committed. They state no place: each table has a half queue, in
which a row gets the next offset once its transaction id is known to be new (`batch`).
"""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from checkback.errors import CheckbackError, SettingsError, one_line
from checkback.landing.drained_tables import QUERY
from checkback.landing.landing_queries import Landed, LandingStream, has_begun, run
from checkback.landing.table_columns import Fields
from checkback.landing.table_rows import FIELDS, ROWS, outbox_reader
from checkback.landing.table_source import AWAY, OWN, TableSource, explained
from checkback.spark.connect import classic_only
from checkback.storage.checkpoints.checkpoint import read_checkpoint
from checkback.storage.files import filesystem
from checkback.storage.horizon import floors
from checkback.storage.queue_owners import ANY_TOPIC, QueueOwner, log_of_half, refuse_foreign
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from checkback.landing.parser import Kind, Reader
    from checkback.settings import Settings

#: What cannot be computed for a row is NULL: an error would end the query at each start.
_NO_ERROR = {"spark.sql.ansi.enabled": "false"}
#: Columns are read by what they are called now. The stream's own check is for those who compute with them.
_BY_NAME = {"spark.databricks.delta.streaming.unsafeReadOnIncompatibleColumnMappingSchemaChanges.enabled": "true"}
#: folder beside the checkpoints: by the hash of a table's folder, and of its full name, its id and folder when it
#: landed last
_KNOWN = "land-tables"


@dataclass(frozen=True)
class TableOptions:
    """What `land --table` is told.

    ``outbox``, or ``half`` and ``op``: paths, URIs or names of Delta tables. ``mapping``: expressions by field.
    ``version`` or ``time``: where a table begins that has not landed before. ``feed``: read the change data feed; None:
    as before, or else if the table has it.
    """

    outbox: str | None = None
    half: str | None = None
    op: str | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)
    version: str | None = None
    time: str | None = None
    feed: bool | None = None


def land(spark: SparkSession, settings: Settings, given: TableOptions, available_now: bool) -> Landed:
    """Land the rows of Delta tables in `half` and `op`, and invalid ones in `rejected`.

    A table is read from its rows of now on, then from the position in its checkpoint ``land-table-<id>``. With
    ``available_now`` the available rows are landed, and the function returns; else the tables are followed until SIGINT
    or SIGTERM, which let the running batch finish.

    Raises SettingsError if there is no such table or a column is missing; CheckbackError if the table has changed in a
    way that the stream cannot pass, or a table cannot be read or written.
    """
    classic_only(spark, "land")
    tables = Tables.of(settings.storage)
    # Ops first: an op without its half waits, a half without its op may be checked needlessly.
    named: list[tuple[Kind, str | None, str]] = [
        ("op", given.op, "--op"),
        ("half", given.half, "--half"),
        ("half", given.outbox, "--outbox"),
    ]
    sources = {kind: TableSource.find(spark, name, option) for kind, name, option in named if name}
    if len({source.id for source in sources.values()}) < len(sources):
        raise SettingsError("half messages and ops need a table each", "--half, --op", "name two tables")
    if given.outbox is None:
        _refuse_unmapped(given.mapping, sources)
    for source in sources.values():
        _refuse_anew(spark, tables, source)
        _refuse_behind(spark, tables, source)
    ignored = _Ignored()
    inlets = {kind: _inlet(spark, tables, given, kind, source, ignored) for kind, source in sources.items()}
    owner, mark = QueueOwner.FILES, ANY_TOPIC
    if given.outbox is not None and given.version is None and given.time is None:
        _refuse_forgotten(spark, tables, sources["half"])
    if given.outbox is not None:
        owner, mark = QueueOwner.TABLE, sources["half"].mark
        _check_queue(settings, tables, sources["half"])
    try:
        with _set(spark, _BY_NAME):
            landed = run(spark, settings, inlets, owner, available_now, mark=mark)
    except CheckbackError as error:
        at = error.where.removeprefix("query ")
        failed = next((source for source in sources.values() if source.query == at), None)
        if failed is None:
            raise
        raise explained(error, failed, tables.checkpoint(failed.query)) from error
    return replace(landed, ignored=ignored.rows)


def _inlet(
    spark: SparkSession, tables: Tables, given: TableOptions, kind: Kind, source: TableSource, ignored: _Ignored
) -> LandingStream:
    feed = _reads_feed(spark, tables.checkpoint(source.query), source, given.feed)
    queue: int | None = None
    version, time = _start(spark, tables.checkpoint(source.query), source, given)
    with _set(spark, _NO_ERROR):
        rows = source.stream(spark, feed, version, time)
        own = rows.drop(*OWN)
        reader: Reader
        if given.outbox is not None:
            queue, fields = source.queue, Fields.of_outbox(own, given.mapping)
            reader = outbox_reader(queue)
        else:
            known = FIELDS[kind]
            mapping = {name: expression for name, expression in given.mapping.items() if name in known}
            fields, reader = Fields.of_kind(own, known, f"--{kind}", mapping), ROWS[kind]
        line, order, born = fields.columns(rows)
        try:
            rows = rows.select(
                line,
                F.col("_checkback_fault").alias("fault"),
                F.concat(F.lit(f"{source.name}/"), F.element_at(F.split(F.input_file_name(), "/"), -1)).alias("file"),
                F.coalesce("_checkback_commit_time", F.timestamp_millis(F.lit(0))).alias("file_time"),
                order.alias("file_block"),
                F.current_timestamp().alias("store_timestamp"),
                F.when(F.col("_checkback_snapshot"), F.coalesce(born, F.lit(0))).alias("snapshot"),
                "_checkback_ignored",
            )
        except AnalysisException as error:  # such as an aggregate, which alone is a valid expression
            raise SettingsError(one_line(error), "--map", "use expressions of one row") from None
    return LandingStream(rows, source.query, reader, ignored.leave_out, outbox=queue)


def _refuse_unmapped(mapping: Mapping[str, str], kinds: Iterable[Kind]) -> None:
    """Raise SettingsError if no table is given whose rows have the field."""
    known = frozenset().union(*(FIELDS[kind] for kind in kinds))
    for name in mapping:
        if name not in known:
            what = f"{name} is not a field of {' and '.join(f'--{kind}' for kind in sorted(kinds))}"
            raise SettingsError(what, "--map", "leave it out")


class _Ignored:
    """Counts updates and deletes, which are no messages."""

    def __init__(self) -> None:
        self.rows = 0

    def leave_out(self, batch: DataFrame) -> DataFrame:
        """The rows that are messages."""
        self.rows += batch.where("_checkback_ignored").count()
        return batch.where("NOT _checkback_ignored").drop("_checkback_ignored")


@contextmanager
def _set(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key, None) for key in values}
    for key, value in values.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, earlier in before.items():
            spark.conf.unset(key) if earlier is None else spark.conf.set(key, earlier)


def _reads_feed(spark: SparkSession, checkpoint: str, source: TableSource, wanted: bool | None) -> bool:
    """Does the query read the change data feed: as wanted, or as before, or else if the table has one?"""
    file = f"{checkpoint}/feed"
    known = filesystem.text(spark, file) if filesystem.exists(spark, file) and has_begun(spark, checkpoint) else None
    if wanted and not source.feed:
        fix = "ALTER TABLE ... SET TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        raise SettingsError(f"{source.name} has no change data feed", "--changes", fix)
    feed = wanted if wanted is not None else source.feed if known is None else known == "true"
    if known != str(feed).lower():
        filesystem.write(spark, file, str(feed).lower())
    return feed


def _start(
    spark: SparkSession, checkpoint: str, source: TableSource, given: TableOptions
) -> tuple[str | None, str | None]:
    """The version or time with which the table begins: that of its first run, until its first batch has landed.

    A first batch that is done again begins by these options, not by its offsets. Raises SettingsError for `latest`,
    which is another version at each start.
    """
    if given.version == "latest":
        fix = f"give {source.version(spark)}, the newest one now: it begins with that commit's rows"
        raise SettingsError("latest is another version at each start", "--starting-version", fix)
    file = f"{checkpoint}/start"
    if filesystem.names(spark, f"{checkpoint}/commits"):
        return None, None
    if has_begun(spark, checkpoint) and filesystem.exists(spark, file):
        version, time = json.loads(filesystem.text(spark, file))
        return version, time
    filesystem.write(spark, file, json.dumps([given.version, given.time]))
    return given.version, given.time


def _refuse_anew(spark: SparkSession, tables: Tables, source: TableSource) -> None:
    """Raise CheckbackError if a table with another id has landed from its folder or by its name; else record this one.

    A catalog may give a table that is created again another folder. A table with a position was moved or renamed: its
    former folder and name are free for another one.
    """
    folder = tables.checkpoint(_KNOWN)
    own = [hashlib.sha256(each.encode()).hexdigest() for each in (source.location, source.full_name) if each]
    files = [f"{folder}/{each}" for each in own]
    here = f"{source.id} {source.location}"
    noted = [filesystem.text(spark, file) if filesystem.exists(spark, file) else None for file in files]
    if all(each == here for each in noted):
        return
    before = [each and each.partition(" ")[0] for each in noted]
    if not has_begun(spark, tables.checkpoint(source.query)):
        for place in (tables.checkpoint(QUERY + each) for each in before if each not in (None, source.id)):
            if filesystem.exists(spark, place):
                what = "the table was made anew: its rows would land as those of another table, whatever has landed"
                fix = f"to land them, move {place} away; it has the old table's position"
                raise CheckbackError(what, source.name, f"{fix}. If the old one was renamed, land it first")
    for name in filesystem.names(spark, folder):
        if name not in own and len(name) == len(own[0]):
            known, _, place = filesystem.text(spark, f"{folder}/{name}").partition(" ")
            if known == source.id and place != source.location and source.is_at(spark, place):
                what = f"is a copy of the table in {place}, with its id: of two with one position rows would be lost"
                raise CheckbackError(what, source.name, "make it by CREATE TABLE ... CLONE, or remove the other one")
            if known == source.id:
                filesystem.delete_file(spark, f"{folder}/{name}")
    for file in files:
        filesystem.write(spark, file, here)


def _refuse_behind(spark: SparkSession, tables: Tables, source: TableSource) -> None:
    """Raise CheckbackError if the table has fewer versions than were read of it: what is added now would not land."""
    place = tables.checkpoint(source.query)
    found = read_checkpoint(spark, place) if has_begun(spark, place) else None
    position = None if found is None or found.newest is None else found.newest.position(0)
    if position is not None and position.version > (newest := source.version(spark)) + 1:
        what = f"has version {newest}, and {position.version - 1} has landed: it was restored from a copy"
        raise CheckbackError(what, source.name, AWAY.format(checkpoint=place))


def _refuse_forgotten(spark: SparkSession, tables: Tables, source: TableSource) -> None:
    """Raise CheckbackError if the table would be read anew, and retention has removed what says which rows landed."""
    if has_begun(spark, tables.checkpoint(source.query)) or not floors(spark, tables, [source.queue]):
        return
    what = "has no position any more, and retention has removed ids that have landed: its old rows would land twice"
    fix = "say from where on: --starting-version N or --starting-timestamp TIME, as the topics' last rows tell"
    raise CheckbackError(what, source.name, fix)


def _check_queue(settings: Settings, tables: Tables, source: TableSource) -> None:
    """Raise SettingsError if the settings, or `half`, give the table's half queue to somebody else."""
    for key, queues in (("gateway.queues", settings.gateway.queues), ("operator.queue", [settings.operator.queue])):
        if source.queue in queues:
            what = f"the half queue of {source.name} is {source.queue}, and it is in {key}"
            raise SettingsError(what, key, "give each queues of its own")
    refuse_foreign(log_of_half(tables), [source.queue], QueueOwner.TABLE, "--outbox", source.mark)
