"""How far back a table's rows reach: what retention has removed, kept in the table itself.

A removal is one commit: the files that go, those that hold what is left of them, and Delta transaction identifiers,
which stay in every checkpoint of the log (PROTOCOL.md of delta-io/delta). ``retention`` has the *horizon* as its
version: rows of what ended before it may be gone. The horizon of `half` is that of all tables of the history; it is
committed alone if `half` loses no row. ``retention/<queue>`` has a half queue's *floor*: offsets below it may be gone,
and no half message lands there any more. ``retention.bodies`` is that of bodies: what landed before it may have lost
its own in `half`. In a topic's table ``retention/missed/<group>`` has the number of messages
that were removed before the consumer group had consumed them.

SQL cannot read these. Where only Spark reads the logs, the table's properties ``checkback.<identifier>`` have the same,
set before the rows go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.errors import StorageError
from checkback.storage.failure_scope import own_failure
from checkback.storage.log import spark_log
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.timestamps import iso

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from checkback.storage.tables import Tables

#: the application whose version is the horizon (ms)
HORIZON = "retention"
#: in `half`, that whose version is the time up to which bodies may have been emptied (ms)
BODIES = "retention.bodies"
_MISSED = f"{HORIZON}/missed/"


def versions_of(horizon: int, floors: Mapping[int, int]) -> dict[str, int]:
    """The transaction identifiers of a removal. ``horizon``: ms. ``floors``: by half queue."""
    return {HORIZON: horizon} | {floor_app(queue): floor for queue, floor in floors.items()}


def never_back(log: DeltaLog, versions: Mapping[str, int]) -> dict[str, int]:
    """These transaction identifiers, or what the log has of them, if that is later. Raises StorageError."""
    said = log.versions(versions)
    return {app: max(version, said[app] or 0) for app, version in versions.items()}


def floor_app(queue: int) -> str:
    """The application whose version is a half queue's floor."""
    return f"{HORIZON}/{queue}"


def floors_of(log: DeltaLog, queues: Iterable[int]) -> dict[int, int]:
    """The floor of each of these half queues that has one; ``log``: that of `half`. Raises StorageError."""
    apps = {floor_app(queue): queue for queue in queues}
    return {apps[app]: floor for app, floor in log.versions(apps).items() if floor is not None}


def missed_of(log: DeltaLog, group: str) -> tuple[int, int]:
    """A topic's horizon (ms; 0 = none), and how many of its messages the group has missed. Raises StorageError."""
    found = log.versions([HORIZON, _MISSED + group])
    return found[HORIZON] or 0, found[_MISSED + group] or 0


def with_missed(log: DeltaLog, more: Mapping[str, int]) -> dict[str, int]:
    """The transaction identifiers of `missed_of` once groups miss these messages besides. Raises StorageError."""
    return {_MISSED + group: missed_of(log, group)[1] + number for group, number in more.items()}


def since_horizon(rows: DataFrame, time: str, *horizons: int | None) -> DataFrame:
    """The rows from the latest of these horizons on (ms; None = none), by the column ``time``."""
    from pyspark.sql import functions as F

    known = [at for at in horizons if at is not None]
    return rows.where(F.unix_millis(time) >= max(known)) if known else rows


def horizon(spark: SparkSession | None, tables: Tables, name: str = "half", of: str = HORIZON) -> int | None:
    """A table's horizon (ms), by default that of the history. None: nothing was removed, or there is no such table.

    ``of``: HORIZON, or BODIES: half messages that landed before it may have lost their bodies. ``spark``: needed where
    only it reads the logs. Raises StorageError.
    """
    return _versions(spark, tables, name, [of])[of]


def floors(spark: SparkSession | None, tables: Tables, queues: Iterable[int]) -> dict[int, int]:
    """The floor of each of these half queues that has one. ``spark``: as for `horizon`. Raises StorageError."""
    apps = {floor_app(queue): queue for queue in queues}
    return {apps[app]: at for app, at in _versions(spark, tables, "half", apps).items() if at is not None}


def property_of(app: str) -> str:
    """The property that has an application's version where only Spark reads the logs."""
    return f"checkback.{app}"


def _versions(spark: SparkSession | None, tables: Tables, name: str, apps: Iterable[str]) -> dict[str, int | None]:
    if tables.readable:
        there = DeltaLog.exists(tables.location(name))
        return tables.log(name).versions(apps) if there else dict.fromkeys(apps)
    if spark is None:
        raise StorageError("its properties are read by Spark", tables.location(name))
    try:
        found = spark_log.properties_if_any(spark, tables.in_sql(name)) or {}
    except Exception as error:
        raise StorageError(f"its properties cannot be read: {own_failure(error)}", tables.in_sql(name)) from error
    texts = {app: found.get(property_of(app)) for app in apps}
    return {app: None if text is None else int(text) for app, text in texts.items()}


def refuse_older_half(spark: SparkSession | None, tables: Tables) -> None:
    """Raise StorageError if `half` is from before a run of retention that `decisions` has seen.

    What ended long ago would seem to be pending.
    """
    since = horizon(spark, tables, "decisions")
    if since is not None and (horizon(spark, tables) or 0) < since:
        what = f"is older than `decisions`, from which retention has removed what ended before {iso(since)}"
        raise StorageError(what, tables.location("half"), "restore all tables from one backup")
