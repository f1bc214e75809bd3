"""Whether a scheduled run has anything to do, determined from files: if not, Spark need not be started.

A run that drained the tables writes a note next to the checkpoint: the timers in its state. While the checkpoint is
unchanged, the sources have no new commits and the first timer's time has not come, a run is a no-op. If anything
differs from the note, or cannot be read, the run starts. The note also has when the last runs ended, no-ops included:
`checkback status` tells a job between two runs from a process that has died by it.
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from checkback import __version__
from checkback.errors import StorageError
from checkback.reconcile.checkpoint_owner import NAME, REBUILDING
from checkback.storage.checkpoints.checkpoint import Checkpoint, StreamPosition, last_done, numbers, read_checkpoint
from checkback.storage.checkpoints.seen_commits import replaced
from checkback.storage.files import filesystem
from checkback.storage.log.commit_reader import CommitReader
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.log.torn_commits import refuse_torn
from checkback.storage.schemas import SCHEMAS, SOURCES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checkback.settings import Settings
    from checkback.storage.tables import Tables

#: runs that the note keeps; timers, one a segment, of which it is still small
_RUNS, _TIMERS = 10, 10_000
#: next to the checkpoints
FILE = "reconcile.due.json"
_CHECK = "check"


#: queue_id, segment, ms
Timer = tuple[int, int, int]


@dataclass(frozen=True)
class DrainNote:
    """The note of a drained run. ``due``: when it has something to do (ms); None = nothing is waiting.

    ``query_id``, ``batch_id``, ``batch_time``: those of its last batch. ``settings``: their fingerprint, including
    Checkback's version. ``runs``: when the last runs ended (ms), in order. ``timers``: those of the state after
    the batch; None = too many.
    """

    query_id: str
    batch_id: int
    due: int | None
    settings: str
    runs: tuple[int, ...]
    batch_time: int
    timers: tuple[Timer, ...] | None


def write_note(tables: Tables, settings: Settings, timers: Sequence[Timer], next_try: int | None, now: int) -> None:
    """Write the note of a run that drained the tables, and ends ``now`` (ms); no-op if only Spark can read it.

    ``timers``: all of the state. ``next_try``: time of the next retry of a topic table (ms); None = no message waits
    for one.
    """
    found, place = _checkpoint(tables, NAME), tables.checkpoint(NAME)
    if _path(place) is None or found is None or found.newest is None:
        return
    before = read_note(place)
    runs = () if before is None else before.runs
    due = min([*(at for *_, at in timers), *(() if next_try is None else (next_try,))], default=None)
    kept = tuple(timers) if len(timers) <= _TIMERS and _is_done(tables, NAME, found) else None
    batch = found.newest
    note = DrainNote(found.query_id, batch.batch_id, due, _fingerprint(settings), runs, batch.time, kept)
    _write(place, note, now)


def note_run(tables: Tables, now: int) -> None:
    """Note that a run which had nothing to do ends ``now`` (ms). Raises StorageError."""
    place = tables.checkpoint(NAME)
    note = read_note(place)
    if note is not None:
        _write(place, note, now)


def read_note(place: str) -> DrainNote | None:
    """The note next to the checkpoint in ``place``; None if there is none that can be read."""
    path = _path(place)
    if path is None:
        return None
    try:
        return TypeAdapter(DrainNote).validate_json(filesystem.text(None, path))
    except (StorageError, ValidationError):
        return None


def noted_timers(tables: Tables) -> Sequence[Timer] | None:
    """The timers of the checkpoint's state, without Spark; None = unknown."""
    place = tables.checkpoint(NAME)
    if _path(place) is None:
        return None
    with suppress(StorageError, OSError, ValueError):
        found, note = _checkpoint(tables, NAME), read_note(place)
        if found is None:
            return None if numbers(None, f"{place}/offsets") else ()
        if found.newest is None:
            return ()
        if note is not None and _is_of(note, found) and _is_done(tables, NAME, found):
            return note.timers
    return None


def nothing_to_do(tables: Tables, settings: Settings, now: int) -> bool:
    """True if a scheduled run at ``now`` (ms) would be a no-op. False if unknown."""
    note = read_note(tables.checkpoint(NAME))
    if note is None or not tables.by_files or note.settings != _fingerprint(settings):
        return False
    if note.due is not None and now >= note.due:
        return False
    if note.runs and now < note.runs[-1]:  # the clock was set back: the next retry of a topic's table is too far ahead
        return False
    try:
        found = _checkpoint(tables, NAME)
        if found is None or not _is_of(note, found):
            return False
        with ThreadPoolExecutor() as pool:  # in an object store each of their requests takes long
            whole = pool.submit(_is_whole, tables)
            check = pool.submit(nothing_to_check, tables)
            return _has_read_all(tables, NAME, found) and check.result() and whole.result()
    except (StorageError, OSError, ValueError):
        return False


def nothing_to_check(tables: Tables) -> bool:
    """True if the check query has answered all check requests. False if unknown."""
    if not tables.by_files or _path(tables.checkpoint(_CHECK)) is None:
        return False
    try:
        return _has_read_all(tables, _CHECK, _checkpoint(tables, _CHECK))
    except (StorageError, OSError, ValueError):
        return False


def _is_whole(tables: Tables) -> bool:
    """True if all tables exist, and no rebuild is in progress."""
    if filesystem.exists(None, tables.checkpoint(REBUILDING)):
        return False
    with ThreadPoolExecutor(len(SCHEMAS)) as pool:
        return all(pool.map(_is_table, map(tables.location, SCHEMAS)))


def _is_table(place: str) -> bool:
    refuse_torn(place)
    return DeltaLog.exists(place)


def _has_read_all(tables: Tables, query: str, found: Checkpoint | None) -> bool:
    """True if the query's last batch is complete, and its sources have no commits after it."""
    batch = None if found is None else found.newest
    if found is not None and not _is_done(tables, query, found):
        return False
    if replaced(None, tables, query) is not None:
        return False
    names = SOURCES[query]
    positions = [None] * len(names) if batch is None else [*batch.positions, *[None] * len(names)][: len(names)]
    with ThreadPoolExecutor(len(names)) as pool:
        return all(pool.map(lambda name, position: _is_read(tables, name, position), names, positions))


def _is_done(tables: Tables, query: str, found: Checkpoint) -> bool:
    """True if the query's last batch is complete, or it has none."""
    return found.newest is None or last_done(None, tables.checkpoint(query)) == found.newest.batch_id


def _is_of(note: DrainNote, found: Checkpoint) -> bool:
    """True if the note is that of the checkpoint's newest batch: also none of its number, begun from a backup."""
    batch = found.newest
    noted = note.query_id, note.batch_id, note.batch_time
    return batch is not None and (found.query_id, batch.batch_id, batch.time) == noted


def _is_read(tables: Tables, name: str, position: StreamPosition | None) -> bool:
    """True if the table has no commits with rows after the position."""
    since = 0 if position is None else max(0, position.seen)
    commits = CommitReader.of(tables.location(name), since)
    if commits is None:
        return False
    if position is None:
        return not commits.anything_after(0)
    return not (
        position.starting
        or position.table != tables.log(name).table_id()
        or position.seen > commits.newest
        or commits.anything_after(position.version, position.index)
    )


def _checkpoint(tables: Tables, query: str) -> Checkpoint | None:
    return read_checkpoint(None, tables.checkpoint(query))


def _path(place: str) -> str | None:
    folder = place.rpartition("/")[0]
    return None if filesystem.needs_spark(folder) else f"{folder}/{FILE}"


def _write(place: str, note: DrainNote, now: int) -> None:
    """With a run that ends ``now``."""
    noted = replace(note, runs=(*note.runs, now)[-_RUNS:])
    filesystem.write(None, _path(place) or "", json.dumps(asdict(noted)))


def _fingerprint(settings: Settings) -> str:
    """Fingerprint of all settings but secret values: other settings may give a run work, or refuse it."""
    return hashlib.sha256(f"{__version__} {settings.model_dump_json()}".encode()).hexdigest()
