"""`checkback land`: lands half and op messages from files or Kafka."""

from __future__ import annotations

import os
import re
from typing import Annotated

import typer

from checkback.commands.options import RUN, AvailableNow, Common, app, command
from checkback.errors import SettingsError
from checkback.spark.session import running_session
from checkback.storage.files.paths import local_path, storage_check
from checkback.storage.tables import Tables

# Globs are allowed, too, and not checked here.
_GLOB = re.compile(r"[*?\[{]")
_BROKERS = re.compile(r"[^\s,:/@]+:\d{1,5}(,[^\s,:/@]+:\d{1,5})*|\[[0-9a-fA-F:]+\]:\d{1,5}")
#: Kafka's org.apache.kafka.common.internals.Topic
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@command(app, panel=RUN)
def land(
    options: Common,
    half: Annotated[
        str | None, typer.Option(metavar="PATH", help="Half messages: a JSON lines file or folder.")
    ] = None,
    op: Annotated[str | None, typer.Option(metavar="PATH", help="Op messages: a JSON lines file or folder.")] = None,
    kafka: Annotated[
        str | None, typer.Option(metavar="BROKERS", help="Land from Kafka: bootstrap servers, as host:9092,host:9092.")
    ] = None,
    half_topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Half messages: a topic of Kafka.")] = None,
    op_topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Op messages: a topic of Kafka.")] = None,
    queue_base: Annotated[
        int | None, typer.Option(metavar="N", help="Half queue of the half topic's partition 0: kafka.queue_base.")
    ] = None,
    available_now: AvailableNow = False,
) -> None:
    """Land half and op messages from files or from Kafka."""
    loaded = options.load(given={"kafka.queue_base": queue_base})
    if kafka is None:
        _check_paths(half, op, half_topic, op_topic)
    else:
        _check_kafka(kafka, half, op, half_topic, op_topic)
    storage_check(loaded.settings, loaded.origins)
    Tables.of(loaded.settings.storage)  # refuses a root before Spark starts
    with running_session(loaded.settings, "checkback-land", kafka=kafka is not None) as spark:
        if kafka is None:
            from checkback.landing import file_query

            landed = file_query.land(spark, loaded.settings, half, op, available_now)
        else:
            from checkback.landing import kafka_query as topics

            landed = topics.land(spark, loaded.settings, kafka, half_topic, op_topic, available_now)
    print(f"half {landed.half}, op {landed.op}, rejected {landed.rejected}")


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
