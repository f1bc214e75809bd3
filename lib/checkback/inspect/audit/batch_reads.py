"""What each batch had read of `half` and `op`, by `read_ranges` of `batches`; and when batches had time to spare.

A version was certainly read before a batch if it is below the one that the batch begins with: of that it may read some.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from checkback.inspect.engines.question import Question
from checkback.inspect.versions.batches import UNKNOWN
from checkback.inspect.versions.whole_batches import OF_BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from checkback.inspect.versions.table_versions import FixedTables

    Column = NDArray[np.int64]

#: ms; a deferred check is tried again within 62 s (`timer_encoding.put_off_timer`), a delivery sooner
_SPARE_MS = 120_000
_ENDS = ("from_version", "from_index", "to_version", "to_index")
_RULES = {"timeout": "timeout_ms", "interval": "check_interval_ms", "jitter": "check_jitter_ms"}
_NUMBERS = {
    "batch_id": "batch_id",
    "ms": "unix_millis(batch_time)",
    "idle": "CASE WHEN checks = 0 AND discarded = 0 THEN 1 ELSE 0 END",  # null, not known: perhaps it was not
    "undelivering": "CASE WHEN committed IS NOT NULL AND coalesce(delivered, 0) = 0 THEN 1 ELSE 0 END",
    "restoring": "CASE WHEN restored_at IS NOT NULL THEN 1 ELSE 0 END",
    **_RULES,
    **{f"{name}_{end}": f"read_ranges['{name}']['{end}']" for name in ("half", "op") for end in _ENDS},
}
_SQL = f"""
SELECT {OF_BATCH} AS application, {", ".join(f"CAST({sql} AS BIGINT) AS {name}" for name, sql in _NUMBERS.items())}
FROM {{batches}} WHERE batch_id IS NOT NULL AND batch_time IS NOT NULL"""


class Spare(NamedTuple):
    """From the time ``ms`` on batches did all that was due, and checked and discarded nothing for minutes.

    They had read all versions of `half` below ``half_version``. By their application's rules a first check is due at
    most ``timeout`` after the birth, if the message sets no immunity, the next ``interval`` after one (ms).
    """

    ms: int
    half_version: int
    timeout: int
    interval: int


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
        to_version, to_index = (int(self.columns[f"{table}_{end}"][row]) for end in ("to_version", "to_index"))
        if to_version == UNKNOWN:
            return None
        return version < to_version or (version == to_version and to_index >= 0)

    def op_passed_over(self, row: int, half_version: int, op_version: int) -> bool:
        """Whether an earlier batch of the row's application certainly read the op, and none before the half message.

        Then that op was applied at once: it neither waited (rule 3) nor was it restored by a rebuild.
        """
        begins, half_begins = (int(self.columns[f"{table}_from_version"][row]) for table in ("op", "half"))
        if op_version >= begins or half_version >= half_begins:
            return False
        mine = np.flatnonzero(self.applications == self.applications[row])
        mine = mine[(mine < row) & (self.columns["half_to_version"][mine] > half_version)]
        if not len(mine):
            return False
        first, index = (int(self.columns[f"op_{end}"][mine[0]]) for end in ("from_version", "from_index"))
        return first != UNKNOWN and (op_version > first or (op_version == first and index < 0))

    def spare(self) -> Spare | None:
        """The latest such time; None: there is none. It is not asked of applications whose rules are not all known."""
        return max((one for of in self._by_application() if (one := _spare(of)) is not None), default=None)

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


def _spare(of: Mapping[str, Column]) -> Spare | None:
    if any((of[rule] == UNKNOWN).any() for rule in _RULES):
        return None
    ms, idle = of["ms"], of["idle"] == 1
    # By a clock that was ahead a check may have been deferred until a later time.
    on_time = ms == np.maximum.accumulate(ms)
    ends = np.append(np.flatnonzero(~(idle[1:] & (np.diff(of["batch_id"]) == 1))), len(ms) - 1)
    end = ends[np.searchsorted(ends, np.arange(len(ms)))]
    begins = idle & on_time & on_time[end] & (ms[end] - ms >= _SPARE_MS) & (of["half_from_version"] != UNKNOWN)
    if not begins.any():
        return None
    at = np.flatnonzero(begins)[-1]
    interval = int((of["interval"] + of["jitter"]).max())
    return Spare(int(ms[at]), int(of["half_from_version"][at]), int(of["timeout"].max()), interval)


def _delivered_until(of: Mapping[str, Column]) -> int | None:
    ms = np.maximum.accumulate(of["ms"])
    # Of what precedes the first row, or a gap, nothing is known: such a batch counts as one that deferred some.
    idle = (of["undelivering"] == 1) & (of["restoring"] == 0) & (np.diff(of["batch_id"], prepend=UNKNOWN) == 1)
    idle[0] = False
    deferred = np.maximum.accumulate(np.where(idle, 0, ms))
    found = of["ms"][idle & (of["ms"] == ms) & (ms - deferred >= _SPARE_MS)]
    return int(found[-1]) if len(found) else None
