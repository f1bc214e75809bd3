"""Events and actions of segments as short literals, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from checkback.reconcile.records.segment_records import ACTION, EVENT, Action, Kind, Reason, Records, Source
from checkback.reconcile.segment import Rules, Segment, decide

SIZE = 16
#: short times: timeout 6 ms, interval 10 ms, at most 3 checks, given up after 1000 ms
RULES = Rules(timeout=6, check_interval=10, check_max=3, max_age=1000)


def half(
    offset: int,
    born: int = 0,
    *,
    store: int | None = None,
    immunity: int = -1,
    group: int = 1,
    tx: int = 7,
    delay: int = 0,
    at: int = 0,
    kind: Kind = Kind.HALF,
) -> tuple[Any, ...]:
    """A half message; store in ms. Delivered ``delay`` ms after its COMMIT, or ``at`` a time."""
    return (offset, kind, 0, born, 1000 * (born if store is None else store), immunity, group, tx, at or -delay, -1)


def message(offset: int, born: int = 0, **more: Any) -> tuple[Any, ...]:
    """A message without a transaction."""
    return half(offset, born, kind=Kind.MESSAGE, **more)


def op(
    offset: int,
    kind: Kind,
    born: int = 0,
    *,
    store: int = 0,
    group: int = 1,
    tx: int = 7,
    source: Source = Source.PRODUCER,
    check: int = -1,
) -> tuple[Any, ...]:
    """An op; store in ms. ``check``: the number of the check that it answers."""
    source = source if check < 0 else Source.CHECK
    return (offset, kind, source, born, 1000 * store, -1, group, tx, 0, check)


def commit(offset: int, born: int = 0, **more: Any) -> tuple[Any, ...]:
    """A COMMIT op."""
    return op(offset, Kind.COMMIT, born, **more)


def rollback(offset: int, born: int = 0, **more: Any) -> tuple[Any, ...]:
    """A ROLLBACK op."""
    return op(offset, Kind.ROLLBACK, born, **more)


def cancel(offset: int, born: int = 0, **more: Any) -> tuple[Any, ...]:
    """An operator's CANCEL."""
    return op(offset, Kind.CANCEL, born, source=Source.OPERATOR, **more)


def delivered(offset: int, number: int, *, group: int = 1, tx: int = 7) -> tuple[Any, ...]:
    """Somebody has received the check of this number."""
    return (offset, Kind.COUNTED, Source.CHECK, 0, 0, -1, group, tx, 0, number)


def events(*rows: tuple[Any, ...]) -> Records:
    """EVENT records."""
    return np.array(list(rows), EVENT)


def read(actions: Records) -> list[tuple[Any, ...]]:
    """Actions as (name, offset, check_times) or (name, offset, reason): what a person would say of them."""
    said: list[tuple[Any, ...]] = []
    for row in actions:
        action = Action(row["action"])
        offset = int(row["offset"])
        if action in (Action.DISCARD, Action.REJECT_OP):
            said.append((action.name, offset, Reason(row["detail"]).name))
        elif action in (Action.REJECT_HALF, Action.LATE_OP):
            said.append((action.name, offset))
        else:
            said.append((action.name, offset, int(row["check_times"])))
    return sorted(said)


class Run:
    """A segment that batches are given to, one after the other. ``sends``: `check` sends each check before the next."""

    def __init__(self, rules: Rules = RULES, sends: bool = False) -> None:
        self.rules = rules
        self.segment = Segment.empty(0, SIZE)
        self._sends = sends
        self._sent: list[tuple[Any, ...]] = []

    def at(self, now: int, *rows: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """What a batch at this time does."""
        self.segment, actions = decide(self.segment, events(*self._sent, *rows), now, self.rules)
        if self._sends:
            checks = actions[actions["action"] == Action.CHECK]
            self._sent = [
                delivered(row["offset"], row["check_times"], group=row["group"], tx=row["transaction"])
                for row in checks
            ]
        assert actions.dtype == ACTION
        return read(actions)
