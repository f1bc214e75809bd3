"""Output of the commands, and the flow of those that change something: show, confirm, perform, report.

Tables are for people, one row a line for pipes; control characters are escaped.
"""

from __future__ import annotations

import io
import json
import select
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from checkback.commands.options import Output
from checkback.errors import printable

if TYPE_CHECKING:
    from checkback.commands.options import Change

Row = Mapping[str, Any]


class Column(NamedTuple):
    """A column of a table for people. ``of``: the value's name in the row, or what makes the cell of the row."""

    title: str
    of: str | Callable[[Row], str]

    def cell(self, row: Row) -> str:
        """Its cell."""
        return shown(row[self.of]) if isinstance(self.of, str) else self.of(row)


def columns(**of: str | Callable[[Row], str]) -> tuple[Column, ...]:
    """Columns by their titles, with ``_`` for a space."""
    return tuple(Column(title.replace("_", " ").strip(), each) for title, each in of.items())


def shown(value: object) -> str:
    """A value as in the settings files; ``-`` for None."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value)


class _Table(Table):
    """A table that escapes control characters in its cells."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Like rich's."""
        super().add_row(*map(_printable, cells), **options)


class _Console(Console):
    """A console that escapes control characters."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Like rich's."""
        super().print(*map(_printable, objects), **options)

    def on_broken_pipe(self) -> None:
        """Rich ends the process with 1; `cli` knows what it means."""
        raise BrokenPipeError


def _printable(value: Any) -> Any:
    return printable(value) if isinstance(value, str) else value


def table_of(titles: Iterable[str]) -> Table:
    """An empty table with these columns."""
    table = _Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def print_table(titles: Sequence[str], rows: Iterable[Sequence[Any]], output: Output = Output.TABLE) -> None:
    """Print a table, or it as CSV; without a header if all titles are empty."""
    if output is Output.CSV:
        from checkback.query.json_lines import csv_table

        print_lines(csv_table(titles, rows))
        return
    table = table_of(titles)
    table.show_header = any(titles)
    for row in rows:
        table.add_row(*map(shown, row))
    console().print(table)


def console() -> Console:
    """The console of stdout."""
    # No markup in values; in a file or pipe each row is one line.
    return _Console(markup=False, highlight=False, emoji=False, width=None if sys.stdout.isatty() else 10_000)


def print_objects(objects: Iterable[Row], output: Output, names: Sequence[str] = (), flush: bool = False) -> None:
    """Print each as an object of JSON, or as a line of CSV below one with the names (default: the first one's)."""
    from checkback.query.json_lines import csv_objects

    lines = csv_objects(objects, names) if output is Output.CSV else map(json.dumps, objects)
    for line in lines:
        print_line(line, flush)


def print_line(line: str, flush: bool = False) -> None:
    """Print a line, without wrapping it at the terminal's width."""
    print(printable(line), flush=flush)


def print_lines(lines: Iterable[str]) -> None:
    """Print each as a line."""
    for line in lines:
        print_line(line)


def wait_for_reader(seconds: float) -> bool:
    """Wait; False, earlier, if stdout is a pipe that its reader has closed: a write would say so only when it comes."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (AttributeError, io.UnsupportedOperation, ValueError):  # no poll on Windows; not a file
        time.sleep(seconds)
        return True
    return not poll.poll(seconds * 1000)


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
