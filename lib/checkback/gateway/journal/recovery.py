"""A gateway's start with its journal: opened, its rest committed to the tables, the queues claimed for it."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from checkback.errors import SettingsError, StorageError
from checkback.gateway.appender import claim
from checkback.gateway.journal.files import note_root, root_of
from checkback.gateway.journal.journal import Journal
from checkback.gateway.journal.record import Kind
from checkback.gateway.ownership import (
    belongs_to_another,
    changed_hands,
    first_app,
    is_outdated,
    journal_app,
    next_start,
    outdated,
    owned_by_others,
    start_app,
)
from checkback.storage.files.object_store import is_registered
from checkback.storage.files.paths import local_path
from checkback.storage.log.delta_log import DeltaLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from checkback.gateway.appender import Appender
    from checkback.gateway.deduplication.history import DeduplicationHistory
    from checkback.gateway.journal.journal_to_tables import JournalToTables
    from checkback.settings import Settings

#: places that are looked up at a time
_LOOKED_UP = 10_000


def journal_folder(settings: Settings) -> str:
    """The journal's folder; empty = nowhere: the tables are in an object store, and no folder is set."""
    folder = local_path(settings.storage.root)
    return settings.gateway.journal or ("" if folder is None else os.path.join(folder, "_journal"))


def uses_journal(settings: Settings) -> bool:
    """Are messages acknowledged by the journal? Raises SettingsError if it has no folder."""
    gateway = settings.gateway
    if gateway.acknowledge == "auto":
        return local_path(settings.storage.root) is not None
    if gateway.acknowledge == "journal" and not journal_folder(settings):
        fix = "name a folder on a durable local disk, or set gateway.acknowledge: table"
        raise SettingsError("the journal needs a folder: the tables are in an object store", "gateway.journal", fix)
    return gateway.acknowledge == "journal"


def refuse_missing_tables(settings: Settings) -> None:
    """Refuse to create tables where those of the journal were: the disk may not be mounted.

    Raises SettingsError, StorageError.
    """
    root, folder = local_path(settings.storage.root), journal_folder(settings)
    if root is None or root_of(folder) != os.path.abspath(root):
        return
    missing = [name for name in ("half", "op") if not DeltaLog.exists(os.path.join(root, name))]
    if not missing:  # other files do not tell: a new disk has lost+found, and another process its own tables
        return
    what = f"{root} has no table {' and no table '.join(missing)}, and had those of the journal in {folder}"
    raise SettingsError(what, "storage.root", "mount its disk; if the tables are gone for good, move the journal away")


def open_journal(settings: Settings, half: Appender, op: Appender) -> Journal | None:
    """The journal, also one that is not used any more; None if there is none. Raises as `Journal`."""
    folder = journal_folder(settings)
    used = uses_journal(settings)
    if not used and not (folder and os.path.exists(os.path.join(folder, "journal.db"))):
        return None
    if is_registered(folder):
        raise SettingsError("is no local folder", "gateway.journal", "name a folder on a durable local disk")
    tables = (half.table_id(), op.table_id())
    most, sync = settings.gateway.journal_max, settings.storage.sync
    journal = Journal(
        os.path.abspath(folder), tables, most, sync, in_tables=lambda number: (half.use(number), op.use(number))
    )
    try:
        half.use(journal.id)
        op.use(journal.id)
        _refuse_outdated(journal, half.versions([start_app(journal.id)]))
        root = local_path(settings.storage.root)
        note_root(folder, "" if root is None else os.path.abspath(root))
    except BaseException:
        journal.close()
        raise
    return journal


def _refuse_outdated(journal: Journal, versions: Mapping[str, int | None]) -> int | None:
    """Refuse an outdated copy of the journal; returns the last start with it, by the table."""
    started = versions[start_app(journal.id)]
    if is_outdated(started, *journal.starts):
        raise outdated(journal.path)
    return started


def recover(journal: Journal | None, to_tables: JournalToTables | None, history: DeduplicationHistory) -> int:
    """Commit what the journal has and the tables have not; returns how many messages and ops that was.

    They land at the offsets that were acknowledged, also if another gateway owns the queues by now: it left them free.

    Raises StorageError if there are other messages at these offsets, and what `JournalToTables.flush` raises.
    """
    if journal is None or to_tables is None or not journal.rows:
        return 0
    places = [
        (record.queue_id, offset)
        for record in journal.unflushed()
        if record.kind is Kind.HALF and not to_tables.has(record)
        for offset in range(record.first, record.first + record.rows)
    ]
    for start in range(0, len(places), _LOOKED_UP):
        taken = history.find(places[start : start + _LOOKED_UP])
        if taken:
            queue_id, offset = min(taken)
            what = f"{len(taken)} half messages of the journal cannot land: others are at their offsets"
            fix = f"the first is queue {queue_id}, offset {offset}: was half restored?"
            raise StorageError(what, journal.path, f"{fix}; move the journal away to start without them")
    return to_tables.drain()


def _begin_start(journal: Journal, half: Appender) -> None:
    started = _refuse_outdated(journal, half.versions([start_app(journal.id)]))
    last, following = journal.starts
    journal.note_starts(
        following if started == following else last, next_start(started, last, following, secrets.randbits(32))
    )


def own_queues(
    journal: Journal | None,
    settings: Settings,
    half: Appender,
    op: Appender,
    history: DeduplicationHistory,
    take_over: bool,
) -> Journal | None:
    """Claim the queues for the journal, which must be drained. Returns the one to use; None = none.

    Raises SettingsError if a queue belongs to another journal, unless ``take_over``; FencedError, StorageError.
    """
    queues = settings.gateway.queues
    used = uses_journal(settings)
    own, drained = (journal.id if journal is not None and used else 0), (0 if journal is None else journal.id)
    # What it has acknowledged is in the tables: queues that are not its own any more can have other owners.
    released = [queue for queue in (journal.queues if journal is not None else ()) if queue not in queues]

    def change(versions: Callable[[Iterable[str]], dict[str, int | None]]) -> Mapping[str, int]:
        found = versions([app(queue) for queue in [*queues, *released] for app in (journal_app, first_app)])
        others = owned_by_others(found, queues, (own, drained))
        if others and not take_over:
            raise belongs_to_another(others)
        freed = {journal_app(queue): 0 for queue in released if found[journal_app(queue)] == drained}
        changed = changed_hands(found, queues, own, drained, history.next_offset) | freed
        if journal is None:
            return changed
        _refuse_outdated(journal, versions([start_app(journal.id)]))
        return changed | {start_app(journal.id): journal.starts[1]}

    if journal is not None:
        _begin_start(journal, half)
        if used:
            journal.own({*journal.queues, *queues})
    claim(half, op, change)
    # Only now: a start that was killed before it gives up the same queues again.
    if journal is not None:
        journal.own(queues if used else ())
        journal.note_starts(journal.starts[1], journal.starts[1])
    if journal is None or used:
        return journal
    half.without_journal()
    op.without_journal()
    journal.close()
    return None
