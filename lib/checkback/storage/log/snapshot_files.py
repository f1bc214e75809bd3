"""The data files of a Delta table at a version: which there are, and in which way their rows can be read."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakMethod

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from checkback.errors import StorageError
from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.files.object_store import is_registered, options_of
from checkback.storage.files.table_files import commit_file, versions
from checkback.storage.log import compatibility
from checkback.storage.log.delta_errors import unreadable
from checkback.storage.timestamps import python_times

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from contextlib import AbstractContextManager

    from checkback.storage.files.whole_objects import LocalCopies, WholeObjects


@dataclass(frozen=True)
class Span:
    """Values of an integer column: at least ``first`` and below ``end`` (None = any); without ``first`` also null."""

    column: str
    first: int | None
    end: int | None

    @property
    def condition(self) -> str:
        """SQL. Plain comparisons: their statistics allow file skipping."""
        if self.first is None:
            return f"({self.column} < {self.end} OR {self.column} IS NULL)"
        return f"{self.column} >= {self.first}" + ("" if self.end is None else f" AND {self.column} < {self.end}")

    def files(self, actions: pa.Table) -> pa.Table:
        """Those of a table's add actions, flattened, whose files may contain such a value, as far as is known."""
        for bound, which, outside in ((self.first, "max", pc.less), (self.end, "min", pc.greater_equal)):
            if bound is None or f"{which}.{self.column}" not in actions.schema.names:
                continue
            skipped = outside(actions.column(f"{which}.{self.column}"), bound)
            if self.first is None:
                if f"null_count.{self.column}" not in actions.schema.names:
                    continue
                skipped = pc.and_kleene(skipped, pc.equal(actions.column(f"null_count.{self.column}"), 0))
            actions = actions.filter(pc.invert(skipped.fill_null(False)))
        return actions


#: characters that DuckDB takes for a pattern in a path
_PATTERN = re.compile(r"[*?\[\]{}]")
#: what delta-rs says of a listing that lacks a commit
_GAPS = ("Expected contiguous commit files", "CRC file version")
#: pauses between listings that lack a commit which is there (s)
_PAUSES_S = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
T = TypeVar("T")


@dataclass(frozen=True)
class DataFile:
    """A data file of a table: absolute path, size in bytes, and (min, max) of the columns that have statistics.

    ``rows``: None = no statistics. ``without_nulls``: columns that are known to have no null.
    """

    path: str
    size: int
    spans: dict[str, tuple[Any, Any]]
    rows: int | None = None
    without_nulls: frozenset[str] = frozenset()


def open_table(place: str, version: int | None = None) -> DeltaTable:
    """The table, at its newest version or at ``version``. Raises deltalake's errors."""

    def opened(at: int | None) -> DeltaTable:
        return DeltaTable(place, version=at, storage_options=options_of(place) or None)

    return opened(version) if version is not None else newest(place, lambda: opened(None), opened)


def newest(place: str, read: Callable[[], T], read_at: Callable[[int], T]) -> T:
    """What ``read`` returns, which lists the log; ``read_at`` instead, at the newest version, if its listing has a gap.

    A folder's listing is no snapshot: of commits made meanwhile it may have a later one, or the checksum, and not the
    earlier one. What has been there when it began it has.
    """
    try:
        return read()
    except DeltaError as error:
        there = versions(place) if any(text in str(error) for text in _GAPS) else []
        if not there:
            raise
    return read_at(max(there))


def open_listed(place: str, known: int) -> DeltaTable:
    """The table by a listing that has the version ``known``, if that is there: some stores list late.

    Raises deltalake's errors, TableNotFoundError if there is no table.
    """
    for pause_s in _PAUSES_S:
        try:
            table = open_table(place)
        except TableNotFoundError:
            if not (is_registered(place) and table_files.exists(commit_file(place, known))):
                raise
        else:
            if int(table.version()) >= known or not table_files.exists(commit_file(place, known)):
                return table
        time.sleep(pause_s)
    return open_table(place)


def data_files(table: DeltaTable, place: str, within: Mapping[str, tuple[Any, Any]] | None = None) -> list[DataFile]:
    """The data files of the table at ``place``, without those whose statistics are outside ``within``.

    Raises StorageError for a shallow clone: its files are another table's, whose VACUUM removes them.
    """
    with reading(place, unreadable):
        actions = python_times(pa.table(table.get_add_actions(flatten=True)))
    if pc.any(pc.match_substring_regex(actions.column("path"), "^(/|[a-z0-9]+:/)")).as_py():
        what = "files of it lie elsewhere: it is a shallow clone, and ends with the files of the other table"
        raise StorageError(what, place, "copy the table's folder, or clone it deep")
    for name, (least, most) in (within or {}).items():
        if f"min.{name}" in actions.schema.names:
            below, above = actions.column(f"max.{name}"), actions.column(f"min.{name}")
            outside = pc.or_kleene(pc.less(below, least), pc.greater(above, most))
            actions = actions.filter(pc.invert(outside.fill_null(False)))
    names = [name[4:] for name in actions.schema.names if name.startswith("min.")]
    return [
        DataFile(
            path=f"{place}/{row['path']}",
            size=row["size_bytes"],
            # Another writer's may have one only: times beyond Python's range are null there.
            spans={
                name: (row[f"min.{name}"], row[f"max.{name}"])
                for name in names
                if row[f"min.{name}"] is not None and row[f"max.{name}"] is not None
            },
            rows=row.get("num_records"),
            without_nulls=frozenset(name for name in names if row.get(f"null_count.{name}") == 0),
        )
        for row in actions.to_pylist()
    ]


class SnapshotFiles:
    """The files of one table's versions, as readers without a log of their own take them.

    It does not keep the log open.
    """

    def __init__(
        self,
        name: str,
        place: str,
        at: Callable[[int], DeltaTable] | None = None,
        lock: AbstractContextManager[Any] | None = None,
        known: tuple[int, bool, pa.Table] | None = None,
    ) -> None:
        """``at``: a log's method, the table at a version, while ``lock`` is held; afterwards it may be another one.

        ``known``: of a version, whether Arrow can read its files, and its add actions.
        """
        self._name = name
        self._place = place
        self._at: Callable[[], Callable[[int], DeltaTable] | None] = (lambda: None) if at is None else WeakMethod(at)
        self._lock = lock or RLock()
        #: of the version that was last asked for: can Arrow read its files; and its add actions
        self._last = known

    def remember(self, version: int, column: str) -> None:
        """Have what `parquet` tells of a version, also when the log is not open any more. ``column``: of its spans.

        Raises StorageError.
        """
        plain, actions = self._actions(version)
        names = [name for name in actions.schema.names if "." not in name or name.endswith(f".{column}")]
        few = actions.select(names)
        self._last = version, plain, few.filter(few.column("path").is_valid())  # a copy: a part keeps all in memory

    def small(self, version: int, below: int) -> int:
        """How many are smaller than ``below`` bytes."""
        _, actions = self._actions(version)
        return pc.sum(pc.less(actions.column("size_bytes"), below)).as_py() or 0

    def written(self, version: int, files: Collection[str]) -> dict[str, int]:
        """When those of ``files`` that the version has were written, by name (ms)."""
        _, actions = self._actions(version)
        times = actions.column("modification_time").cast(pa.timestamp("ms")).cast(pa.int64())
        names = (path.rpartition("/")[2] for path in actions.column("path").to_pylist())
        return {name: time for name, time in zip(names, times.to_pylist(), strict=True) if name in files}

    def parquet(self, version: int, within: Span | None = None) -> dict[str, int] | None:
        """Sizes, by absolute path, of the Parquet files whose rows are the table's at ``version``, in a local folder.

        Without those that by their statistics have no row ``within`` a span. None if only a Delta reader can read the
        rows, or a path would be a pattern (`*`, `[`). Raises StorageError.
        """
        if is_registered(self._place) or _PATTERN.search(self._place):
            return None
        return self._sizes(version, within=within)

    def copied(self, version: int, copies: LocalCopies, within: Span | None = None) -> list[str] | None:
        """`parquet` of a table in an object store: their local copies. Raises StorageError."""
        found = self._sizes(version, within=within) if is_registered(self._place) else None
        with reading(self._place, unreadable):
            return None if found is None else copies.of(found)

    def plain(self, version: int) -> list[str] | None:
        """Absolute paths of the files that, read with Checkback's schema, yield the table's rows at ``version``.

        Each lies directly in the table's folder. None if only a Delta reader can read the rows. Raises StorageError.
        """
        found = self._sizes(version, whole=True)
        return None if found is None else list(found)

    def dataset(self, version: int, objects: WholeObjects) -> Any:
        """The table at ``version`` as a pyarrow Dataset. Its small files are read once. Raises StorageError."""
        with self._lock, reading(self._place, unreadable):
            table = self._table_at(version)
            if not is_registered(self._place):
                return table.to_pyarrow_dataset()
            files = pa.table(table.get_add_actions())
            sizes = dict(zip(*(files.column(name).to_pylist() for name in ("path", "size_bytes")), strict=True))
            return table.to_pyarrow_dataset(filesystem=objects.of_table(self._place, sizes))

    def _table_at(self, version: int) -> DeltaTable:
        at = self._at()
        return open_table(self._place, version) if at is None else at(version)

    def _actions(self, version: int) -> tuple[bool, pa.Table]:
        """Whether Arrow can read the version's files, and its add actions, flattened. Raises StorageError."""
        with self._lock, reading(self._place, unreadable):
            if self._last is None or self._last[0] != version:  # a question asks for one part after the other
                table = self._table_at(version)
                # Flattened by Arrow: delta-rs takes three times as long.
                self._last = version, compatibility.is_plain(table), pa.table(table.get_add_actions()).flatten()
            return self._last[1:]

    def _sizes(self, version: int, whole: bool = False, within: Span | None = None) -> dict[str, int] | None:
        """As `plain`, with their sizes in bytes; without ``whole`` the files may lack columns."""
        plain, files = self._actions(version)
        if plain and whole:
            with self._lock, reading(self._place, unreadable):
                plain = compatibility.has_columns(self._table_at(version), self._name)
        chosen = files if within is None else within.files(files)
        names, sizes = (chosen.column(name).to_pylist() for name in ("path", "size_bytes"))
        if not plain or any("/" in name for name in names):
            return None
        return {f"{self._place}/{name}": size for name, size in zip(names, sizes, strict=True)}
