"""Dead letters that operators have resumed, in the table `operations`: a row for each, and which deaths they were.

Each death is an application of Delta's transaction identifiers, so that it is recorded once.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.errors import FencedError
from checkback.operate.operations import Operation, operation_row
from checkback.operate.transaction import Place
from checkback.storage.log.delta_log import AlteredError, DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.row_texts import CONSUMER_GROUP, CONSUMER_GROUP_END
from checkback.storage.timestamps import time_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from checkback.consumer.group.group_state import Death
    from checkback.consumer.reconsume import Buried, Judged
    from checkback.operate.operations import OperatorSignature
    from checkback.storage.tables import Tables

ACTION = "RESUME_DEAD_LETTER"
_TABLE = "operations"
_TRIES = 50


class ResumptionLedger:
    """The ledger of one group, to be written. Not thread-safe."""

    def __init__(self, tables: Tables, group: str) -> None:
        """Create the table if it does not exist. Raises StorageError, also if rows cannot be appended."""
        self._tables = tables
        self._group = group
        place = tables.location(_TABLE)
        self._log = DeltaLog.created(_TABLE, place, tables.sync)
        if not self._log.appendable():
            what = "somebody has clustered, partitioned or altered the table"
            raise AlteredError(what, place, "undo it, then run again")

    def recorded(self, deaths: Collection[Death]) -> set[Death]:
        """Those of the deaths that it has. Raises StorageError."""
        return _recorded(self._log, self._group, deaths)

    def next_due(self, now: int) -> int:
        """The time (ms) of retries: now, or after all that it has said before, by whatever machine's clock.

        `SqlPositions` knows by it which retries it has taken over: who asks for it after reading the group's state, and
        writes on condition of that, has a later one than all retries in that state and before. Raises StorageError.
        """
        app = f"operator/{ACTION}/{self._group}"
        for _ in range(_TRIES):
            last = self._log.versions([app])[app]
            due = now if last is None else max(now, last + 1)
            with suppress(FencedError):
                self._log.commit_after([], {app: last}, {app: due})
                return due
        raise self._outrun()

    def record(
        self, signed: OperatorSignature, resumed: Sequence[Judged], now: int, earlier: Collection[Death]
    ) -> None:
        """Append a row for each that has none, in one commit. ``now``: ms. Raises StorageError.

        ``earlier``: deaths that a command before has resumed, which a crash cut short: they have a row of their own.
        """
        for _ in range(_TRIES):
            with suppress(FencedError):
                self._append(signed, resumed, now, frozenset(earlier))
                return
        raise self._outrun()

    def _append(
        self, signed: OperatorSignature, resumed: Sequence[Judged], now: int, earlier: frozenset[Death]
    ) -> None:
        """Raises FencedError if another operator has recorded one of them meanwhile."""
        recorded = self.recorded({death for one in resumed for death in one.deaths})
        each = [(one, deaths) for one in resumed for deaths in (one.deaths & earlier, one.deaths - earlier)]
        new = [(one, deaths) for one, deaths in each if not recorded.issuperset(deaths)]
        if not new:
            return
        with FileWriter(self._tables.root, sync=self._tables.sync) as writer:
            writer.write(_TABLE, pa.concat_tables([self._row(signed, one.buried, now) for one, _ in new]))
            files = writer.close()
        apps = [_app(self._group, death) for _, deaths in new for death in deaths if death not in recorded]
        self._log.commit_after(files, dict.fromkeys(apps), dict.fromkeys(apps, 0))

    def _row(self, signed: OperatorSignature, buried: Buried, now: int) -> pa.Table:
        signed = signed._replace(reason=f"{CONSUMER_GROUP}{self._group}{CONSUMER_GROUP_END}{signed.reason}")
        place = Place(buried.half_queue_id, buried.half_queue_offset)
        names = (buried.transaction_id, buried.producer_group, buried.queue.topic)
        return operation_row(Operation(time_of(now), ACTION, signed, place, *names))

    def _outrun(self) -> FencedError:
        return FencedError("too many concurrent operators", f"consumer group {self._group}", "run it again")


def recorded_deaths(tables: Tables, group: str, deaths: Collection[Death]) -> set[Death]:
    """Those of the deaths that the ledger has. Read only. Raises StorageError."""
    place = tables.location(_TABLE)
    return _recorded(DeltaLog(_TABLE, place, sync=False), group, deaths) if DeltaLog.exists(place) else set()


def _recorded(log: DeltaLog, group: str, deaths: Collection[Death]) -> set[Death]:
    apps = {death: _app(group, death) for death in deaths}
    versions = log.versions(apps.values())
    return {death for death, app in apps.items() if versions[app] is not None}


def _app(group: str, death: Death) -> str:
    place = f"{death.topic}/{death.half_queue_id}/{death.half_queue_offset}"
    return f"operator/{ACTION}/{group}/{place}/{death.dead_at}"
