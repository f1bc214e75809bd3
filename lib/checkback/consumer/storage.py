"""The tables that a consumer reads: a folder, a place in an object store, or those of the settings."""

from __future__ import annotations

import os
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING

from checkback.errors import SettingsError
from checkback.settings import Settings
from checkback.storage.files import table_files
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.schemas import TOPIC_PREFIX
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from checkback.settings.model import Consumer


#: `gateway` and `land` make the first one when they start, `reconcile` both, before there is any message
_FIRST = ("half", "batches")
#: topics that an error names
_NAMED = 10


def consumer_tables(
    storage: Settings | str | os.PathLike[str], options: dict[str, str] | None = None
) -> tuple[Tables, Consumer]:
    """The tables, and the consumer's settings.

    Raises SettingsError if they can only be read by Spark, TypeError if ``storage`` is neither a path nor Settings.
    """
    if not isinstance(storage, Settings):
        storage = Settings.model_validate({"storage": {"root": os.fspath(storage), "options": options or {}}})
    tables = Tables.of(storage.storage)
    if not tables.readable:
        raise SettingsError(
            "tables in a catalog or on a mounted or HDFS path can only be read by Spark",
            "storage",
            "consume them with checkback.consumer.read_stream",
        )
    return tables, storage.consumer


def refuse_no_tables(tables: Tables) -> None:
    """Raises SettingsError if there are no tables at the root, which may be mistyped; StateError, StorageError."""
    tables.refuse_half_restored()
    if not any(DeltaLog.exists(tables.location(name)) for name in _FIRST):
        fix = "name their root; they are there once `checkback gateway` or `checkback reconcile` has started"
        raise SettingsError("there are no tables of Checkback", tables.root, fix)


def no_topic(tables: Tables, topic: str) -> SettingsError:
    """The error for a topic without a table, whose name may be mistyped; it names those that are most alike."""
    found: list[str] = []
    with suppress(OSError):
        found = table_files.folders(f"{tables.root}/{TOPIC_PREFIX.rstrip('/')}")
    known = f"there are {', '.join(get_close_matches(topic, found, _NAMED, 0))}; " if found else ""
    return SettingsError(
        "there is no such topic", topic, f"{known}a topic is there once its first message is published"
    )
