"""`checkback what-if`: what other rules would have brought, about. Read-only, without Spark unless it must."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from checkback.commands.answering import tell_horizon
from checkback.commands.options import ANSWERS, Answer, Output, app, command
from checkback.commands.printing import console, print_line, print_table
from checkback.spark.session import running_session
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from checkback.what_if.replayed_tables import Change


@command(app, "what-if", ANSWERS)
def what_if(
    options: Answer,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only half messages that landed then or later, as for --as-of."),
    ] = None,
) -> None:
    """Show about what would have been otherwise under the rules given by --set, as transaction.timeout=30s."""
    loaded = options.load_for_tables()
    from checkback.query.versions.as_of import parse_as_of
    from checkback.storage.horizon import horizon
    from checkback.what_if import report
    from checkback.what_if.replayed_tables import changes_of, replay

    changes, begin = changes_of(loaded), parse_as_of(since, name="--since")

    def tell(change: Change) -> None:
        if options.output is Output.JSON:
            _print_json({"transaction": report.change_as_json(change)})

    tables = Tables.of(loaded.settings.storage)
    if tables.readable:
        tell_horizon(horizon(None, tables), since)
        found = replay(loaded.settings, changes, begin, tell)
    else:
        with running_session(loaded.settings, "checkback-what-if") as spark:
            tell_horizon(horizon(spark, tables), since)
            found = replay(loaded.settings, changes, begin, tell, spark)
    if options.output is Output.JSON:
        _print_json({"what_if": report.as_json(found)})
        return
    if options.output is Output.CSV:
        print_table(report.COLUMNS, report.group_rows(found), options.output)
        return
    console().print(report.heading(found))
    print_table(report.COLUMNS, report.group_rows(found))
    if found.examples:
        print_line("")
        print_table(report.CHANGE_COLUMNS, [report.change_row(change) for change in found.examples])
        total = found.total
        more = total.saved + total.lost + total.otherwise - len(found.examples)
        if more > 0:
            console().print(f"and {more} more; -o json shows all")
    print_line("")
    for line in report.conclusion(found):
        console().print(line)


def _print_json(row: dict[str, Any]) -> None:
    print_line(json.dumps(row))
