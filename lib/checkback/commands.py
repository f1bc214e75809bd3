"""The commands and their options. Spark is imported by those that need it: help and settings work without Java."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from checkback import __version__
from checkback.errors import SettingsError
from checkback.maintain.command import maintain
from checkback.session import local_path, running_session, storage_check
from checkback.settings import Loaded, flatten, load

#: Rows of `pending` that a table shows; --json shows all.
SHOWN = 50
# Landing takes globs, too; what they match is its own affair.
_GLOB = re.compile(r"[*?\[{]")
_BROKERS = re.compile(r"[^\s,:/@]+:\d{1,5}(,[^\s,:/@]+:\d{1,5})*|\[[0-9a-fA-F:]+\]:\d{1,5}")
#: Kafka's org.apache.kafka.common.internals.Topic
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help="Transactional messages on Delta Lake.")
config_app = typer.Typer(help="What is set, and where.")
app.add_typer(config_app, name="config")

Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings over those of conf/base.yml (YAML).")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One setting, as transaction.timeout=2s; may be repeated."),
]
Debug = Annotated[bool, typer.Option("--debug", help="Log more, and show the traceback of an error.")]
AvailableNow = Annotated[bool, typer.Option("--available-now", help="Work off what is there, then end.")]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]


Tx = Annotated[str, typer.Argument(metavar="TX", help="The transaction id.")]
Actor = Annotated[str, typer.Option(metavar="NAME", help="Who does it.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why.")]
OneGroup = Annotated[str | None, typer.Option("--group", metavar="G", help="The producer group, if several have TX.")]
QueueId = Annotated[int | None, typer.Option(metavar="N", help="Its half queue, if several half messages have TX.")]
QueueOffset = Annotated[int | None, typer.Option(metavar="N", help="Its offset in the half queue.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it. Without: show what would be done, and on a terminal ask.")]


def names() -> list[str]:
    """The commands' names."""
    return sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def _prepared(config: Path | None, overrides: list[str] | None, debug: bool) -> Loaded:
    logging.basicConfig(format="checkback: %(message)s", level=logging.WARNING)
    logging.getLogger("checkback").setLevel(logging.DEBUG if debug else logging.WARNING)
    return load(config, overrides or ())


def _version(wanted: bool) -> None:
    if wanted:
        print(f"checkback {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    pass


@app.command()
def land(
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
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Land half and op messages from files or from Kafka."""
    if queue_base is not None:
        overrides = [*(overrides or ()), f"kafka.queue_base={queue_base}"]
    loaded = _prepared(config, overrides, debug)
    if kafka is None:
        _check_paths(half, op, half_topic, op_topic)
    else:
        _check_kafka(kafka, half, op, half_topic, op_topic)
    storage_check(loaded.settings, loaded.origins)
    with running_session(loaded.settings, "checkback-land", kafka=kafka is not None) as spark:
        if kafka is None:
            from checkback.landing import files

            landed = files.land(spark, loaded.settings, half, op, available_now)
        else:
            from checkback.landing import kafka as topics

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


@app.command()
def reconcile(
    available_now: AvailableNow = False, config: Config = None, overrides: Overrides = None, debug: Debug = False
) -> None:
    """Decide transactions, publish what is committed, and check back on the rest."""
    loaded = _prepared(config, overrides, debug)
    storage_check(loaded.settings, loaded.origins)
    from checkback.reconcile import run

    with running_session(loaded.settings, "checkback-reconcile") as spark:
        run.reconcile(spark, loaded.settings, available_now)


@app.command()
def rebuild(config: Config = None, overrides: Overrides = None, debug: Debug = False) -> None:
    """Build the checkpoint of reconcile anew from the tables; the old one is kept beside it."""
    loaded = _prepared(config, overrides, debug)
    storage_check(loaded.settings, loaded.origins)
    from checkback.reconcile.rebuild import rebuild as rebuilt_from_tables

    with running_session(loaded.settings, "checkback-rebuild") as spark:
        rebuilt = rebuilt_from_tables(spark, loaded.settings, lambda line: print(line, flush=True))
    if rebuilt is None:
        print("stopped before its end: run it again before `checkback reconcile`")
        return
    for table, rows in rebuilt.finished.items():
        print(f"{table}: {rows} rows added that a batch had left out")
    print(f"rebuilt from {rebuilt.segments} segments; go on with `checkback reconcile`")
    if rebuilt.set_aside is not None:
        print(f"the old checkpoint is {rebuilt.set_aside}")


@app.command()
def gateway(
    host: Annotated[str | None, typer.Option(metavar="HOST", help="As gateway.host.")] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", help="As gateway.port.")] = None,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Take half messages and ops from producers over HTTP, until SIGTERM or Ctrl-C."""
    given = {"host": host, "port": port}
    options = [f"gateway.{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
    loaded = _prepared(config, [*(overrides or ()), *options], debug)
    storage_check(loaded.settings, loaded.origins)
    try:
        from checkback.gateway.run import serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("checkback"):
            raise
        fix = "install checkback[gateway]"
        raise SettingsError(f"the Python module {error.name} is missing", "checkback gateway", fix) from error

    serve(loaded.settings)


@app.command()
def pending(
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="Only this producer group's.")] = None,
    as_json: Json = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Show the transactions that are not decided yet."""
    loaded = _prepared(config, overrides, debug)
    _check_root(loaded)
    from pyspark.sql import functions as F

    from checkback.inspect import pending as inspected
    from checkback.tables import Tables

    with running_session(loaded.settings, "checkback-pending") as spark:
        tables = Tables.of(loaded.settings.storage)
        for name in ("half", "decisions", "check_requests", "check_answers"):
            if not tables.exists(spark, name):
                raise SettingsError("there is no such table", tables.location(name), "run `checkback reconcile` first")
        rows = inspected.pending(spark, loaded.settings)
        if group is not None:
            rows = rows.where(F.col("producer_group") == group)
        # Spark writes the JSON: a timestamp collected to Python would be in this machine's time zone.
        options = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "timeZone": "UTC", "ignoreNullFields": "false"}
        lines = rows.select(F.to_json(F.struct(*rows.columns), options).alias("line"))
        if as_json:
            for row in lines.toLocalIterator():
                print(row["line"])
            return
        lines = lines.persist()
        first = [json.loads(row["line"]) for row in lines.take(SHOWN)]
        _show_pending(first, more=lines.count() - len(first) if len(first) == SHOWN else 0, group=group)


def _check_root(loaded: Loaded) -> None:
    """Raise SettingsError when the tables' folder is to be on this machine and is not there."""
    root = local_path(loaded.settings.storage.root)
    if loaded.settings.storage.catalog is None and root is not None and not os.path.isdir(root):
        where = f"storage.root ({loaded.origin('storage.root')})"
        raise SettingsError(f"there is no folder {root}", where, "name the folder of the tables, or reconcile first")


def _show_pending(rows: list[dict[str, Any]], more: int, group: str | None) -> None:
    if not rows:
        print("Nothing is pending." if group is None else f"Nothing of the group {group} is pending.")
        return
    table = _table("queue", "offset", "transaction", "group", "topic", "age", "checks", "last answer", "next check")
    for row in rows:
        answer = " ".join(str(row[name]) for name in ("last_outcome", "last_error") if row[name] is not None)
        table.add_row(
            *(str(row[name]) for name in ("queue_id", "queue_offset", "transaction_id", "producer_group")),
            _shown(row["real_topic"]),
            "-" if row["age_s"] is None else f"{int(row['age_s'])}s",
            _shown(row["check_times"]),
            answer or "-",
            _shown(row["next_check_at"]),
        )
    console = _console()
    console.print(table)
    if more:
        console.print(f"and {more} more; --json shows all")


@app.command()
def audit(as_json: Json = False, config: Config = None, overrides: Overrides = None, debug: Debug = False) -> None:
    """Show whether the tables keep every promise; the exit code is 1 when they do not."""
    loaded = _prepared(config, overrides, debug)
    _check_root(loaded)
    from checkback.inspect import report as reports
    from checkback.inspect.audit import audit as audited

    with running_session(loaded.settings, "checkback-audit") as spark:
        report = audited(spark, loaded.settings)
    if as_json:
        print(json.dumps(reports.as_json(report), indent=2))
    else:
        table = _table(*reports.COLUMNS)
        for row in reports.table_rows(report):
            table.add_row(*row)
        console = _console()
        console.print(table)
        for line in reports.conclusion(report, datetime.now(timezone.utc)):
            console.print(line)
    if report.broken:
        raise typer.Exit(code=1)


@app.command()
def resolve(
    transaction_id: Tx,
    actor: Actor,
    reason: Reason,
    commit: Annotated[bool, typer.Option("--commit", help="It is committed: the message is published.")] = False,
    rollback: Annotated[bool, typer.Option("--rollback", help="It is rolled back: the message is dropped.")] = False,
    group: OneGroup = None,
    queue_id: QueueId = None,
    queue_offset: QueueOffset = None,
    yes: Yes = False,
    as_json: Json = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """End a pending transaction by hand, with an op of the operator."""
    from checkback.operate import command

    state = command.state_of(commit, rollback)
    request = command.Request.of(transaction_id, group, queue_id, queue_offset, actor, reason, state)
    loaded = _prepared(config, overrides, debug)
    _check_root(loaded)
    command.run(loaded.settings, request, yes, as_json, _print_table)


@app.command()
def resume(
    transaction_id: Tx,
    actor: Actor,
    reason: Reason,
    group: OneGroup = None,
    queue_id: QueueId = None,
    queue_offset: QueueOffset = None,
    yes: Yes = False,
    as_json: Json = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Make a discarded message a new half message, whose producer is asked anew."""
    from checkback.operate import command

    request = command.Request.of(transaction_id, group, queue_id, queue_offset, actor, reason)
    loaded = _prepared(config, overrides, debug)
    _check_root(loaded)
    command.run(loaded.settings, request, yes, as_json, _print_table)


app.command()(maintain)


@config_app.command("show")
def config_show(
    as_json: Json = False, config: Config = None, overrides: Overrides = None, debug: Debug = False
) -> None:
    """Show every setting, its value and where it comes from; secrets are masked."""
    loaded = _prepared(config, overrides, debug)
    values = flatten(loaded.settings)
    if as_json:
        print(
            json.dumps({key: {"value": value, "origin": loaded.origin(key)} for key, value in values.items()}, indent=2)
        )
        return
    table = _table("setting", "value", "origin")
    for key, value in values.items():
        table.add_row(key, _shown(value), loaded.origin(key))
    _console().print(table)


def _shown(value: object) -> str:
    """A value as the files write it; ``-`` when there is none."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; without titles when they are empty."""
    table = _table(*columns)
    table.show_header = any(columns)
    for row in rows:
        table.add_row(*row)
    _console().print(table)


def _console() -> Console:
    # Values are text, not markup; a file or a pipe gets each row on one line.
    return Console(markup=False, highlight=False, emoji=False, width=None if sys.stdout.isatty() else 10_000)
