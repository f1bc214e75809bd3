"""When the checkpoint of a Delta log is due, and how it is written in an object store: beside the commits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from checkback.errors import StorageError
from checkback.storage.log.delta_errors import DELTA_ERRORS
from checkback.storage.log.snapshot_files import open_table
from checkback.storage.log.torn_commits import last_checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from deltalake import DeltaTable

#: commits between checkpoints if the table does not set delta.checkpointInterval
_INTERVAL = 100
#: Writes them in object stores, some thirty requests one after the other: commits do not wait for them.
BESIDE = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")


class LogCheckpoints:
    """Those of one log. ``properties``: the table's."""

    def __init__(self, place: str, properties: Mapping[str, str | None]) -> None:
        self._place = place
        interval = properties.get("delta.checkpointInterval") or ""
        self._interval = int(interval) if interval.isdecimal() and int(interval) else _INTERVAL
        self._beside: Future[DeltaTable | None] | None = None

    def due(self, before: int, version: int) -> int | None:
        """The version of which a checkpoint is due after the commits from ``before`` to ``version``; None = of none."""
        due = (version + 1) // self._interval * self._interval - 1
        return due if due > before else None

    def begin(self, due: int) -> None:
        """Have a checkpoint of version ``due`` written beside commits, unless one is being written."""
        self._beside = self._beside or BESIDE.submit(_checkpointed, self._place, due)

    def written(self) -> DeltaTable | None:
        """The table as it reads from the checkpoint of `begin`, once; None as long as that is not written."""
        if self._beside is None or not self._beside.done():
            return None
        beside, self._beside = self._beside, None
        return None if beside.exception() else beside.result()


def _checkpointed(place: str, due: int) -> DeltaTable | None:
    """The table, with a checkpoint of version ``due`` or a later one; None if that cannot be written."""
    with suppress(StorageError, *DELTA_ERRORS):  # best effort: the table is valid without it
        if last_checkpoint(place) < due:
            open_table(place).create_checkpoint()
        return open_table(place)
    return None
