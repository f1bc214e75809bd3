"""The one flow of a command that changes something: show, confirm, perform, report."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from checkback.commands.options import Output
from checkback.commands.printing import print_line, print_lines, print_objects, print_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from checkback.commands.options import Change


class Plan(NamedTuple):
    """What a command would do: a table (titles, rows), lines below it; both as an object of JSON.

    ``nothing``: there is nothing to do.
    """

    titles: Sequence[str]
    rows: Sequence[Sequence[object]]
    lines: Sequence[str]
    json: Mapping[str, Any]
    nothing: bool = False


class Done(NamedTuple):
    """What was done, in words (may be empty) and as an object of JSON."""

    text: str
    json: Mapping[str, Any] | None


def change(options: Change, plan: Plan, act: Callable[[], Iterable[Done]]) -> None:
    """Show the plan; with --yes, or confirmed on a terminal, perform it, and report each part as it is done.

    In JSON or CSV either the plan is shown or what was done.
    """
    if options.for_people:
        if plan.rows:
            print_table(plan.titles, plan.rows)
        print_lines(plan.lines)
    elif plan.nothing or not options.yes:
        print_objects([plan.json], options.output)
    if plan.nothing or not _confirmed(options):
        return
    if options.for_people:
        print_lines(done.text for done in act() if done.text)
    else:
        print_objects((done.json for done in act() if done.json is not None), options.output)


def _confirmed(options: Change) -> bool:
    """Whether the operator has confirmed; without a terminal nothing is asked."""
    if options.yes or options.output is not Output.TABLE:
        return options.yes
    if not options.dry_run and sys.stdin.isatty() and sys.stdout.isatty():
        try:
            if typer.confirm("Do it?"):
                return True
        except typer.Abort as error:  # Ctrl-C, or Ctrl-D
            if isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            print()
        print_line("Nothing was done.")
    else:
        print_line("Nothing was done. --yes does it.")
    return False
