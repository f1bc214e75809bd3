"""`checkback maintain`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from checkback.commands.options import RUN, Answer, Output, app, command
from checkback.commands.printing import console, print_table


@command(app, panel=RUN)
def maintain(
    options: Answer,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")] = False,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Only move torn commits (after a power cut) of the tables aside, and list them."),
    ] = False,
) -> None:
    """Compact small files of the tables, and remove what nobody needs any more."""
    settings = options.settings()
    if repair:
        from checkback.storage.crash_recovery import recover_tables
        from checkback.storage.tables import Tables

        found = recover_tables(Tables.of(settings.storage), force=True)
        print("\n".join(found) if found else "no torn commits")
        return
    from checkback.maintain import report
    from checkback.maintain.command import run

    done = run(settings, dry_run)
    if options.output is Output.JSON:
        print(json.dumps(report.as_json(done, dry_run), indent=2))
        return
    print_table(report.COLUMNS, [report.row(one) for one in done], options.output)
    if options.for_people:
        for line in [*report.notes(done), report.total(done, dry_run)]:
            console().print(line)
