"""Where Checkback's Delta tables and checkpoints are: in a folder, an object store or a catalog."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from checkback.errors import SettingsError
from checkback.storage.catalog_names import table_name
from checkback.storage.files.fsync import QueryFlush
from checkback.storage.files.object_store import canonical, check_place, options_of, register
from checkback.storage.files.paths import local_path
from checkback.storage.log.spark_log import CatalogName
from checkback.storage.parquet.parquet_files import TableRoot

if TYPE_CHECKING:
    from checkback.settings import Storage

L = TypeVar("L", bound="TableLocations")
#: an escape in a URL
_ESCAPED = re.compile("%[0-9A-Fa-f]{2}")


@dataclass(frozen=True)
class TableLocations:
    """Paths under ``root``, or names in ``catalog``.``schema``.

    A table's name here is one of SCHEMAS, or ``topics/<topic>``. ``by_files``: tasks write the Parquet files and
    the driver commits them (`delta_log`); otherwise Spark does both. ``sync``: the tables are in a local folder, and
    writes are flushed to disk before anything depends on them (`fsync`). ``register``: the schema of a catalog that
    also has them, as external tables (`external_tables`); empty = none.
    """

    root: str = ""
    catalog: str = ""
    schema: str = ""
    checkpoints: str = ""
    by_files: bool = False
    sync: bool = False
    register: str = ""

    @classmethod
    def of(cls: type[L], storage: Storage) -> L:
        """The tables named by the settings. A local path becomes absolute: Spark's working directory may differ.

        Tables in local folders and object stores are written ``by_files`` unless storage.writer says otherwise.
        Registers the storage.options of an object store (`object_store`). Raises SettingsError.
        """
        root = "" if storage.catalog else _absolute(storage.root)
        local = not storage.catalog and local_path(root) is not None
        places = [] if storage.catalog else [root, _absolute(storage.checkpoints_root)]
        for place in places:
            if canonical(place) is not None:
                register(place, storage.plain_options)
                check_place(place)
        if _ESCAPED.search(root):
            # delta-rs and obstore take it for a URL's, and would read and write in another place.
            what = f"{root} has a % and two digits, which a URL has for another character"
            raise SettingsError(what, "storage.root", "choose another name")
        return cls(
            root=root,
            catalog=storage.catalog or "",
            schema=storage.schema_ or "",
            checkpoints=_absolute(storage.checkpoints_root),
            by_files=storage.writer != "spark" and (local or canonical(root) is not None),
            sync=storage.sync and local,
            register=storage.register_ or "",
        )

    @property
    def local(self) -> bool:
        """True if the tables are in a local folder."""
        return not self.catalog and local_path(self.root) is not None

    @property
    def readable(self) -> bool:
        """True if the tables' logs can be read without Spark, whichever writer is used."""
        return self.by_files or self.local

    @property
    def table_root(self) -> TableRoot:
        """Where and how tasks write the tables' files."""
        return TableRoot(self.root, self.sync, options_of(self.root))

    def location(self, name: str) -> str:
        """A table's path, or its quoted three-level name."""
        return str(self._place(name))

    def _place(self, name: str) -> CatalogName | str:
        if not self.catalog:
            return f"{self.root}/{name}"
        return CatalogName(self.catalog, self.schema, table_name(name))

    def checkpoint(self, query: str) -> str:
        """Checkpoint location of a query: a path even if the tables are in a catalog."""
        return f"{self.checkpoints or self.root + '/_checkpoints'}/{query}"

    def flush_of(self, query: str, *sources: str) -> QueryFlush:
        """The object that in each batch flushes the query's checkpoint and its source tables."""
        place = local_path(self.checkpoint(query)) if self.sync else None
        return QueryFlush(place, [self.location(name) for name in sources])


def _absolute(place: str) -> str:
    return (local_path(place) or canonical(place) or place).rstrip("/")
