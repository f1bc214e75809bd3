"""Rounds of random faults on a cluster, on tables in an object store, then in a shared folder: `make test-cluster`."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic, sleep

from cluster.lake import ENVIRON, Lake, answers
from cluster.submit import CLIENT, FOLDER, submit
from examples.producer import ExampleProducer
from support.s3_server import BUCKET, options, s3_server
from support.standalone_cluster import Cluster, Submitted, kill, kill_session, package, wait_for


@dataclass
class Job:
    """A driver in client mode, which is started again when it was killed."""

    cluster: Cluster
    lake: Lake
    heading: str
    log: Path
    driver: Submitted = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A driver."""
        self.log.write_text("")
        self.driver = submit(self.cluster, self.lake, self.log, self.heading)

    def _done(self) -> bool:
        assert self.driver.process.poll() is None, self.driver.said()
        return self.lake.done()

    def round(self, random: Random) -> str:
        """Transactions land, something dies, and all is published nevertheless; what died, and after how long."""
        faults: dict[str, Callable[[Random], object]] = {
            "executor": self._executor,
            "worker": self._worker,
            "driver": self._driver,
            "nothing, but an executor's Python stood still": self._pause,
        }
        fault = random.choice(sorted(faults))
        begun = monotonic()
        self.lake.land()
        sleep(random.uniform(0, 10))
        died = monotonic() - begun
        faults[fault](random)
        wait_for(self._done, self.driver.said)
        return f"{fault} after {died:.1f} s, all published {monotonic() - begun - died:.1f} s later"

    def _executor(self, random: Random) -> None:
        if executors := list(self.cluster.executors().values()):
            kill(random.choice(executors))

    def _worker(self, random: Random) -> None:
        kill_session(random.choice([worker for worker in self.cluster.workers if worker.poll() is None]))
        self.cluster.add_worker()

    def _driver(self, _: Random) -> None:
        kill_session(self.driver.process)
        self.start()

    def _pause(self, random: Random) -> None:
        executors = list(self.cluster.executors().values())
        workers = random.choice(executors)[1:] if executors else []
        _signal(workers, signal.SIGSTOP)
        try:
            wait_for(self._done, self.driver.said)
        finally:
            _signal(workers, signal.SIGCONT)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def rounds(lake: Lake, heading: str, number: int, random: Random) -> bool:
    """Is every promise kept?"""
    with tempfile.TemporaryDirectory(prefix="checkback-cluster-") as folder, Cluster(Path(folder), ENVIRON) as cluster:
        job = Job(cluster, lake, heading, Path(folder, "driver.log"))
        try:
            for count in range(1, number + 1):
                print(f"{lake.root}: round {count} of {number}: {job.round(random)}", flush=True)
        finally:
            kill_session(job.driver.process)
    published = lake.published()
    lost, doubled = lake.landed - len(published), sum(times > 1 for times in published.values())
    print(f"{lake.root}: {lake.landed} transactions, {lost} lost, {doubled} duplicated", flush=True)
    return not (lost or doubled or lake.audit())


def main() -> int:
    """0 = no promise was broken; 1 = some were."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster is killed then, too
    os.environ |= ENVIRON
    seed, number = int(os.environ.get("SEED") or 0) or Random().randrange(1, 10**6), int(os.environ.get("ROUNDS") or 25)
    print(f"run it again with: make test-cluster ROUNDS={number} SEED={seed}", flush=True)
    package()
    with ExitStack() as stack:
        producer = stack.enter_context(ExampleProducer(answers()))
        store = options(stack.enter_context(s3_server()))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="checkback-lake-"))
        lakes = [
            (Lake(f"s3://{BUCKET}/cluster", producer.endpoints, store, store), CLIENT),
            (Lake(folder, producer.endpoints), FOLDER),
        ]
        kept = [rounds(lake, heading, number, Random(seed)) for lake, heading in lakes]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
