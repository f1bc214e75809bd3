"""A backlog of an outage: read in pieces, in a driver of 2 GB; nothing is checked whose op is there."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.load import COMMIT, Load
from benchmarks.processes import lake
from benchmarks.proof import prove
from benchmarks.report import report, say, scaled
from checkback.application.queries import reconcile
from checkback.errors import CheckbackError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

PENDING_EVERY = 1_000
MEMORY = "2g"


def bench(root: str) -> None:
    """20 million transactions have landed, one of a thousand without an op, and all are due for a check."""
    n = scaled(20_000_000, least=10_000) // PENDING_EVERY * PENDING_EVERY
    pending = n // PENDING_EVERY
    load = Load(root, body_bytes=16, pending_every=PENDING_EVERY)
    for first in range(0, n, COMMIT):
        load.land(first, min(COMMIT, n - first))
    say(f"backlog: {n} transactions have landed")
    due = {"timeout": "1ms", "check_interval": "10h"}
    with lake(root, spark={"spark.driver.memory": MEMORY}, transaction=due) as place:
        began = time.perf_counter()
        with _Peak() as peak:
            reconcile(place.spark, place.settings, available_now=True)
        seconds = time.perf_counter() - began
        checks = place.tables.read(place.spark, "check_requests").count()
        batches = place.tables.read(place.spark, "batches").count()
        prove(place, n - pending, pending)
    if checks != pending:
        raise CheckbackError(f"{checks} checks instead of {pending}", root, "the figure does not count")
    memory = {f"{name}_mb": round(size / 1024) for name, size in sorted(peak.kib.items())}
    report("backlog", n / seconds, "tx/s", 1, transactions=n, batches=batches, seconds=round(seconds, 1), **memory)


class _Peak:
    """Samples the memory of this process and of its children (proportional set size: what is shared counts once).

    ``kib``: the peak of each kind, and of all together.
    """

    def __init__(self) -> None:
        self.kib = Counter[str]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> _Peak:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(0.5):
            now = Counter[str]()
            for pid in _tree(os.getpid()):
                try:
                    command = Path(f"/proc/{pid}/comm").read_text()
                    pss = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
                except OSError:  # it has ended
                    continue
                kind = "java" if command.startswith("java") else "driver" if pid == os.getpid() else "workers"
                now[kind] += int(pss[1]) if pss else 0
            now["all"] = now.total()
            self.kib |= now


def _tree(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    try:
        children = [one for task in Path(f"/proc/{pid}/task").glob("*/children") for one in task.read_text().split()]
    except OSError:
        return
    for child in children:
        yield from _tree(int(child))
