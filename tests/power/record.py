"""A run of the real gateway and the real reconcile, recorded: what they did to files, and what they promised."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from examples.producer import ExampleProducer
from gateway.process import Gateway, half, op
from power.disk import mark
from support.jvm import SHORT_LIVED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from examples.producer import Script

GROUP = "orders"
#: of a transaction, by its number modulo theirs: the op that its producer sends, and what it says when it is asked
FATES = (("COMMIT", "UNKNOWN"), ("ROLLBACK", "UNKNOWN"), (None, "COMMIT"), (None, "UNKNOWN"))
_PATIENCE_S = 300


def name(number: int) -> str:
    """The transaction id."""
    return f"t-{number}"


def script(number: int) -> Script:
    """What the producer answers to checks of so many transactions."""
    return {name(one): [FATES[one % len(FATES)][1]] for one in range(number)}


def overrides(root: Path, endpoints: list[str]) -> dict[str, Any]:
    """The settings of all that works on the tables."""
    return {
        "storage": {"root": str(root)},
        "transaction": {"timeout": "1s", "check_interval": "1s", "check_max": 3},
        "reconcile": {"trigger": "300ms", "partitions": 2, "segment_size": 16},
        "producers": {GROUP: {"endpoints": endpoints}},
        "spark": {
            "spark.master": "local[2]",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": SHORT_LIVED,
            # Snapshots of the state come soon.
            "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
            "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",
        },
    }


def compiled(folder: Path) -> Path | str:
    """The recorder, or why there is none."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        return "a C compiler and Linux are needed to record what processes do to files"
    library = folder / "recorder.so"
    line = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(Path(__file__).with_name("recorder.c"))]
    done = subprocess.run([*line, "-ldl", "-lpthread"], capture_output=True, text=True, check=False)
    return library if done.returncode == 0 else f"the recorder cannot be compiled: {done.stderr.partition(chr(10))[0]}"


@contextmanager
def recorded(library: Path, root: Path, journal: Path) -> Iterator[None]:
    """Inside, processes that are started are recorded."""
    names = {"LD_PRELOAD": str(library), "POWER_ROOT": str(root), "POWER_JOURNAL": str(journal)}
    before = {key: os.environ.get(key) for key in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


def record(
    library: Path, root: Path, journal: Path, transactions: int, reconciled: bool = True, sync: bool = True
) -> None:
    """Send transactions to a gateway, which is killed and started again halfway, while a `reconcile` decides them.

    The journal has a mark for each acknowledgement. ``reconciled``: False leaves `reconcile` out. ``sync``:
    storage.sync.
    """
    root.mkdir()
    journal.touch()
    with ExampleProducer(script(transactions)) as producer:
        config = journal.with_suffix(".yml")
        config.write_text(yaml.safe_dump(overrides(root, producer.endpoints)))
        with recorded(library, root, journal):
            process = _reconcile(config) if reconciled else None
            try:
                numbers = iter(range(transactions))
                for share in (0.1, 0.5, 1):
                    with _gateway(library, root, journal, sync) as gateway:
                        while (number := next(numbers, None)) is not None:
                            _send(gateway, journal, number)
                            if number + 1 >= share * transactions:
                                break
                            time.sleep(0.05)
                        if share == 0.5:
                            gateway.kill()
                    if process is not None and share == 0.1:
                        _until((root / "_checkpoints/reconcile/commits/1").exists, process)
                if process is not None:
                    _until(lambda: _drained(root, transactions), process)
            finally:
                if process is not None:
                    process.terminate()
                    process.wait(_PATIENCE_S)


def _reconcile(config: Path) -> subprocess.Popen[bytes]:
    line = [sys.executable, "-m", "checkback", "reconcile", "--config", str(config)]
    log = config.with_suffix(".log").open("wb")
    return subprocess.Popen(line, stdout=log, stderr=log, cwd=Path(__file__).parents[2])


@contextmanager
def _gateway(library: Path, root: Path, journal: Path, sync: bool) -> Iterator[Gateway]:
    with recorded(library, root, journal), Gateway(root, f"storage.sync={str(sync).lower()}") as gateway:
        yield gateway


def _send(gateway: Gateway, journal: Path, number: int) -> None:
    # Every third is large enough for the journal's files.
    body = base64.b64encode(b"%d " % number * ((1 << 16) if number % 3 == 0 else 1)).decode()
    answer = gateway.post("/v1/half", half(name(number), real_topic="ab"[number % 2], body=body)).json()
    offset = answer["queue_offset"]
    mark(journal, f"half {number} {offset}")
    state = FATES[number % len(FATES)][0]
    if state is not None:
        gateway.post("/v1/op", op(offset, name(number), state)).raise_for_status()
        mark(journal, f"op {number} {offset}")


def _drained(root: Path, transactions: int) -> bool:
    from crash.books import count

    return count(str(root), "decisions") >= transactions


def _until(true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not true():
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError("reconcile has ended, or does not come to an end: see its log beside the journal")
        time.sleep(0.2)
