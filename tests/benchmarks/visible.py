"""When rows became visible: the versions of tables as they appear, and which rows each has brought."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq

from checkback.storage.log.commit_reader import read_actions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from benchmarks.load import Offsets

_POLL_S = 0.02


class Visible:
    """Notes when each new version of some tables is first seen. Use as a context; a table may come later.

    Times are those of time.monotonic. What is there at the beginning is left out.
    """

    def __init__(self, root: str, names: Sequence[str]) -> None:
        self._root = root
        self._next = dict.fromkeys(names, 0)
        self._seen: dict[str, dict[int, float]] = {name: {} for name in names}
        self._counts: list[tuple[float, int]] = []
        self._look(0.0)
        self._counts.clear()
        for versions in self._seen.values():
            versions.clear()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Visible:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    @property
    def count(self) -> int:
        """Rows that have come."""
        return sum(rows for _, rows in self._counts)

    def come(self, begin: float, end: float) -> int:
        """Rows whose version was first seen between two times."""
        return sum(rows for at, rows in self._counts if begin <= at < end)

    def rows(self, column: str, queue_column: str, queue_id: int) -> tuple[Offsets, NDArray[np.float64]]:
        """Of all rows of a half queue that have come: their offsets in a ``column``, and when each was seen."""
        offsets, times = [np.empty(0, np.int64)], [np.empty(0)]
        for name, versions in self._seen.items():
            place = f"{self._root}/{name}"
            for version, at in list(versions.items()):
                for file in read_actions(place, version, "add"):
                    wanted = [(queue_column, "=", queue_id)]
                    found = pq.read_table(
                        f"{place}/{file['path']}", columns=[column], filters=wanted, partitioning=None
                    )
                    offsets.append(found.column(column).to_numpy())
                    times.append(np.full(found.num_rows, at))
        return np.concatenate(offsets), np.concatenate(times)

    def _watch(self) -> None:
        while not self._ending.wait(_POLL_S):
            self._look(time.monotonic())

    def _look(self, now: float) -> None:
        for name in self._next:
            while os.path.exists(f"{self._root}/{name}/_delta_log/{self._next[name]:020}.json"):
                self._seen[name][self._next[name]] = now
                files = read_actions(f"{self._root}/{name}", self._next[name], "add")
                self._counts.append((now, sum(json.loads(file["stats"])["numRecords"] for file in files)))
                self._next[name] += 1
