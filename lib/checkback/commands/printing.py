"""Output of the commands: tables for people, one row a line for pipes; control characters are escaped."""

from __future__ import annotations

import io
import json
import select
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from checkback.errors import printable


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


def table_of(*columns: str) -> Table:
    """An empty table with these columns."""
    table = _Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; without a header if all column names are empty."""
    table = table_of(*columns)
    table.show_header = any(columns)
    for row in rows:
        table.add_row(*row)
    console().print(table)


def console() -> Console:
    """The console of stdout."""
    # No markup in values; in a file or pipe each row is one line.
    return _Console(markup=False, highlight=False, emoji=False, width=None if sys.stdout.isatty() else 10_000)


def print_rows(lines: Iterable[str]) -> None:
    """Print one row a line."""
    for line in lines:
        print_line(line)


def print_line(line: str, flush: bool = False) -> None:
    """Print a line, without wrapping it at the terminal's width."""
    print(printable(line), flush=flush)


def wait_for_reader(seconds: float) -> bool:
    """Wait; False, earlier, if stdout is a pipe that its reader has closed: a write would say so only when it comes."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (AttributeError, io.UnsupportedOperation, ValueError):  # no poll on Windows; not a file
        time.sleep(seconds)
        return True
    return not poll.poll(seconds * 1000)
