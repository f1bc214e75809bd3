"""Chooses how tables are maintained, and shows the progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from checkback.errors import printable
from checkback.spark.session import running_session

if TYPE_CHECKING:
    from checkback.maintain.report import TableReport
    from checkback.settings import Settings


def run(settings: Settings, dry_run: bool) -> list[TableReport]:
    """Maintain the tables that the settings name: without Spark in local folders and object stores, elsewhere with it.

    Never with Spark there: its commits are atomic within one JVM only. Raises FencedError,
    StorageError.
    """
    from checkback.maintain.maintenance import maintain as maintained
    from checkback.maintain.streams import needs_spark
    from checkback.storage.tables import Tables

    tables = Tables.of(settings.storage)
    with ProgressBar(dry_run) as shown:
        if tables.readable and not needs_spark(tables):
            return maintained(settings, tables, dry_run, shown)
        with running_session(settings, "checkback-maintain") as spark:
            if tables.readable:
                return maintained(settings, tables, dry_run, shown, spark)
            from checkback.maintain.spark_maintenance import maintain_by_spark

            return maintain_by_spark(spark, settings, tables, dry_run, shown)


class ProgressBar:
    """Progress of a run, on stderr: a bar for the current table; plain lines if it is not a terminal."""

    def __init__(self, dry_run: bool = False) -> None:
        self._verb = "would be" if dry_run else "are"
        self._console = Console(stderr=True, markup=False, highlight=False, emoji=False)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, table: str, steps: int) -> None:
        """The table is started."""
        self._bar.reset(self._task, description=table, total=steps)

    def step(self) -> None:
        """A group of files is compacted."""
        self._bar.advance(self._task)

    def end(self, done: TableReport) -> None:
        """The table is done."""
        if done.rewritten or done.removed_files:
            line = f"{done.table}: {done.files_before} files {self._verb} {done.files_after}"
            removed = f", {done.removed_files} old ones removed" if done.removed_files else ""
            self._console.print(printable(f"{line}{removed}, {done.seconds:.1f} s"))
