"""Whether `reconcile` may start with a checkpoint and tables; if not, why, and the fix. No Spark, no I/O.

`start_facts` gathers the facts. With a checkpoint that does not fit the tables (lost, restored from a backup,
another's) messages would be published twice or lost; each rule is one way in which that happens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from checkback.errors import StateError
from checkback.storage.checkpoints.checkpoint_fit import OTHER_PLAN, PUT_BACK, Fit, misfit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.storage.checkpoints.checkpoint import Batch, Checkpoint, StreamPosition
    from checkback.storage.checkpoints.checkpoint_fit import TableLog

_REBUILD = "or run `checkback rebuild`"
#: fix for a table older than the version a batch has read
REPLACED_FIX = f"{PUT_BACK}, {_REBUILD}"


@dataclass(frozen=True)
class DecisionFacts:
    """Facts from the table `decisions`.

    ``written``: it has rows; if the checkpoint has no batch also: another table has rows that only batches write.
    ``owner``: the number of checkpoints that have owned the tables; ``owned``: the number of this one, None = never an
    owner. ``last_batch``: the newest batch of its query in any table; ``concluded``: the newest in `batches`, None =
    none; ``segment_size``: that of the checkpoint. ``planned``: for the newest batch in `batches` and the newest begun,
    the times (ms) of the plans by which tables were written.
    """

    written: bool
    owner: int = 0
    owned: int | None = None
    last_batch: int | None = None
    concluded: int | None = None
    segment_size: int | None = None
    planned: Mapping[int, frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class StartFacts:
    """The facts at a start. ``rebuilding``: a rebuild is in progress or was interrupted.

    ``logs``: the sources' logs by name, in the query's order, if read; ``starts``: see `Fit`. ``done``: the last
    completed batch; -1 = none. ``replaced``: see `Fit`. ``missing_schema``: see `checkpoint`. ``times``: of the batches
    in the offset log (ms).
    """

    place: str
    checkpoint: Checkpoint | None
    decisions: DecisionFacts
    partitions: int
    segment_size: int
    rebuilding: bool = False
    logs: Mapping[str, TableLog] = field(default_factory=dict)
    starts: Mapping[str, StreamPosition | None] = field(default_factory=dict)
    done: int = -1
    replaced: str | None = None
    missing_schema: str | None = None
    times: Mapping[int, int] = field(default_factory=dict)


def refuse(facts: StartFacts) -> None:
    """Return if the start is safe. Raises StateError with the fix."""
    if facts.rebuilding:
        raise StateError(
            "a rebuild is in progress or was interrupted: the checkpoint may no longer fit the tables",
            facts.place,
            "run `checkback rebuild` again",
        )
    newest = None if facts.checkpoint is None else facts.checkpoint.newest
    if newest is None:
        if facts.decisions.written:
            raise StateError(
                "the tables hold decisions, but this checkpoint is new: all of them would be made and published again",
                facts.place,
                f"put the checkpoint back (storage.checkpoints names its folder), {_REBUILD}",
            )
        return
    _refuse_others(facts)
    if facts.missing_schema is not None:
        raise StateError(
            f"the checkpoint was moved or copied: Spark keeps the path of its state's schema, {facts.missing_schema}",
            facts.place,
            f"put the folder back, {_REBUILD}",
        )
    _refuse_misfit(facts, newest)
    _refuse_other_plan(facts)
    _refuse_other_shape(facts, newest)


def _refuse_others(facts: StartFacts) -> None:
    decisions = facts.decisions
    ours = decisions.owned == decisions.owner if decisions.owner else decisions.last_batch is not None
    if decisions.written and not ours:
        raise StateError(
            "the tables belong to another checkpoint: this one would publish what that one has published",
            facts.place,
            f"start with the checkpoint of these tables, {_REBUILD}",
        )


def _refuse_misfit(facts: StartFacts, newest: Batch) -> None:
    positions = dict(zip(facts.logs, newest.positions, strict=False))
    others = [position.table != facts.logs[name].table for name, position in positions.items() if position is not None]
    if len(others) > 1 and all(others):
        raise StateError(
            "the checkpoint is that of other tables",
            facts.place,
            f"give these tables a storage.checkpoints of their own, or put those back, {_REBUILD}",
        )
    found = misfit(
        Fit(
            begun=newest.batch_id,
            done=facts.done,
            written=facts.decisions.last_batch,
            concluded=facts.decisions.concluded,
            positions=positions,
            starts=facts.starts,
            logs=facts.logs,
            replaced=facts.replaced,
        )
    )
    if found is not None:
        without = "run `checkback rebuild`: it goes by the tables, which hold every row"
        raise StateError(found.what, facts.place, f"{found.fix}, {_REBUILD}" if found.fix else without)


def _refuse_other_plan(facts: StartFacts) -> None:
    """See `checkpoint`."""
    for batch_id, found in facts.decisions.planned.items():
        if batch_id in facts.times and found != {facts.times[batch_id]}:
            raise StateError(
                OTHER_PLAN.format(batch_id),
                facts.place,
                "run `checkback rebuild`: it goes by the tables, which hold every row",
            )


def _refuse_other_shape(facts: StartFacts, newest: Batch) -> None:
    for name, set_to, made_with in (
        ("partitions", facts.partitions, newest.partitions),
        ("segment_size", facts.segment_size, facts.decisions.segment_size),
    ):
        if made_with is not None and made_with != set_to:
            raise StateError(
                f"is {set_to}, but the checkpoint {facts.place} was made with {made_with}",
                f"reconcile.{name}",
                f"set it to {made_with}, {_REBUILD}",
            )
