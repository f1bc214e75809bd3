"""The tables that a consumer reads: a folder, a place in an object store, or those of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.errors import SettingsError
from checkback.settings import Settings
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from checkback.settings.model import Consumer


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
