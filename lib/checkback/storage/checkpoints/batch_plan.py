"""A batch's plan is its entry in Spark's offset log, identified by its time. Pure.

Spark looks whether there is an entry, then writes it, and in an object store the one replaces the other: a process that
was stopped in between, or whose request was long under way, replaces the entry of its successor. What was written by
the first plan must not be completed by the second. Each commit of a batch therefore records the time of its plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.errors import FencedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkback.storage.checkpoints.checkpoint import Batch


def plan_versions(app: str, batch_id: int, time: int) -> dict[str, int]:
    """The versions of applications (Delta's transaction identifiers) that record a plan with a commit of ``app``.

    ``time``: ms.
    """
    return {f"{app}/planned": batch_id, f"{app}/planned_at": time}


def plan_recorded(app: str, look_up: Callable[[str], int | None]) -> tuple[int, int] | None:
    """The batch id and time (ms) that ``app``'s last commit with a plan recorded; None = none did.

    ``look_up``: the version of an application.
    """
    batch_id, time = (look_up(name) for name in plan_versions(app, 0, 0))
    return None if batch_id is None or time is None else (batch_id, time)


def refuse_other_plan(entry: Batch, batch_time: int, place: str) -> None:
    """Check that the batch in progress is the one in the offset log. ``batch_time``: ms; 0 = it touches no segment.

    Raises FencedError.
    """
    if batch_time not in (0, entry.time):
        raise FencedError(
            f"another process has planned batch {entry.batch_id}, too, while this one did", place, "let only one work"
        )
