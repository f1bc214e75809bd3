"""The tables that a consumer reads: a folder, a place in an object store, or those of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.errors import SettingsError
from checkback.settings import Settings
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from checkback.settings.model import Consumer


#: `gateway` and `land` make the first one when they start, `reconcile` both, before there is any message
_FIRST = ("half", "batches")


def consumer_tables(storage: Settings | str, options: dict[str, str] | None = None) -> tuple[Tables, Consumer]:
    """The tables, and the consumer's settings. Raises SettingsError if they can only be read by Spark."""
    if isinstance(storage, str):
        storage = Settings.model_validate({"storage": {"root": storage, "options": options or {}}})
    tables = Tables.of(storage.storage)
    if not tables.readable:
        raise SettingsError(
            "tables in a catalog or on a mounted or HDFS path can only be read by Spark",
            "storage",
            "consume them with checkback.consumer.read_stream",
        )
    return tables, storage.consumer


def refuse_no_tables(tables: Tables) -> None:
    """Raises SettingsError if there are no tables at the root, which may be mistyped, StorageError."""
    if not any(DeltaLog.exists(tables.location(name)) for name in _FIRST):
        fix = "name their root; they are there once `checkback gateway` or `checkback reconcile` has started"
        raise SettingsError("there are no tables of Checkback", tables.root, fix)
