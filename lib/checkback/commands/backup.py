"""`checkback backup` and `checkback restore`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from checkback.commands.options import RUN, Answer, Output, app, command
from checkback.commands.printing import console, print_table

if TYPE_CHECKING:
    from checkback.maintain.backup import Backup

_COLUMNS = ("table", "version", "files", "bytes")


@command(app, panel=RUN)
def backup(
    options: Answer,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A new folder, or place in an object store.")],
) -> None:
    """Copy the tables as of one batch, beside running processes."""
    from checkback.maintain.backup import back_up
    from checkback.maintain.command import ProgressBar

    settings = options.settings()
    with ProgressBar() as shown:
        made = back_up(settings, target, shown.begin, shown.step)
    _show(options, made, [f"{_of(made)} is in {target}"])


@command(app, panel=RUN)
def restore(
    options: Answer,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A backup.")],
) -> None:
    """Bring a backup's tables to storage.root, which has none."""
    from checkback.maintain.backup import restore as restored
    from checkback.maintain.command import ProgressBar

    settings = options.load(("producers", "push", "kafka", "dashboard", "topics")).settings
    with ProgressBar() as shown:
        made = restored(settings, source, shown.begin, shown.step)
    lines = [
        f"{_of(made)} is in {settings.storage.root}; what landed later is not in it and must be sent again",
        "next: checkback rebuild, then reconcile, and gateway --take-over with a new journal",
    ]
    _show(options, made, lines)


def _of(made: Backup) -> str:
    size = sum(copy.bytes for copy in made.tables) / (1 << 20)
    what = f"the backup of {made.made_at:%Y-%m-%d %H:%M:%S} UTC ({len(made.tables)} tables, {size:,.1f} MiB)"
    if made.batch_id is None or made.batch_done_at is None:
        return f"{what}, before the first batch,"
    return f"{what}, as of batch {made.batch_id} of {made.batch_done_at:%Y-%m-%d %H:%M:%S} UTC,"


def _show(options: Answer, made: Backup, lines: list[str]) -> None:
    if options.output is Output.JSON:
        print(json.dumps(asdict(made), default=str, indent=2))
        return
    print_table(_COLUMNS, [tuple(asdict(copy).values()) for copy in made.tables], options.output)
    if options.for_people:
        for line in lines:
            console().print(line)
