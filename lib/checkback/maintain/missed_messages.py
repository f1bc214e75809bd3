"""Messages that retention removes before a consumer group has consumed them: how many, by group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from checkback.consumer.batch_log import BatchLog
from checkback.consumer.group.group_reader import group_names, read_group
from checkback.consumer.position import floor_of
from checkback.consumer.row_groups import WantedRows, groups_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checkback.consumer.batch_listing import ListedBatch
    from checkback.consumer.group.group_state import GroupState
    from checkback.storage.log.snapshot_files import DataFile
    from checkback.storage.tables import Tables


@dataclass(frozen=True)
class MissedMessages:
    """Counts by the positions in the groups' tables, read once."""

    tables: Tables

    def of(self, topic: str, files: Sequence[DataFile], horizon: int) -> dict[str, int]:
        """By group, its unconsumed messages in these files that were published before the horizon (ms).

        Groups without any are left out. Raises StorageError, also if a group's table cannot be read: what it misses
        would be counted nowhere.
        """
        found: dict[str, int] = {}
        for group, state in self._states.items():
            wanted = {queue.queue_id: each.position for queue, each in state.queues.items() if queue.topic == topic}
            if not wanted or not self._batches:
                continue
            rows = groups_of(files, WantedRows(self._batches, wanted), None)
            number = sum(int((each.times < horizon).sum()) for each in rows)
            found |= {group: number} if number else {}
        return found

    @cached_property
    def _states(self) -> dict[str, GroupState]:
        return {group: read_group(self.tables, group).state for group in group_names(self.tables)}

    @cached_property
    def _batches(self) -> list[ListedBatch]:
        """The batches that not all positions have; read after these, so that none is missing."""
        floor = floor_of(each.position for state in self._states.values() for each in state.queues.values())
        log = BatchLog(self.tables)
        log.refresh(floor)
        return log.batches
