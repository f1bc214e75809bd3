"""What was read of a topic's log: of thousands of topics the logs, some 70 KB each, do not stay open."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from checkback.errors import StorageError
from checkback.storage.files import table_files
from checkback.storage.files.table_files import commit_file
from checkback.storage.horizon import HORIZON, horizon
from checkback.storage.log.compatibility import KEY
from checkback.storage.log.short_log import read_short_log
from checkback.storage.log.snapshot_files import SnapshotFiles

if TYPE_CHECKING:
    from checkback.storage.tables import Tables


#: the column of the spans in which the rows of a topic are asked for
_OFFSET = "half_queue_offset"


class TopicLog:
    """As much of a `DeltaLog` as the engine asks for. ``files``: of ``seen_version``."""

    def __init__(self, tables: Tables, name: str) -> None:
        """Raises StorageError, StateError."""
        tables.refuse_half_restored()
        self._tables, self._name = tables, name
        self._read()

    def _read(self) -> None:
        place = self._tables.location(self._name)
        self._horizon: list[int | None] = []
        short = read_short_log(place)
        if short is not None:
            self.seen_version, self._own = short.version, short.columns >= KEY
            self.files = SnapshotFiles(self._name, place, known=(short.version, True, short.actions(_OFFSET)))
            self._horizon.append(short.versions.get(HORIZON))
            return
        log = self._tables.open_log(self._name)
        self.seen_version = log.refresh()
        self.files = log.files
        self.files.remember(self.seen_version, _OFFSET)
        self._own = log.is_topic()
        with suppress(StorageError):  # raised to whoever asks for it
            self._horizon.append(log.versions([HORIZON])[HORIZON])

    def refresh(self) -> int:
        """The newest version. Raises StorageError."""
        if table_files.exists(commit_file(self._tables.location(self._name), self.seen_version + 1)):
            self._read()
        return self.seen_version

    def is_topic(self) -> bool:
        """See `DeltaLog`."""
        return self._own

    def horizon(self) -> int | None:
        """The table's `horizon`. Raises StorageError."""
        return self._horizon[0] if self._horizon else horizon(None, self._tables, self._name)
