"""Spark's state store and timers for one operator, as SegmentProcessor sees them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from checkback.reconcile.state.processor import NEXT_NAME, STATE_NAME


@dataclass(frozen=True)
class State:
    """What a batch leaves: for each key a block and its next deliveries, if any, and the timers."""

    blocks: dict[str, bytes] = field(default_factory=dict)
    next_deliveries: dict[str, bytes] = field(default_factory=dict)
    timers: frozenset[tuple[int, str]] = frozenset()


class Handle:
    """Spark's StatefulProcessorHandle, over a copy of a State.

    ``read``: how often each variable was.
    """

    def __init__(self, state: State) -> None:
        self.key = ""
        self.values = {STATE_NAME: dict(state.blocks), NEXT_NAME: dict(state.next_deliveries)}
        self.timers = set(state.timers)
        self.read = Counter[str]()

    def state(self) -> State:
        """As it is now."""
        return State(self.values[STATE_NAME], self.values[NEXT_NAME], frozenset(self.timers))

    def getValueState(self, name: str, schema: str) -> Value:  # noqa: ARG002, N802 - Spark's name
        return Value(self, name)

    def registerTimer(self, at: int) -> None:  # noqa: N802 - Spark's name
        self.timers.add((at, self.key))

    def deleteTimer(self, at: int) -> None:  # noqa: N802 - Spark's name
        self.timers.discard((at, self.key))


class Value:
    """Spark's ValueState of the current key."""

    def __init__(self, handle: Handle, name: str) -> None:
        self._handle, self._name = handle, name
        self._values = handle.values[name]

    def get(self) -> tuple[bytes] | None:
        self._handle.read[self._name] += 1
        key = self._handle.key
        return (self._values[key],) if key in self._values else None

    def update(self, value: tuple[bytes]) -> None:
        (self._values[self._handle.key],) = value

    def clear(self) -> None:
        self._values.pop(self._handle.key, None)


@dataclass(frozen=True)
class BatchTime:
    """Spark's TimerValues and ExpiredTimerInfo."""

    now: int
    fired: int = -1

    def getCurrentProcessingTimeInMs(self) -> int:  # noqa: N802 - Spark's name
        return self.now

    def getExpiryTimeInMs(self) -> int:  # noqa: N802 - Spark's name
        return self.fired
