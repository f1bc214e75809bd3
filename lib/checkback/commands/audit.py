"""`checkback audit`: whether the tables keep every promise."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import typer

from checkback.commands.answering import answering
from checkback.commands.options import ANSWERS, Answer, Ended, Output, app, command
from checkback.commands.printing import console, print_table

if TYPE_CHECKING:
    from checkback.query.audit.findings import Report


@command(app, panel=ANSWERS)
def audit(options: Answer, since: Ended = None) -> None:
    """Verify every promise against the tables. Exit code 1: one is broken, or a topic cannot be read.

    With --since only of the transactions that had not ended by then, or have a row since then.
    """
    with answering(options.settings(), "audit") as answers:
        report = answers.audit(since=since)
    try:
        _print(report, options.output)
    except BrokenPipeError:  # `| head`: the exit code tells all the same
        if report.kept:
            raise
    if not report.kept:
        raise typer.Exit(code=1)


def _print(report: Report, output: Output) -> None:
    from checkback.query.audit import report as reports

    if output is Output.JSON:
        print(json.dumps(reports.as_json(report), indent=2))
        return
    print_table(reports.COLUMNS, reports.table_rows(report), output)
    if output is Output.TABLE:
        for line in reports.conclusion(report, datetime.now(timezone.utc)):
            console().print(line)
