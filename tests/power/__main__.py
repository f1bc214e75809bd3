"""Power cuts: `make test-power`. One run is recorded, then cut at many moments; after each, all is started again."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from checkback.query.answers import Answers
from checkback.settings import Settings
from checkback.spark.session import running_session
from examples.producer import ExampleProducer
from power.disk import Disk, read_journal
from power.record import compiled, overrides, record, script
from power.restart import moments, restart

_TRANSACTIONS = 60
#: `audit` reads all with Spark: after every so many cuts
_AUDIT = 5


def main() -> int:
    """0 = nothing that was acknowledged was lost, nothing is twice; 1 = something is."""
    seed = int(os.environ.get("SEED") or 0) or Random().randrange(1, 10**6)
    rounds = int(os.environ.get("ROUNDS") or 200)
    print(f"run it again with: make test-power ROUNDS={rounds} SEED={seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="checkback-power-") as folder:
        return _run(Path(folder), rounds, Random(seed))


def _run(folder: Path, rounds: int, random: Random) -> int:
    library = compiled(folder)
    if isinstance(library, str):
        print(library, file=sys.stderr)
        return 2
    root, journal = folder / "tables", folder / "journal"
    began = time.monotonic()
    record(library, root, journal, _TRANSACTIONS)
    notes = read_journal(journal)
    disk = Disk(str(root))
    for note in notes:
        if note.kind != "!":
            disk.apply(note)
    seen = disk.whole()
    missed = [
        path
        for path in root.rglob("*")
        if path.is_file() and seen.get(f"/{path.relative_to(root)}") != path.read_bytes()
    ]
    print(f"recorded {len(notes)} deeds in {time.monotonic() - began:.0f} s, {len(missed)} files not seen", flush=True)
    faults = [f"the recorder has not seen {path}" for path in missed[:5]]
    logging.getLogger("checkback").setLevel(logging.ERROR)
    rebuilt = 0
    with ExampleProducer(script(_TRANSACTIONS)) as producer:
        settings = Settings.model_validate(overrides(root, producer.endpoints))
        with running_session(settings, "checkback-power") as spark:
            spark.sparkContext.setLogLevel("OFF")
            for number, (moment, promised) in enumerate(moments(notes, root, rounds, random), 1):
                outcome = restart(settings, moment, promised, random, spark)
                if number % _AUDIT == 0 and not outcome.faults and Answers(settings, spark).audit().broken:
                    outcome.faults.append("audit says that a promise is broken")
                rebuilt += outcome.rebuilt
                faults += [f"cut at {moment}: {fault}" for fault in outcome.faults]
                if outcome.faults or number % 20 == 0:
                    told = "; ".join(outcome.faults[:3]) or "all is kept"
                    print(f"{number} of {rounds}, cut at {moment}: {told}", flush=True)
    print(f"{rounds} power cuts, {rebuilt} times `checkback rebuild` was needed, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
