"""`maintain`: compaction of each table's small files, then removal of files that are no longer needed."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from checkback.consumer.storage import refuse_no_tables
from checkback.errors import StorageError, of_machine
from checkback.maintain import table_folder
from checkback.maintain.compaction import compact, planned
from checkback.maintain.file_retention import keep, most_commits, removable
from checkback.maintain.report import TableReport
from checkback.maintain.retained_rows import Removed
from checkback.maintain.row_retention import RowRetention
from checkback.maintain.streams import readers, removal_hold
from checkback.storage.files import filesystem, table_files
from checkback.storage.files.lease import store_time
from checkback.storage.files.object_store import is_registered
from checkback.storage.lock import exclusive_lock
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.schemas import SCHEMAS, TOPIC_PREFIX
from checkback.storage.timestamps import time_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from checkback.maintain.file_retention import Reader
    from checkback.settings import Settings
    from checkback.storage.tables import Tables

#: lock held by the process that maintains the tables
LOCK = "_maintain.lock"
_OTHERS = (
    "somebody has clustered, partitioned or altered it, so no rows are removed (retention); stop Checkback, then run "
    "OPTIMIZE and VACUUM in Spark"
)


class Progress(Protocol):
    """Receives the progress of a run."""

    def begin(self, table: str, steps: int) -> None:
        """The table is started; it takes this number of steps."""

    def step(self) -> None:
        """A step is done."""

    def end(self, done: TableReport) -> None:
        """The table is done."""


@dataclass(frozen=True)
class Run:
    """State shared by all tables of a run. ``now``: ms. ``held``: why nothing may be removed, None = it may."""

    tables: Tables
    settings: Settings
    now: int
    dry_run: bool
    progress: Progress
    readers: Mapping[str, Sequence[tuple[str, Reader]]]
    held: str | None


def maintain(
    settings: Settings,
    tables: Tables,
    dry_run: bool,
    progress: Progress,
    spark: SparkSession | None = None,
    now: int | None = None,
) -> list[TableReport]:
    """Maintain the tables, concurrently with their writers and readers. ``dry_run``: change nothing.

    ``spark``: only if the checkpoints are elsewhere. Raises SettingsError if there are no tables, FencedError if
    another process maintains them, StorageError if a table other than a topic's cannot be read or written.
    """
    with exclusive_lock(tables, LOCK):
        # Before everything else: streams only move forward.
        found, held = readers(tables, spark), removal_hold(tables, spark)
        started = _now(tables) if now is None else now
        run = Run(tables, settings, started, dry_run, progress, found, held)
        there = names(tables.root)
        if not there:
            refuse_no_tables(tables)
        if held is None and not dry_run:
            folder = tables.checkpoint("").rstrip("/")
            filesystem.delete_aside(spark, folder, time_of(started) - settings.maintain.log_retention)
        gone = {}
        if held is None:
            gone = RowRetention.by_files(tables, settings, there, started, dry_run, _altered(tables, there)).run()
        return [_turn(run, name, gone.get(name, Removed())) for name in there]


def _now(tables: Tables) -> int:
    """The time (ms): the earlier one, if this machine's and the object store's, which dates the files, differ.

    With a clock that is ahead of the store's, a file of a commit still to come would be old. Raises StorageError.
    """
    own = round(time.time() * 1000)
    if not is_registered(tables.root):
        return own
    return min(own, round(store_time(f"{tables.root}/{LOCK}").timestamp() * 1000))


def names(root: str) -> list[str]:
    """The existing tables below a root."""
    topics = f"{root}/{TOPIC_PREFIX}"
    there = sorted(table_files.folders(topics))
    found = [*SCHEMAS, *(TOPIC_PREFIX + topic for topic in there)]
    return [
        name for name in found if table_files.names(f"{root}/{name}/_delta_log") and DeltaLog.exists(f"{root}/{name}")
    ]


def _altered(tables: Tables, names: Sequence[str]) -> set[str]:
    """Those whose files must stay as they are; a damaged table is said to be so where it is maintained."""
    found = set()
    for name in names:
        with suppress(StorageError):
            if not tables.log(name).maintainable():
                found.add(name)
    return found


def _turn(run: Run, name: str, gone: Removed) -> TableReport:
    """Maintain a table. A damaged topic table does not stop the others."""
    try:
        return _maintained(run, name, gone)
    except StorageError as error:
        if not name.startswith(TOPIC_PREFIX) or of_machine(error):
            raise
        done = TableReport(name, skipped=str(error))
        run.progress.end(done)
        return done


def _maintained(run: Run, name: str, gone: Removed) -> TableReport:
    began = time.monotonic()
    log = run.tables.open_log(name)  # which commits nothing once another process has the lease
    files = log.data_files()
    size, version = sum(file.size for file in files), log.version()
    done = TableReport(name, len(files), len(files), size, size, version, version)
    done.expired_rows, done.expired_bytes = gone.rows, gone.bytes
    done.emptied_bodies, done.emptied_bytes = gone.bodies, gone.of_bodies
    if log.maintainable():
        _compact(run, name, log, done)
        if run.held is not None:
            done.kept = (run.held,)
        else:
            _remove(run, name, log, done)
    else:
        done.skipped = _OTHERS
    done.kept = (*done.kept, *gone.kept)
    done.version_after = log.version()
    done.seconds = round(time.monotonic() - began, 3)
    run.progress.end(done)
    return done


def _compact(run: Run, name: str, log: DeltaLog, done: TableReport) -> None:
    """Compact each group in a commit of its own, so that an interrupted run keeps its progress."""
    plan = planned(name, log, run.tables.location(name), run.settings.maintain)
    run.progress.begin(name, len(plan))
    for group in plan:
        files = None if run.dry_run else compact(name, log, run.tables.root, group)
        if run.dry_run or files is not None:
            done.rewritten = (done.rewritten or 0) + len(group)
            done.files_after -= len(group) - 1
        if files is not None:
            done.bytes_after += sum(file.size for file in files) - sum(one.size for one in group)
        run.progress.step()
    if done.rewritten and not run.dry_run:
        log.checkpoint()


def _remove(run: Run, name: str, log: DeltaLog, done: TableReport) -> None:
    """Remove what no reader needs. What is committed meanwhile is younger than anything removed."""
    place, settings = run.tables.location(name), run.settings.maintain
    mine = [reader for table, reader in run.readers.get(name, ()) if table == log.table_id()]
    lying = table_folder.data_files(place)
    entries = table_folder.read_log(place)
    stays = keep(entries, mine, run.now, settings.retention, settings.log_retention, most_commits(name))
    old = removable({path: file.written for path, file in lying.items()}, log.paths(), stays.younger)
    if old:
        needed = set[str]().union(*(log.paths(version) for version in stays.snapshots))
        needed |= table_folder.added_since(place, entries, stays.added)
        old = [path for path in old if path not in needed]
    of_log = table_folder.entries_of_log(place, stays.log, stays.checkpoints)
    if not run.dry_run:
        run.tables.guard()
        log.flush()  # the version that removed these files from the table may not be flushed yet
        if of_log:
            log.checkpoint()
        table_folder.remove_data(place, old)
        table_folder.remove_log(place, of_log)
    done.removed_files, done.removed_bytes = len(old), sum(lying[path].size for path in old)
    done.removed_commits = len(of_log)
    done.kept = stays.why
