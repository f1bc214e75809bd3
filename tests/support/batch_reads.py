"""What each batch had read of `half` and `op`, by `read_ranges` of `batches`; and when batches left nothing due."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from checkback.query.engines.question import Question
from checkback.query.versions.batches import UNKNOWN
from checkback.query.versions.whole_batches import OF_BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from checkback.query.versions.table_versions import FixedTables

    Column = NDArray[np.int64]

#: ms; a deferred delivery is tried again sooner
_SPARE_MS = 120_000
_ENDS = ("to_version", "to_index")
_NUMBERS = {
    "batch_id": "batch_id",
    "ms": "unix_millis(batch_time)",
    "undelivering": "CASE WHEN committed IS NOT NULL AND coalesce(delivered, 0) = 0 THEN 1 ELSE 0 END",
    "restoring": "CASE WHEN restored_at IS NOT NULL THEN 1 ELSE 0 END",
    **{f"{name}_{end}": f"read_ranges['{name}']['{end}']" for name in ("half", "op") for end in _ENDS},
}


def batches_sql(numbers: Mapping[str, str]) -> str:
    """SQL of the completed batches: ``application``, and as BIGINT the ``numbers``, each by its expression."""
    columns = ", ".join(f"CAST({sql} AS BIGINT) AS {name}" for name, sql in numbers.items())
    return f"""
SELECT {OF_BATCH} AS application, {columns}
FROM {{batches}} WHERE batch_id IS NOT NULL AND batch_time IS NOT NULL"""


_SQL = batches_sql(_NUMBERS)


@dataclass(frozen=True)
class BatchReads:
    """The completed batches by application and id; UNKNOWN = not known. ``applications``: numbers."""

    applications: Column
    columns: Mapping[str, Column]

    @classmethod
    def take(cls, fixed: FixedTables) -> BatchReads:
        """Without those whose rows are left out. Raises StorageError."""
        left_out = " OR ".join(f"(batch_id = {one.batch_id} AND ms = {one.time})" for one in fixed.under_way) or "FALSE"
        sql = f"SELECT * FROM ({_SQL}) AS batches WHERE NOT ({left_out})"
        found = fixed.engine.arrow(fixed.ask(Question(sql)))
        applications = found.column("application").combine_chunks().dictionary_encode().indices.to_numpy()
        columns = {name: found.column(name).fill_null(UNKNOWN).to_numpy() for name in _NUMBERS}
        order = np.lexsort((columns["batch_id"], applications))
        return cls(applications[order], {name: column[order] for name, column in columns.items()})

    def find(self, batch_id: int, ms: int) -> int | None:
        """The number of the batch's row; None: there is none, or several."""
        return self._rows.get((batch_id, ms))

    @cached_property
    def _rows(self) -> Mapping[tuple[int, int], int | None]:
        keys = list(zip(self.columns["batch_id"].tolist(), self.columns["ms"].tolist(), strict=True))
        found: dict[tuple[int, int], int | None] = {}
        for row, key in enumerate(keys):
            found[key] = None if key in found else row
        return found

    def has_read(self, row: int, table: str, version: int) -> bool | None:
        """Whether batches of the row's application up to it had read the version, if only some files; None: unknown."""
        to_version, to_index = (int(self.columns[f"{table}_{end}"][row]) for end in _ENDS)
        if to_version == UNKNOWN:
            return None
        return version < to_version or (version == to_version and to_index >= 0)

    def restores(self, row: int) -> bool:
        """Whether it is a rebuild's first batch: what that restores, ops and deliveries, acts in the next one."""
        return bool(self.columns["restoring"][row])

    def delivered_until(self) -> int | None:
        """Time (ms) of the latest batch that must have left nothing that was due; None: there is none.

        A batch that defers deliveries (rule 11) makes some. So it is one that makes none, long after the last batch of
        its application that may have deferred, or restored, some.
        """
        return max((one for of in self._by_application() if (one := _delivered_until(of)) is not None), default=None)

    def _by_application(self) -> Iterator[dict[str, Column]]:
        """The columns of each application's batches, in order."""
        changes = np.flatnonzero(np.diff(self.applications)) + 1
        for part in np.split(np.arange(len(self.applications)), changes):
            if len(part):
                yield {name: column[part] for name, column in self.columns.items()}


def _delivered_until(of: Mapping[str, Column]) -> int | None:
    ms = np.maximum.accumulate(of["ms"])
    # Of what precedes the first row, or a gap, nothing is known: such a batch counts as one that deferred some.
    idle = (of["undelivering"] == 1) & (of["restoring"] == 0) & (np.diff(of["batch_id"], prepend=UNKNOWN) == 1)
    idle[0] = False
    deferred = np.maximum.accumulate(np.where(idle, 0, ms))
    found = of["ms"][idle & (of["ms"] == ms) & (ms - deferred >= _SPARE_MS)]
    return int(found[-1]) if len(found) else None
