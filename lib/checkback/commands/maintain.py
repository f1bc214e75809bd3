"""`checkback maintain`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from checkback.commands.options import Config, Debug, Json, Overrides, app, prepared_for_tables
from checkback.commands.printing import console, print_table

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]
Repair = Annotated[
    bool,
    typer.Option("--repair", help="Only move torn commits (after a power cut) of the tables aside, and list them."),
]


@app.command()
def maintain(
    dry_run: DryRun = False,
    repair: Repair = False,
    as_json: Json = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Make the tables' many small files few, and remove what nobody needs any more."""
    settings = prepared_for_tables(config, overrides, debug)
    if repair:
        from checkback.storage.crash_recovery import recover_tables
        from checkback.storage.tables import Tables

        found = recover_tables(Tables.of(settings.storage), force=True)
        print("\n".join(found) if found else "no torn commits")
        return
    from checkback.maintain import report
    from checkback.maintain.command import run

    done = run(settings, dry_run)
    if as_json:
        print(json.dumps(report.as_json(done, dry_run), indent=2))
        return
    print_table(report.COLUMNS, [report.row(one) for one in done])
    for line in [*report.notes(done), report.total(done, dry_run)]:
        console().print(line)
