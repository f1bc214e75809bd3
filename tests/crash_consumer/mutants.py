"""Faults put into the consumer: rounds of kills must find every one. `python -m crash_consumer.mutants`.

Each runs some rounds with a copy of the library in which one line is wrong. By hand, because it takes minutes:

    PYTHONPATH=lib:tests .venv/bin/python -m crash_consumer.mutants     # or the beginning of a fault's name
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

_HERE = Path(__file__).parents[1]
_PATIENCE_S = 1800
_ROUNDS, _SECONDS = 4, 10


class Fault(NamedTuple):
    """File, as it stands, as it should not; and the rounds that find it, as KIND of `crash_consumer`."""

    file: str
    right: str
    wrong: str
    kind: str


FAULTS: dict[str, Fault] = {
    "a position is kept before the listener is called": Fault(
        "process_queue.py",
        "        return QueueState(self.consumed, retries,",
        "        return QueueState(self.fetched, retries,",
        "",
    ),
    "a queue is given back while its messages are consumed": Fault(
        "coordinator.py",
        "for queue, each in leaving.items() if each.lost or each.is_done(hand.paused)}",
        "for queue, each in leaving.items()}",
        "",
    ),
    "a failed message does not hold up its queue": Fault(
        "listener_threads.py",
        "else before.held_since)\n                return False\n",
        "else before.held_since)\n",
        "orderly",
    ),
    "retries are not kept": Fault(
        "process_queue.py",
        "        retries = tuple(self.retries.values())\n",
        "        retries = ()\n",
        "",
    ),
    "what was given up is consumed by the next owner": Fault(
        "process_queue.py",
        "        given_up = {letter.message for letter in dead.values()}\n",
        "        given_up: set[MessageKey] = set()\n",
        "threads=12",
    ),
    "dead letters are appended without a number": Fault(
        "dead_letters.py",
        "        log.commit(files, app, version)\n",
        "        log.commit(files)\n",
        "",
    ),
    "a position is kept by a transaction of its own": Fault(
        "listener_calls.py",
        "                self._keep(connection, queue, state)\n"
        "                self._succeed(queue, connection, outcome_of(self._listener, argument, connection))\n",
        "                reason = outcome_of(self._listener, argument, connection)\n"
        "                if reason is not None:\n"
        "                    raise _FailedError(reason)\n"
        "            with self._positions.engine.begin() as connection:\n"
        "                self._keep(connection, queue, state)\n",
        "exactly_once",
    ),
}


def found_by(fault: str) -> str | None:
    """What the first round says that finds the fault; None = it is not found."""
    found = FAULTS[fault]
    with tempfile.TemporaryDirectory(prefix="checkback-mutant-") as folder:
        shutil.copytree(_HERE.parent / "lib", folder, dirs_exist_ok=True)
        file = Path(folder, "checkback", "consumer", found.file)
        text = file.read_text(encoding="utf-8")
        if text.count(found.right) != 1:
            raise AssertionError(f"{found.file} has changed, and the mutant {fault!r} must, too")
        file.write_text(text.replace(found.right, found.wrong), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "crash_consumer"],
            cwd=_HERE.parent,
            env=os.environ
            | {"PYTHONPATH": f"{folder}:{_HERE}", "KIND": found.kind, "STOP": "1"}
            | {"ROUNDS": str(_ROUNDS), "SECONDS": str(_SECONDS)},
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    bad = [line for line in done.stdout.splitlines() if line.startswith("round ") and not line.endswith("faults: none")]
    assert bad or done.returncode == 0, done.stdout + done.stderr
    return bad[0] if bad else None


def main() -> int:
    """0 = every fault was found; 1 = some were not."""
    missed = 0
    for fault in [fault for fault in FAULTS if fault.startswith(tuple(sys.argv[1:]) or "")]:
        said = found_by(fault)
        missed += said is None
        print(f"{fault}: {'NOT FOUND' if said is None else 'found: ' + said}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
