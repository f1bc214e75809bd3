"""Spark's state store and timers for one operator, as SegmentProcessor sees them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class State:
    """What a batch leaves: a block for each key, and the timers."""

    blocks: dict[str, bytes] = field(default_factory=dict)
    timers: frozenset[tuple[int, str]] = frozenset()


class Handle:
    """Spark's StatefulProcessorHandle and its one ValueState, over a copy of a State."""

    def __init__(self, state: State) -> None:
        self.key = ""
        self.blocks = dict(state.blocks)
        self.timers = set(state.timers)

    def state(self) -> State:
        """As it is now."""
        return State(self.blocks, frozenset(self.timers))

    def getValueState(self, name: str, schema: str) -> Handle:  # noqa: ARG002, N802 - Spark's name
        return self

    def exists(self) -> bool:
        return self.key in self.blocks

    def get(self) -> tuple[bytes] | None:
        return (self.blocks[self.key],) if self.key in self.blocks else None

    def update(self, value: tuple[bytes]) -> None:
        (self.blocks[self.key],) = value

    def clear(self) -> None:
        self.blocks.pop(self.key, None)

    def registerTimer(self, at: int) -> None:  # noqa: N802 - Spark's name
        self.timers.add((at, self.key))

    def deleteTimer(self, at: int) -> None:  # noqa: N802 - Spark's name
        self.timers.discard((at, self.key))


@dataclass(frozen=True)
class BatchTime:
    """Spark's TimerValues and ExpiredTimerInfo."""

    now: int
    fired: int = -1

    def getCurrentProcessingTimeInMs(self) -> int:  # noqa: N802 - Spark's name
        return self.now

    def getExpiryTimeInMs(self) -> int:  # noqa: N802 - Spark's name
        return self.fired
