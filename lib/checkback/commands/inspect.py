"""`checkback pending`, `scheduled`, `lineage` and `audit`: read-only views of the tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import typer

from checkback.commands.options import AsOf, Config, Debug, Group, Json, Overrides, Tx, app, prepared_for_tables
from checkback.commands.printing import console, print_line, print_rows, print_table, shown, table_of
from checkback.spark.session import running_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Maximum rows in the table of `pending`; --json shows all.
SHOWN = 50
#: Maximum events of a transaction id in the table of `lineage`; --json shows all.
EVENTS = 500


@app.command()
def pending(
    as_of: AsOf = None,
    group: Group = None,
    as_json: Json = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Show the transactions that are not decided yet, or were not at a time."""
    settings = prepared_for_tables(config, overrides, debug)
    from checkback.inspect.as_of import parse_as_of

    moment = parse_as_of(as_of)
    from pyspark.sql import functions as F

    from checkback.inspect.pending_transactions import pending as inspected

    with running_session(settings, "checkback-pending", short=True) as spark:
        rows = inspected(spark, settings, moment).drop("as_of")
        if group is not None:
            rows = rows.where(F.col("producer_group") == group)
        whose = "Nothing" if group is None else f"Nothing of the group {group}"
        _show(rows, as_json, SHOWN, _pending_table, f"{whose} is pending." if moment is None else f"{whose} was.")


def _pending_table(rows: list[dict[str, Any]]) -> None:
    columns = ("queue", "offset", "transaction", "group", "topic", "age", "checks", "last answer", "next check", "why")
    table = table_of(*columns)
    for row in rows:
        answer = " ".join(str(row[name]) for name in ("last_outcome", "last_error") if row[name] is not None)
        table.add_row(
            *(str(row[name]) for name in ("queue_id", "queue_offset", "transaction_id", "producer_group")),
            shown(row["real_topic"]),
            "-" if row["age_s"] is None else f"{int(row['age_s'])}s",
            shown(row["check_times"]),
            answer or "-",
            shown(row["next_check_at"]),
            shown(row["why"]),
        )
    console().print(table)


@app.command()
def scheduled(
    as_of: AsOf = None,
    group: Group = None,
    as_json: Json = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Show the committed messages whose time is yet to come, or was at a time."""
    settings = prepared_for_tables(config, overrides, debug)
    from checkback.inspect.as_of import parse_as_of

    moment = parse_as_of(as_of)
    from pyspark.sql import functions as F

    from checkback.inspect.scheduled_messages import scheduled as inspected

    with running_session(settings, "checkback-scheduled", short=True) as spark:
        rows = inspected(spark, settings, moment).drop("as_of")
        if group is not None:
            rows = rows.where(F.col("producer_group") == group)
        whose = "Nothing" if group is None else f"Nothing of the group {group}"
        nothing = f"{whose} is scheduled." if moment is None else f"{whose} was."
        _show(rows, as_json, SHOWN, _scheduled_table, nothing)


def _scheduled_table(rows: list[dict[str, Any]]) -> None:
    table = table_of("queue", "offset", "transaction", "group", "topic", "committed", "by", "deliver at", "due in")
    for row in rows:
        table.add_row(
            *(str(row[name]) for name in ("queue_id", "queue_offset", "transaction_id", "producer_group")),
            *(shown(row[name]) for name in ("real_topic", "decided_at", "source", "deliver_at")),
            f"{int(row['due_in_s'])}s",
        )
    console().print(table)


@app.command()
def lineage(
    transaction_id: Tx,
    group: Group = None,
    as_of: AsOf = None,
    as_json: Json = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Show all that the tables know of a transaction, in the order of time."""
    settings = prepared_for_tables(config, overrides, debug)
    from checkback.inspect.as_of import parse_as_of

    moment = parse_as_of(as_of)
    from checkback.inspect.transaction_lineage import lineage as traced

    with running_session(settings, "checkback-lineage", short=True) as spark:
        rows = traced(spark, settings, transaction_id, group, moment)
        _show(rows, as_json, EVENTS, _lineage_table, f"No table knows the transaction {transaction_id}.")


def _lineage_table(rows: list[dict[str, Any]]) -> None:
    table = table_of("at", "event", "queue/offset", "group", "table", "version", "batch", "detail")
    for row in rows:
        version = "-" if row["table_version"] is None else str(row["table_version"])
        place = "-" if row["queue_id"] is None else f"{row['queue_id']}/{row['queue_offset']}"
        table.add_row(
            shown(row["at"]),
            str(row["event"]),
            place,
            shown(row["producer_group"]),
            str(row["table"]),
            version if row["version_exact"] in (True, None) else f"<={version}",
            shown(row["batch_id"]),
            shown(row["detail"]),
        )
    console().print(table)


def _show(
    rows: DataFrame, as_json: bool, most: int, show: Callable[[list[dict[str, Any]]], None], nothing: str
) -> None:
    """Print all rows as JSON lines, or the first ``most`` as a table."""
    from checkback.inspect.json_lines import json_lines

    lines = json_lines(rows)
    if as_json:
        print_rows(line[0] for line in lines.toLocalIterator())
        return
    lines = lines.persist()
    first = [json.loads(line[0]) for line in lines.take(most)]
    if not first:
        print_line(nothing)
        return
    show(first)
    more = lines.count() - len(first) if len(first) == most else 0
    if more:
        console().print(f"and {more} more; --json shows all")


@app.command()
def audit(as_json: Json = False, config: Config = None, overrides: Overrides = None, debug: Debug = False) -> None:
    """Show whether the tables keep every promise; the exit code is 1 when they do not."""
    settings = prepared_for_tables(config, overrides, debug)
    from checkback.inspect import audit_report as reports
    from checkback.inspect.audit import audit as audited

    with running_session(settings, "checkback-audit") as spark:
        report = audited(spark, settings)
    if as_json:
        print(json.dumps(reports.as_json(report), indent=2))
    else:
        print_table(reports.COLUMNS, reports.table_rows(report))
        for line in reports.conclusion(report, datetime.now(timezone.utc)):
            console().print(line)
    if report.broken:
        raise typer.Exit(code=1)
