"""Copies the tables as of one batch, beside running processes, and brings them back (docs/runbook.md, Backups).

A version of a Delta table is its data files, which nobody changes, and its log up to that version. So a copy needs no
lock: of each table a version is chosen that goes with the others', and nothing later is copied. Checkpoints are not in
it, since Spark's name their place: `rebuild` makes one of the tables.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from checkback import __version__
from checkback.build import commit
from checkback.consumer.storage import refuse_no_tables
from checkback.errors import SettingsError, StorageError
from checkback.gateway.ownership import GAP, first_app
from checkback.maintain.table_version import TableVersion
from checkback.messages.names import is_consumer_group, is_topic
from checkback.reconcile.checkpoint_owner import CONCLUDED, OWNERS, WRITTEN
from checkback.storage.failure_scope import reading
from checkback.storage.files import filesystem, table_files
from checkback.storage.files.object_store import canonical, check_place, register
from checkback.storage.files.paths import local_path
from checkback.storage.files.table_files import LOG, commit_file
from checkback.storage.half_restored import RESTORING
from checkback.storage.lock import exclusive_lock
from checkback.storage.log.commit_reader import read_actions
from checkback.storage.log.delta_errors import unreadable
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.log.log_tail import TransactionVersions
from checkback.storage.log.snapshot_files import open_table
from checkback.storage.schemas import GROUP_PREFIX, SCHEMAS, TOPIC_PREFIX
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from checkback.settings import Settings

#: written last: a backup without it is not whole
MANIFEST = "backup.json"
#: of the applications in the log of `half` that name a gateway's queues (`checkback.gateway.ownership`)
_GATEWAY = "gateway/"
#: files at a time; each is held whole in memory, if one of the places is an object store
_AT_ONCE = 4
#: how much later than it was made a store may say that a commit was written (ms)
_CLOCKS_MS = 600_000


@dataclass(frozen=True)
class TableCopy:
    """A table in a backup: its version, data files and their bytes. Raises ValueError for what is no table's name."""

    table: str
    version: int
    files: int
    bytes: int

    def __post_init__(self) -> None:
        folder, _, name = self.table.rpartition("/")
        kinds = {"": SCHEMAS.__contains__, TOPIC_PREFIX[:-1]: is_topic, GROUP_PREFIX[:-1]: is_consumer_group}
        if folder not in kinds or not kinds[folder](name):
            raise ValueError(self.table)


@dataclass(frozen=True)
class Backup:
    """What a backup has. ``batch_id``: the last batch of `reconcile` in it; None = there was none. ``made_at``: UTC."""

    made_at: datetime
    batch_id: int | None
    batch_done_at: datetime | None
    checkback: str
    tables: tuple[TableCopy, ...]


def back_up(settings: Settings, target: str, begun: Callable[[str, int], object], step: Callable[[], object]) -> Backup:
    """Copy the tables to ``target``, an empty folder or place in an object store.

    ``begun`` is called with each table and its number of files, ``step`` for each file copied. Raises SettingsError if
    the target is not empty, or is of the tables, or there are none, or only Spark writes them; StateError while they
    are restored; StorageError.
    """
    tables = _tables(settings)
    place = _place(target, settings)
    if place == tables.root or f"{place}/".startswith(f"{tables.root}/") or f"{tables.root}/".startswith(f"{place}/"):
        raise SettingsError("is the place of the tables, or in it, or has it", place, "name another place")
    if table_files.names(place):
        raise SettingsError("is not empty", place, "name a new folder for each backup")
    refuse_no_tables(tables)
    made_at = datetime.now(timezone.utc)
    versions, batch = _versions(tables)
    found: dict[str, TableVersion] = {}
    for name, version in versions.items():  # all logs first: they are kept for a shorter time than files
        found[name] = TableVersion.of(tables.location(name), version)
        found[name].copy_log(f"{place}/{name}")
    for name, table in found.items():
        begun(name, len(table.data))
        table.copy_data(f"{place}/{name}", step)
    copies = [TableCopy(name, versions[name], len(table.data), table.bytes) for name, table in found.items()]
    batch_id = None if batch is None else batch.batch_id
    done_at = None if batch is None else datetime.fromtimestamp(batch.done_ms / 1000, timezone.utc)
    made = Backup(made_at, batch_id, done_at, f"{__version__} ({commit()})", tuple(copies))
    filesystem.write(None, f"{place}/{MANIFEST}", json.dumps(asdict(made), default=str, indent=1))
    return made


def restore(settings: Settings, source: str, begun: Callable[[str, int], object], step: Callable[[], object]) -> Backup:
    """Copy a backup's tables to storage.root, which has none; as `back_up`. An interrupted one is run again.

    Until it is done, whoever opens a table is refused (`refuse_half_restored`).

    Raises SettingsError if there are tables, or ``source`` is no backup; FencedError if a `reconcile` runs there;
    StorageError, also if the backup lacks a file, before anything is copied.
    """
    tables = _tables(settings)
    place = _place(source, settings)
    made = _manifest(place)
    mark, again = f"{tables.root}/{RESTORING}", _is_begun(tables, place)
    found = {copy.table: TableVersion.of(f"{place}/{copy.table}", copy.version) for copy in made.tables}
    for copy in made.tables:
        found[copy.table].refuse_incomplete(copy.files, copy.bytes)
    with exclusive_lock(tables):
        filesystem.write(None, mark, place)
        # Once more: whoever makes a table looks for the mark afterwards.
        if not again and (there := _there(tables)):
            table_files.remove(mark)
            raise _has(there[0], tables)
        for name, table in found.items():
            begun(name, len(table.data))
            table.copy_data(tables.location(name), step)
        # Last, as they make tables of them: `batches` first, with which no `reconcile` starts before a rebuild.
        for name in sorted(found, key=lambda name: name != CONCLUDED):
            found[name].copy_log(tables.location(name))
        _skip_lost_offsets(tables)
        table_files.remove(mark)
    return made


def _is_begun(tables: Tables, place: str) -> bool:
    """True if a restore from ``place`` was interrupted. Raises SettingsError if another was, or there are tables."""
    mark = f"{tables.root}/{RESTORING}"
    if not table_files.exists(mark):
        if there := _there(tables):
            raise _has(there[0], tables)
        return False
    other = table_files.read(mark).decode()
    if other != place:
        what, fix = f"a restore of {other} is not done", "run that again, or name an empty storage.root"
        raise SettingsError(what, tables.root, fix)
    return True


def _there(tables: Tables) -> list[str]:
    names = [*SCHEMAS, *_below(tables, TOPIC_PREFIX), *_below(tables, GROUP_PREFIX)]
    return [name for name in names if table_files.names(f"{tables.location(name)}/{LOG}")]


def _has(name: str, tables: Tables) -> SettingsError:
    return SettingsError(f"has the table {name} already", tables.root, "name an empty storage.root")


def _skip_lost_offsets(tables: Tables) -> None:
    """Let gateways go on beyond all offsets that the lost tables may have had: consumers know messages by them."""
    log = DeltaLog("half", tables.location("half"), tables.sync)
    apps = log.applications() if log.exists(tables.location("half")) else {}
    queues = [int(app.removeprefix(_GATEWAY)) for app in apps if app.removeprefix(_GATEWAY).isdecimal()]
    if not queues:
        return
    before = log.versions(map(first_app, queues))
    newest = dict.fromkeys(queues, -1)
    rows = open_table(tables.location("half")).to_pyarrow_dataset()
    for batch in rows.to_batches(columns=["queue_id", "queue_offset"], filter=pc.field("queue_id").isin(queues)):
        found = pa.Table.from_batches([batch]).group_by("queue_id").aggregate([("queue_offset", "max")])
        for row in found.to_pylist():
            newest[row["queue_id"]] = max(newest[row["queue_id"]], row["queue_offset_max"])
    firsts = {first_app(queue): max(newest[queue] + 1, before[first_app(queue)] or 0) + GAP for queue in queues}
    log.commit_after([], before, firsts)


def _tables(settings: Settings) -> Tables:
    tables = Tables.of(settings.storage)
    if not tables.by_files:
        fix = "copy each by CREATE TABLE ... DEEP CLONE while nothing runs"
        raise SettingsError("of tables that only Spark writes there is no backup", "storage", fix)
    return tables


def _place(place: str, settings: Settings) -> str:
    found = (local_path(place) or canonical(place) or place).rstrip("/")
    if canonical(place) is not None:
        register(found, settings.storage.plain_options)
        check_place(found)
    elif local_path(found) is None:
        raise SettingsError("is neither a folder nor in an object store", found, "write /path or s3://bucket/path")
    return os.path.abspath(found) if local_path(found) is not None else found


def _manifest(place: str) -> Backup:
    if not table_files.exists(f"{place}/{MANIFEST}"):
        what = f"there is no whole backup: it has no {MANIFEST}"
        raise SettingsError(what, place, "name what `checkback backup` made")
    try:
        about = json.loads(table_files.read(f"{place}/{MANIFEST}"))
        done_at = about["batch_done_at"]
        return Backup(
            datetime.fromisoformat(about["made_at"]),
            about["batch_id"],
            None if done_at is None else datetime.fromisoformat(done_at),
            about["checkback"],
            tuple(TableCopy(**each) for each in about["tables"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise StorageError("is no manifest of a backup", f"{place}/{MANIFEST}", "name another backup") from error


def _versions(tables: Tables) -> tuple[dict[str, int], _Batch | None]:
    """The version of each table, and the batch that they are as of.

    In this order: groups have consumed nothing of a later batch; what batches write is of no later batch, although they
    go on; what they read has all that they have read, and what nobody has read yet.
    """
    versions = dict(_newest(tables, _below(tables, GROUP_PREFIX)))
    batch = _last_batch(tables)
    for name, newest in _newest(tables, [*WRITTEN, *_below(tables, TOPIC_PREFIX)]):
        found = newest if batch is None else _until(tables.location(name), name, newest, batch)
        if found >= 0:
            versions[name] = found
    versions |= _newest(tables, [name for name in SCHEMAS if name not in WRITTEN])
    return versions, batch


def _below(tables: Tables, folder: str) -> list[str]:
    return [f"{folder}{name}" for name in sorted(table_files.folders(f"{tables.root}/{folder}"))]


def _newest(tables: Tables, names: Sequence[str]) -> Iterator[tuple[str, int]]:
    for name in names:
        place = tables.location(name)
        with reading(place, unreadable):
            there = table_files.versions(place)
        if there:
            yield name, max(there)


@dataclass(frozen=True)
class _Batch:
    """The last batch that is complete. ``batch_id``: None = the checkpoint's first is not; ``done_ms``: of its end."""

    query: str
    batch_id: int | None
    done_ms: int


def _last_batch(tables: Tables) -> _Batch | None:
    """None: no `reconcile` has ever run."""
    newest = dict(_newest(tables, ["decisions", CONCLUDED]))
    if CONCLUDED not in newest:
        return None
    owners = _transactions(tables.location("decisions"), newest["decisions"])
    own = {app: number for app, number in owners.items() if app.startswith(f"{OWNERS}/")}
    if not own:
        return None
    query = max(own, key=own.__getitem__).removeprefix(f"{OWNERS}/")
    place, app = tables.location(CONCLUDED), f"{query}/{CONCLUDED}"
    batch_id = _transactions(place, newest[CONCLUDED]).get(app)
    for version in range(newest[CONCLUDED], -1, -1):
        if not table_files.exists(commit_file(place, version)):
            break
        if any(action["appId"] == app for action in read_actions(place, version, "txn")):
            return _Batch(query, batch_id, table_files.modified(commit_file(place, version)))
    return _Batch(query, batch_id, 0)


def _transactions(place: str, version: int) -> dict[str, int]:
    found = TransactionVersions(place).at(version)
    if found is None:
        what = "the table's log cannot be read without Delta: somebody has altered it"
        raise StorageError(what, place, "copy the tables while nothing runs")
    return dict(found)


def _until(place: str, name: str, newest: int, batch: _Batch) -> int:
    """The last version before the first commit of a later batch; -1: it has none.

    Raises StorageError if rows were removed or erased since, which the backup would bring back.
    """
    app, found = f"{batch.query}/{name}", newest
    for version in range(newest, -1, -1):
        file = commit_file(place, version)
        if not table_files.exists(file) or table_files.modified(file) < batch.done_ms - _CLOCKS_MS:
            break
        batches = [int(action["version"]) for action in read_actions(place, version, "txn") if action["appId"] == app]
        if any(batch.batch_id is None or each > batch.batch_id for each in batches):
            found = version - 1
    later = (action for version in range(found + 1, newest + 1) for action in read_actions(place, version, "remove"))
    if any(action["dataChange"] for action in later):
        what = "rows were removed or erased since the last batch that is complete, and a backup would bring them back"
        raise StorageError(what, place, "take it when `reconcile` has completed a batch")
    return found
