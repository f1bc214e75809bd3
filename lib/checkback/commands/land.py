"""`checkback land`: lands half and op messages from files, Kafka or Delta tables."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated

import typer

from checkback.commands.options import RUN, AvailableNow, Common, app, command
from checkback.errors import SettingsError
from checkback.spark.session import running_session
from checkback.storage.files.paths import local_path, storage_check
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from checkback.settings import Settings

# Globs are allowed, too, and not checked here.
_GLOB = re.compile(r"[*?\[{]")
_BROKERS = re.compile(r"[^\s,:/@]+:\d{1,5}(,[^\s,:/@]+:\d{1,5})*|\[[0-9a-fA-F:]+\]:\d{1,5}")
#: Kafka's org.apache.kafka.common.internals.Topic
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@command(app, panel=RUN)
def land(
    options: Common,
    half: Annotated[
        str | None, typer.Option(metavar="PATH", help="Half messages: a JSON lines file or folder; or a table.")
    ] = None,
    op: Annotated[
        str | None, typer.Option(metavar="PATH", help="Op messages: a JSON lines file or folder; or a table.")
    ] = None,
    kafka: Annotated[
        str | None, typer.Option(metavar="BROKERS", help="Land from Kafka: bootstrap servers, as host:9092,host:9092.")
    ] = None,
    half_topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Half messages: a topic of Kafka.")] = None,
    op_topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Op messages: a topic of Kafka.")] = None,
    queue_base: Annotated[
        int | None, typer.Option(metavar="N", help="Half queue of the half topic's partition 0: kafka.queue_base.")
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="Land from Delta tables: paths, URIs or catalog.schema.table.")
    ] = False,
    outbox: Annotated[
        str | None, typer.Option(metavar="TABLE", help="With --table: an outbox, whose rows are committed messages.")
    ] = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="FIELD=SQL", help="With --table: a field's column or expression; repeatable."),
    ] = None,
    starting_version: Annotated[
        str | None, typer.Option(metavar="N", help="With --table: first version read, the first time.")
    ] = None,
    starting_timestamp: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --table: read what was committed since, the first time.")
    ] = None,
    changes: Annotated[
        bool | None,
        typer.Option(
            "--changes/--no-changes", help="With --table: read the change data feed. Default: if there is one."
        ),
    ] = None,
    available_now: AvailableNow = False,
) -> None:
    """Land half and op messages from files, from Kafka or from Delta tables."""
    loaded = options.load(given={"kafka.queue_base": queue_base})
    if table:
        _check_tables(kafka, half, op, half_topic, op_topic, outbox, starting_version, starting_timestamp)
    elif outbox or mapping or starting_version or starting_timestamp or changes is not None:
        what = "--outbox, --map, --starting-version, --starting-timestamp and --changes are of tables"
        raise SettingsError(what, fix="give --table")
    elif kafka is None:
        _check_paths(half, op, half_topic, op_topic)
    else:
        _check_kafka(kafka, half, op, half_topic, op_topic)
    storage_check(loaded.settings, loaded.origins)
    Tables.of(loaded.settings.storage)  # refuses a root before Spark starts
    fields, sources = {}, [name for name in (outbox, half, op) if name]
    if table:
        from checkback.landing.table_columns import mapping_of

        fields = mapping_of(mapping or ())
        if available_now and _nothing_new(loaded.settings, sources):
            print("half 0, op 0, rejected 0, ignored 0")
            return
    with running_session(loaded.settings, "checkback-land", kafka=kafka is not None, sources=sources) as spark:
        if table:
            from checkback.landing import table_query

            told = table_query.TableOptions(outbox, half, op, fields, starting_version, starting_timestamp, changes)
            landed = table_query.land(spark, loaded.settings, told, available_now)
        elif kafka is None:
            from checkback.landing import file_query

            landed = file_query.land(spark, loaded.settings, half, op, available_now)
        else:
            from checkback.landing import kafka_query as topics

            landed = topics.land(spark, loaded.settings, kafka, half_topic, op_topic, available_now)
    ignored = f", ignored {landed.ignored}" if table else ""
    print(f"half {landed.half}, op {landed.op}, rejected {landed.rejected}{ignored}")


def _nothing_new(settings: Settings, sources: list[str]) -> bool:
    from checkback.landing.drained_tables import all_landed

    return all_landed(Tables.of(settings.storage), sources)


def _check_tables(
    kafka: str | None,
    half: str | None,
    op: str | None,
    half_topic: str | None,
    op_topic: str | None,
    outbox: str | None,
    version: str | None,
    time: str | None,
) -> None:
    if kafka is not None or half_topic is not None or op_topic is not None:
        raise SettingsError("tables and Kafka land in commands of their own", "--table", "leave out --kafka")
    if outbox is None and half is None and op is None:
        raise SettingsError("nothing to land", "--table", "give --outbox TABLE, or --half TABLE, --op TABLE or both")
    if outbox is not None and (half is not None or op is not None):
        raise SettingsError("an outbox and half messages land in commands of their own", "--outbox", "give one of them")
    if version is not None and time is not None:
        raise SettingsError("two starts", "--starting-version, --starting-timestamp", "give one of them")
    if version is not None and version != "latest" and not version.isdecimal():
        raise SettingsError(f"{version!r} is no version", "--starting-version", "give a number from 0 on")


def _check_paths(half: str | None, op: str | None, half_topic: str | None, op_topic: str | None) -> None:
    if half_topic is not None or op_topic is not None:
        raise SettingsError(
            "a topic needs the brokers that have it", "--half-topic, --op-topic", "give --kafka BROKERS"
        )
    if half is None and op is None:
        raise SettingsError("nothing to land", fix="give --half PATH, --op PATH or both, or --kafka BROKERS")
    for option, path in (("--half", half), ("--op", op)):
        place = local_path(path) if path is not None else None
        if place is not None and not os.path.exists(place) and not _GLOB.search(place):
            raise SettingsError(f"there is no {place}", option, "give an existing file or folder")


def _check_kafka(brokers: str, half: str | None, op: str | None, half_topic: str | None, op_topic: str | None) -> None:
    if half is not None or op is not None:
        raise SettingsError("files and Kafka land in commands of their own", "--kafka", "leave out --half and --op")
    if not _BROKERS.fullmatch(brokers):
        raise SettingsError("are not Kafka's bootstrap servers", "--kafka", "write host:port, or several with commas")
    if half_topic is None and op_topic is None:
        raise SettingsError("nothing to land", fix="give --half-topic TOPIC, --op-topic TOPIC or both")
    if half_topic == op_topic:
        raise SettingsError("half and op messages need a topic each", "--half-topic, --op-topic", "name two topics")
    for option, topic in (("--half-topic", half_topic), ("--op-topic", op_topic)):
        if topic is not None and (not _TOPIC.fullmatch(topic) or topic in (".", "..")):
            raise SettingsError("is not a topic's name", option, "use letters, digits, . _ and -, at most 249 of them")
