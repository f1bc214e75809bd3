"""The result of `maintain` for each table, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = ("table", "expired", "files", "size", "version", "rewritten", "removed", "log", "seconds")
_UNITS = ("B", "KB", "MB", "GB")


@dataclass
class TableReport:
    """The result for a table; sizes in bytes. Before: at the start of the run.

    ``expired_rows``, ``expired_bytes``: removed by retention. ``rewritten``: small files that were compacted.
    ``removed_files``: removed from the folder, needed by no reader. ``removed_commits``: removed files of the log.
    ``kept``: what is kept beyond the retention, and why. ``skipped``: why nothing was done. ``emptied_bodies``,
    ``emptied_bytes``: removed by retention from rows that stay. None: Spark does not report it.
    """

    table: str
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    version_before: int = 0
    version_after: int = 0
    expired_rows: int | None = 0
    expired_bytes: int | None = 0
    rewritten: int | None = 0
    removed_files: int | None = 0
    removed_bytes: int | None = 0
    removed_commits: int | None = 0
    seconds: float = 0.0
    kept: tuple[str, ...] = ()
    skipped: str | None = None
    emptied_bodies: int | None = 0
    emptied_bytes: int | None = 0


def as_json(tables: Sequence[TableReport], dry_run: bool) -> dict[str, Any]:
    """The report as -o json prints it."""
    return {"dry_run": dry_run, "tables": [asdict(table) for table in tables]}


def row(table: TableReport) -> tuple[str, ...]:
    """A table's row, in COLUMNS."""
    return (
        table.table,
        _with_size(table.expired_rows, table.expired_bytes),
        _change(str(table.files_before), str(table.files_after)),
        _change(size(table.bytes_before), size(table.bytes_after)),
        _change(str(table.version_before), str(table.version_after)),
        _number(table.rewritten),
        _with_size(table.removed_files, table.removed_bytes),
        _number(table.removed_commits),
        f"{table.seconds:.1f}",
    )


def notes(tables: Sequence[TableReport]) -> list[str]:
    """What is kept beyond the retention, and why; what was skipped."""
    lines = [f"{table.table} was left alone: {table.skipped}" for table in tables if table.skipped is not None]
    return lines + [
        f"{table.table} keeps more than the retention asks for: {why}" for table in tables for why in table.kept
    ]


def total(tables: Sequence[TableReport], dry_run: bool) -> str:
    """The totals as one line."""
    before, after = sum(table.files_before for table in tables), sum(table.files_after for table in tables)
    removed, freed = (
        sum(table.removed_files or 0 for table in tables),
        sum(table.removed_bytes or 0 for table in tables),
    )
    of_log = sum(table.removed_commits or 0 for table in tables)
    rows, held = sum(table.expired_rows or 0 for table in tables), sum(table.expired_bytes or 0 for table in tables)
    bodies, big = sum(table.emptied_bodies or 0 for table in tables), sum(table.emptied_bytes or 0 for table in tables)
    become, gone = ("would become", "would be") if dry_run else ("became", "were")
    expired = f"{rows} expired rows ({size(held)}), " if rows else ""
    expired += f"{bodies} bodies ({size(big)}) of `half`, " if bodies else ""
    what = f"{expired}{removed} old files ({size(freed)}) and {of_log} of logs {gone} removed"
    return f"{before} files {become} {after}; {what}"


def size(number: float) -> str:
    """A size for display: 12 B, 3.4 MB."""
    for unit in _UNITS[:-1]:
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} {_UNITS[-1]}"


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _with_size(value: int | None, number: int | None) -> str:
    return f"{value} ({size(number)})" if value and number else _number(value)


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
