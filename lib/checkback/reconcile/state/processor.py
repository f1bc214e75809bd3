"""The stateful processor: an adapter between Spark and `partition_batch`.

Its imports are few: at each start of the query Spark runs `init` in two new Python processes, one after the other, to
read the schema of the state (TransformWithStateInPySparkPythonPreInitRunner). With pandas and Arrow each takes a second
of CPU time, without them a quarter.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

    from checkback.reconcile.segment import Rules
    from checkback.reconcile.state.partition_batch import PartitionBatch

STATE_SCHEMA = "block BINARY"
#: Spark's local property of a batch that is behind: `Publisher`
BEHIND = "checkback.behind"
#: names of the state variables, for readers of the state store: the segments' blocks, and their `next_deliveries`
STATE_NAME, NEXT_NAME = "segment", "next_deliveries"


class SegmentProcessor(StatefulProcessor):
    """Decides the segments. Input: PACKED_SCHEMA grouped by segment. Output: ACTIONS_SCHEMA.

    ``max_checks``, ``max_deliveries``, ``crowd``: see `PartitionBatch`.
    """

    def __init__(
        self,
        rules: Rules,
        segment_size: int,
        max_checks: int | None = None,
        max_deliveries: int | None = None,
        crowd: bool = True,
    ) -> None:
        self._rules = rules
        self._size = segment_size
        self._max_checks = max_checks
        self._crowd = crowd
        self._max_deliveries = max_deliveries

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state variables; Spark creates a processor per partition and batch."""
        self.__dict__.pop("_batch", None)
        self._handle = handle
        self._state = handle.getValueState(STATE_NAME, STATE_SCHEMA)
        self._next = handle.getValueState(NEXT_NAME, STATE_SCHEMA)

    @cached_property
    def _batch(self) -> PartitionBatch:
        from checkback.reconcile.state.partition_batch import PartitionBatch

        limits = self._max_checks, self._max_deliveries
        return PartitionBatch(
            *(self._rules, self._size, *limits, self._handle, self._state, self._next),
            behind=self._behind(),
            crowd=self._crowd,
        )

    def _behind(self) -> bool:
        task = TaskContext.get()
        return task is not None and task.getLocalProperty(BEHIND) == "yes"

    def handleInputRows(
        self,
        key: Any,
        rows: Any,  # an iterator of pandas frames
        timerValues: TimerValues,
    ) -> Iterator[pd.DataFrame]:
        """Decide a segment with events."""
        blocks = [block for frame in rows for block in frame["events"]]
        return self._batch.events(key[0], blocks, timerValues.getCurrentProcessingTimeInMs())

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:
        """Load a segment restored by `rebuild`: a frame of one row, its block."""
        block = bytes(initialState["block"].iloc[0])
        self._batch.restored(key[0], block, timerValues.getCurrentProcessingTimeInMs())

    def handleExpiredTimer(
        self,
        key: Any,
        timerValues: TimerValues,
        expiredTimerInfo: ExpiredTimerInfo,
    ) -> Iterator[pd.DataFrame]:
        """Decide a segment whose timer fired."""
        now, fired = timerValues.getCurrentProcessingTimeInMs(), expiredTimerInfo.getExpiryTimeInMs()
        return self._batch.timer(key[0], now, fired)

    def close(self) -> None:
        """No-op: no resources."""
