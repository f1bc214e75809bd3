"""Tables of a job on a cluster: what lands in them, what they publish, and the files that nothing has committed."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq

from benchmarks.load import Load
from benchmarks.processes import GROUP
from checkback.cli import main
from checkback.settings.loading import load
from checkback.storage.files import table_files
from checkback.storage.files.object_store import register
from checkback.storage.log.delta_log import DeltaLog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from checkback.settings import Settings

TOPICS = [f"topics/topic_{number}" for number in range(2)]
#: transactions of a step, in two files: more than the driver looks up itself, so two tasks write
N = 52_000
#: one in so many has no op, and is checked
PENDING = 1000
#: transactions that the producer knows
_MOST = 200 * N
#: What the cluster's processes are started with: in cluster mode the driver has it from its worker.
ENVIRON = {"LAKE_KEY_ID": "test", "LAKE_KEY": "test"}
_KEYS = {"aws_access_key_id": "env:LAKE_KEY_ID", "aws_secret_access_key": "env:LAKE_KEY"}


@dataclass
class Lake:
    """``options``: of the object store, for this process; ``through``: for Spark's, which may go through a proxy."""

    root: str
    endpoints: Sequence[str] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    through: Mapping[str, str] = field(default_factory=dict)
    landed: int = 0

    def __post_init__(self) -> None:
        if self.options:
            register(self.root, dict(self.options))
        self._load = Load(self.root, body_bytes=64, topics=len(TOPICS), pending_every=PENDING)

    def land(self, n: int = N) -> None:
        """``n`` transactions more."""
        first = self.landed
        for _ in range(2):
            self._load.land_half(self.landed, n // 2)
            self.landed += n // 2
        offsets = np.arange(first, self.landed)
        self._load.land_op(offsets[offsets % PENDING != 0])

    def overrides(self, options: Mapping[str, str]) -> list[str]:
        """The job's settings, as options of a command."""
        chosen = {
            "storage.root": self.root,
            "storage.options": json.dumps({**options, **_KEYS} if options else {}),
            "transaction.timeout": "1s",
            "transaction.check_interval": "1s",
            "reconcile.partitions": "2",
            "reconcile.trigger": "200ms",
            f"producers.{GROUP}.endpoints": json.dumps(list(self.endpoints)),
        }
        return [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]

    def settings(self) -> Settings:
        """The same for this process."""
        return load(None, self.overrides(self.options)[1::2], {**os.environ, **ENVIRON}).settings

    def audit(self) -> int:
        """`checkback audit`: its exit code."""
        return main(["audit", *self.overrides(self.options)])

    def published(self) -> Counter[int]:
        """How often each offset is published."""
        found: Counter[int] = Counter()
        for name in TOPICS:
            place = f"{self.root}/{name}"
            for file in DeltaLog(name, place).data_files() if DeltaLog.exists(place) else ():
                rows = pq.read_table(table_files.source(file.path), columns=["half_queue_offset"], partitioning=None)
                found.update(rows.column(0).to_pylist())
        return found

    def done(self) -> bool:
        """Is all that has landed published?"""
        rows = 0
        for name in TOPICS:
            place = f"{self.root}/{name}"
            rows += sum(file.rows or 0 for file in DeltaLog(name, place).data_files()) if DeltaLog.exists(place) else 0
        return rows >= self.landed

    def orphans(self) -> set[str]:
        """Files of topic tables that no commit names."""
        found = set()
        for name in TOPICS:
            place = f"{self.root}/{name}"
            there = {f"{place}/{file}" for file in table_files.names(place) if file.endswith(".parquet")}
            found |= there - {file.path for file in DeltaLog(name, place).data_files()}
        return found


def answers() -> dict[str, list[str]]:
    """The script of the producer that is asked."""
    names: list[str] = Load("")._ids(np.arange(0, _MOST, PENDING)).to_pylist()
    return {name: ["COMMIT"] for name in names}
