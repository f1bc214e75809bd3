"""The recorded batches in order, and the batches that there would have been besides: virtual time.

Pure: no clock, no I/O. A batch comes when something lands or comes due. Under other rules something may come due when
nothing did: then a *tick*, a batch that there was not, follows after the usual lag. A replay goes by the rules of each
batch: it begins after the last batch whose rules are unknown, and ends with the last that has a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkback.errors import SettingsError
from checkback.reconcile.segment import Rules
from checkback.what_if.records import NEVER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


#: lag in ms if the record has none
_LAG = 1_000


class Step(NamedTuple):
    """A batch of the replay: before or at the recorded batch ``turn``; ``at`` is its time. After the last: turn NEVER.

    ``tick``: it is none of the recorded ones.
    """

    turn: int
    tick: bool
    at: int


@dataclass(frozen=True)
class Cadence:
    """When there would have been ticks. ``idle_until``: by turn, until when no batch was necessary before it.

    ``lag``: how long after something landed or came due its batch came (ms, median).
    """

    idle_until: NDArray[Any]
    lag: int = _LAG

    @classmethod
    def of(cls, timeline: Timeline, needs: NDArray[Any]) -> Cadence:
        """``needs``: by turn, when the first thing came up that made the batch necessary (ms); NEVER = nothing did."""
        known = needs < NEVER
        lags = np.maximum(timeline.times[known] - needs[known], 0)
        return cls(np.minimum(needs, timeline.times), int(np.median(lags)) if len(lags) else _LAG)


@dataclass(frozen=True)
class Timeline:
    """The recorded batches. ``times``: ms. ``which``: of ``rules``, by turn."""

    times: NDArray[Any]
    rules: tuple[Rules, ...]
    which: NDArray[Any]
    _latest: NDArray[Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_latest", np.maximum.accumulate(self.times))

    def __len__(self) -> int:
        return len(self.times)

    def under(self, changes: Mapping[str, Any]) -> Timeline:
        """The same batches, with these rules changed in each of them."""
        return replace(self, rules=tuple(replace(rules, **changes) for rules in self.rules))

    def rules_at(self, turn: int) -> Rules:
        """The rules in force in a batch; before the first and after the last those of the nearest."""
        return self.rules[int(self.which[min(max(turn, 0), len(self) - 1)])]

    def first_turns(self, at: NDArray[Any]) -> NDArray[Any]:
        """For each of these times the first batch at or after it; ``len(self)`` = none."""
        return np.searchsorted(self._latest, at)

    def first_turn(self, at: int, after: int) -> int:
        """The first batch after the turn ``after`` whose time is at or after ``at``; ``len(self)`` = none."""
        found = int(np.searchsorted(self._latest, at))
        if found > after:
            return found
        later = np.flatnonzero(self.times[after + 1 :] >= at)  # the clock was set back
        return after + 1 + int(later[0]) if len(later) else len(self)

    def begins(self, turns: NDArray[Any]) -> NDArray[Any]:
        """The time after which each batch became possible: that of the batch before."""
        found: NDArray[Any] = np.where(turns > 0, self.times[np.maximum(turns - 1, 0)] + 1, 0)
        return found

    def step(self, at: int, after: int, cadence: Cadence | None) -> Step:
        """The batch that does what comes up at ``at``, after the turn ``after``; without ``cadence`` a recorded one."""
        turn = self.first_turn(at, after)
        if turn == len(self):
            return Step(NEVER, True, at)
        time = int(self.times[turn])
        if cadence is not None and turn > 0 and at < cadence.idle_until[turn] and at + cadence.lag < time:
            return Step(turn, True, at + cadence.lag)
        return Step(turn, False, time)

    def at(self, turn: int) -> Step:
        """The recorded batch of a turn."""
        return Step(turn, False, int(self.times[turn]))


_RULES = {
    "timeout": "timeout_ms",
    "check_interval": "check_interval_ms",
    "check_max": "check_max",
    "max_age": "max_age_ms",
    "check_jitter": "check_jitter_ms",
    "count_undelivered": "count_undelivered",
}
#: columns of `batches` that are read
BATCH_COLUMNS = ("application", "batch_id", "batch_time", "finished_at", *_RULES.values())
#: turn of a batch that has no row
NO_TURN = -1


@dataclass(frozen=True)
class BatchHistory:
    """The timeline, and the batch id of each turn. ``begin``: half messages that landed earlier (ms) are left out."""

    timeline: Timeline
    batch_ids: NDArray[Any]
    begin: int

    @classmethod
    def of(cls, rows: pa.Table, where: str) -> BatchHistory:
        """From BATCH_COLUMNS. ``where``: the table, for errors. Raises SettingsError if there are no rules."""
        rows = rows.filter(pc.and_(pc.is_valid(rows.column("batch_id")), pc.is_valid(rows.column("batch_time"))))
        known = np.ones(rows.num_rows, bool)
        for name in _RULES.values():
            known &= rows.column(name).is_valid().to_numpy()
        if not known.any():
            raise SettingsError("no batch has recorded its rules", where, "run `checkback reconcile` first")
        ids, times, finished = (_numbers(rows, name) for name in ("batch_id", "batch_time", "finished_at"))
        application = _by_start(rows.column("application"), finished)
        order = np.lexsort((finished, ids, application))
        first = np.ones(len(order), bool)
        first[1:] = (np.diff(application[order]) != 0) | (np.diff(ids[order]) != 0)
        order = order[first]
        unknown = np.flatnonzero(~known[order])
        order, before = (order[unknown[-1] + 1 :], order[: unknown[-1] + 1]) if len(unknown) else (order, order[:0])
        if not len(order):
            raise SettingsError("the last batches have not recorded their rules", where, "run `checkback reconcile`")
        whole = not len(before) and ids[order[0]] == 0
        begin = 0 if whole else int(times[before].max(initial=int(times[order[0]])))
        rows = rows.take(pa.array(order))
        distinct, which = _rules(rows)
        return cls(Timeline(times[order], distinct, which), ids[order], begin)

    @property
    def end(self) -> int:
        """The time of the last batch, ms."""
        return int(self.timeline.times.max())

    def turns(self, batch_ids: NDArray[Any], times: NDArray[Any]) -> NDArray[Any]:
        """The turn of each (batch_id, time in ms); NO_TURN = none has a row."""
        pairs = np.empty(len(batch_ids), [("id", "<i8"), ("time", "<i8")])
        pairs["id"], pairs["time"] = batch_ids, times
        distinct, back = np.unique(pairs, return_inverse=True)
        found = np.array([self._turns.get(pair, NO_TURN) for pair in distinct.tolist()], np.int64)
        return found[back.reshape(-1)] if len(found) else np.empty(0, np.int64)

    @cached_property
    def _turns(self) -> dict[tuple[int, int], int]:
        pairs = zip(self.batch_ids.tolist(), self.timeline.times.tolist(), strict=True)
        return {pair: turn for turn, pair in enumerate(pairs)}


def _numbers(rows: pa.Table, name: str) -> NDArray[Any]:
    """A column as int64; times in ms."""
    column = rows.column(name)
    if pa.types.is_timestamp(column.type):
        return milliseconds(column)
    found: NDArray[Any] = column.cast(pa.int64()).fill_null(0).to_numpy()
    return found


def milliseconds(column: pa.ChunkedArray) -> NDArray[Any]:
    """Timestamps in ms, rounded down; null = 0."""
    found: NDArray[Any] = np.floor_divide(column.cast(pa.int64()).fill_null(0).to_numpy(), 1000)
    return found


def _by_start(names: pa.ChunkedArray, finished: NDArray[Any]) -> NDArray[Any]:
    """The application of each row, numbered by their start."""
    codes = np.asarray(names.fill_null("").dictionary_encode().unify_dictionaries().combine_chunks().indices)
    begun = np.full(int(codes.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(begun, codes, finished)
    found: NDArray[Any] = np.argsort(np.argsort(begun, kind="stable"))[codes]
    return found


def _rules(rows: pa.Table) -> tuple[tuple[Rules, ...], NDArray[Any]]:
    """The distinct rules, and which each batch had."""
    columns = [rows.column(name).to_pylist() for name in _RULES.values()]
    each = list(zip(*columns, strict=True))
    places = {values: place for place, values in enumerate(dict.fromkeys(each))}
    distinct = tuple(Rules(**dict(zip(_RULES, values, strict=True))) for values in places)
    return distinct, np.array([places[values] for values in each], np.int64)
