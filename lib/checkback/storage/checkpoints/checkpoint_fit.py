"""Whether a query's checkpoint and the tables are consistent. No Spark, no I/O: `checkpoint_facts` gathers the facts.

If only one of them was restored from a backup, it is older than the other: the query would treat batches as committed
that never were, or skip rows. A query is not started on an inconsistent checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.storage.checkpoints.checkpoint import StreamPosition


#: fix for a table that is older than the versions the checkpoint has seen
PUT_BACK = "put its newest state back"
#: what is wrong with an entry of the offset log that is another one than the tables were written by (`batch_plan`)
OTHER_PLAN = (
    "the tables were written by another batch {} than the checkpoint has: "
    "a process that had been stopped has replaced it"
)


@dataclass(frozen=True)
class TableLog:
    """A table's log: Delta's table id, the oldest version that can still be streamed from, the newest version."""

    table: str
    oldest: int
    newest: int


@dataclass(frozen=True)
class Fit:
    """The state of a query's checkpoint and tables.

    ``begun``: the newest batch in the offset log; ``done``: the newest in the commit log; -1 = none. ``written``: the
    newest batch of the query in any table; ``concluded``: the newest in the table to which each batch commits last;
    None = none, or unknown. ``positions``: the sources' end offsets of the newest batch; ``starts``: those of the one
    before, from which on Spark lists commits on start; ``logs``: the sources' logs, as far as they were read.
    ``replaced``: how a table differs from what the checkpoint has seen. ``time``: of the newest batch (ms);
    ``planned``: its times by which the tables were written (`batch_plan`).
    """

    begun: int = -1
    done: int = -1
    written: int | None = None
    concluded: int | None = None
    positions: Mapping[str, StreamPosition | None] = field(default_factory=dict)
    starts: Mapping[str, StreamPosition | None] = field(default_factory=dict)
    logs: Mapping[str, TableLog] = field(default_factory=dict)
    replaced: str | None = None
    time: int | None = None
    planned: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Misfit:
    """Why checkpoint and tables are inconsistent, and what to restore; empty if nothing can be."""

    what: str
    fix: str = ""


def misfit(fit: Fit) -> Misfit | None:
    """The first reason why the query must not resume from this checkpoint; None if it may."""
    if fit.written is not None and fit.written > fit.begun:
        return Misfit(
            f"the checkpoint is older than the tables: it knows {fit.begun} as the last batch, they hold {fit.written}",
            "put the newest checkpoint back",
        )
    if fit.concluded is not None and fit.concluded < fit.done:
        return Misfit(
            f"the tables are older than the checkpoint: batch {fit.done} is done, they end with {fit.concluded}",
            "put the newest tables back",
        )
    if fit.planned.difference([fit.time]):
        return Misfit(OTHER_PLAN.format(fit.begun))
    for name, log in fit.logs.items():
        position = fit.positions.get(name)
        found = None if position is None else _misread(name, position, fit.starts.get(name) or position, log)
        if found is not None:
            return found
    if fit.replaced is not None:
        return Misfit(fit.replaced, PUT_BACK)
    return None


def _misread(name: str, position: StreamPosition, start: StreamPosition, log: TableLog) -> Misfit | None:
    if position.table != log.table:
        return Misfit(f"the table {name} is another one than the checkpoint was made with", "put the table back")
    if position.seen > log.newest:
        return Misfit(
            f"the table {name} ends with version {log.newest}, the checkpoint goes on from {position.version}",
            "the table was put back to an older state: put it forward again",
        )
    if start.version < log.oldest:
        return Misfit(
            f"the log of {name} begins with version {log.oldest}, the checkpoint goes on from {start.version}: "
            "the query was stopped for longer than delta.logRetentionDuration"
        )
    return None
