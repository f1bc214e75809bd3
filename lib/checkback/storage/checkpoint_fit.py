"""Whether a query's checkpoint and the tables belong together. No Spark, no I/O: `checkpoint_facts` gathers the facts.

A checkpoint, or a table, that was put back from a backup is older than what it belongs to: the query would take batches
for done that never were, or skip rows. So a query that does not fit is not started on that checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.storage.checkpoint import StreamPosition


#: what to do about a table that is older than what the checkpoint has seen of it
PUT_BACK = "put its newest state back"


@dataclass(frozen=True)
class TableLog:
    """A table's log: Delta's id of the table, the oldest version that can still be read from, the newest."""

    table: str
    oldest: int
    newest: int


@dataclass(frozen=True)
class Fit:
    """A query's checkpoint beside the tables.

    ``begun``: the newest batch that has begun; ``done``: the newest that is done; -1 = none. ``written``: the newest
    batch of the query in any table; ``concluded``: the newest in the table to which each batch commits last; None =
    none, or not known. ``positions``: up to where the newest batch reads its sources; ``logs``: of these; those that
    nobody has looked at are left out. ``replaced``: what of a table is no longer as the checkpoint has seen it.
    """

    begun: int = -1
    done: int = -1
    written: int | None = None
    concluded: int | None = None
    positions: Mapping[str, StreamPosition | None] = field(default_factory=dict)
    logs: Mapping[str, TableLog] = field(default_factory=dict)
    replaced: str | None = None


@dataclass(frozen=True)
class Misfit:
    """Why a checkpoint and tables do not belong together, and what to put back; empty: nothing can be."""

    what: str
    fix: str = ""


def misfit(fit: Fit) -> Misfit | None:
    """The first reason why the query must not go on with this checkpoint; None = it may."""
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
    for name, log in fit.logs.items():
        position = fit.positions.get(name)
        found = None if position is None else _misread(name, position, log)
        if found is not None:
            return found
    if fit.replaced is not None:
        return Misfit(fit.replaced, PUT_BACK)
    return None


def _misread(name: str, position: StreamPosition, log: TableLog) -> Misfit | None:
    if position.table != log.table:
        return Misfit(f"the table {name} is another one than the checkpoint was made with", "put the table back")
    if position.seen > log.newest:
        return Misfit(
            f"the table {name} ends with version {log.newest}, the checkpoint goes on from {position.version}",
            "the table was put back to an older state: put it forward again",
        )
    if position.version < log.oldest:
        return Misfit(
            f"the log of {name} begins with version {log.oldest}, the checkpoint goes on from {position.version}: "
            "the query was stopped for longer than delta.logRetentionDuration"
        )
    return None
