"""Faults put into the adapters that write the tables: the crash tests must find every one. `python -m crash.mutants`.

Each runs the tests with a copy of the library in which one line is wrong. By hand, because it takes minutes:

    PYTHONPATH=lib:tests .venv/bin/python -m crash.mutants            # or the beginning of a fault's name
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_HERE = Path(__file__).parents[1]
_TESTS = (
    "tests/crash/test_points.py",
    "tests/crash/test_storage.py",
    "tests/reconcile/test_batch_rules.py",
    "tests/reconcile/test_topic_tables.py",
)
_PATIENCE_S = 1800
#: what is wrong -> (file, as it stands, as it should not)
FAULTS: dict[str, tuple[str, str, str]] = {
    "a commit's version is ignored": (
        "storage/log/delta_log.py",
        "        elif self.has(app, version):\n            return False\n",
        "        self._update()\n",
    ),
    "a batch done again is another application": (
        "reconcile/publish/batch_writers.py",
        "name, files, app, wanted.batch_id, plan)",
        'name, files, f"{app}/{id(self)}", wanted.batch_id, plan)',
    ),
    "ops of checks are fresh answers, not the recorded ones": (
        "check/query.py",
        "            answers = self._answered(spark, requests, app, batch_id)\n",
        "            answers = self._answered(spark, requests, app, batch_id).slice(0, 0)\n",
    ),
    "rejected is written again": (
        "reconcile/publish/publisher.py",
        '"rejected", name, batch_id, plan)',
        '"rejected")',
    ),
    "a commit that fails is not noticed": (
        "reconcile/publish/topic_tables.py",
        "        return list(pool.map(work, names))\n",
        "        pool.map(work, names)\n        return [None for _ in names]  # type: ignore[misc]\n",
    ),
    "messages of a topic that waits are published": (
        "reconcile/publish/unpublished.py",
        '        return unfit(topic) or self.waiting.get(topic or "")\n',
        "        return unfit(topic)\n",
    ),
    "unpublished is written again": (
        "reconcile/publish/batch_writers.py",
        "        self._commit(unpublished.TABLE, self._unpublished)\n",
        "        self._half.tables.commit(self._half.spark, unpublished.TABLE, self._unpublished)\n",
    ),
    "what a rebuild cannot publish is forgotten": (
        "reconcile/lost_checkpoint/batch_recovery.py",
        "        if waiting:\n",
        "        if not rows:\n",
    ),
    "a batch that was begun is finished by the settings of today": (
        "reconcile/checkpointed_rules.py",
        "        return None if found.decides_like(now) else found\n",
        "        return None\n",
    ),
    "the state of a batch that is decided anew is left": (
        "reconcile/checkpointed_rules.py",
        "    forget_state(spark, place, newest.batch_id)\n",
        "",
    ),
    "a batch is concluded before it is written": (
        "reconcile/publish/publisher.py",
        "        # Step 3\n        rejected = ",
        "        self._conclude(spark, actions, batch_id, app, Written())\n        rejected = ",
    ),
    "a rebuild does not finish what is half done": (
        "application/rebuild.py",
        "    finished = finish(spark, tables, interrupted, deleted, changing)\n",
        "    finished: dict[str, int] = {}\n",
    ),
    "a rebuild forgets ops that no batch has dealt with": (
        "application/rebuild.py",
        ".unionByName(_ops(read))\n",
        "\n",
    ),
}


def found_by(fault: str) -> str | None:
    """The first test that fails with this fault; None = it is not found."""
    name, right, wrong = FAULTS[fault]
    with tempfile.TemporaryDirectory(prefix="checkback-mutant-") as folder:
        shutil.copytree(_HERE.parent / "lib", folder, dirs_exist_ok=True)
        file = Path(folder, "checkback", name)
        text = file.read_text(encoding="utf-8")
        if text.count(right) != 1:
            raise AssertionError(f"{name} has changed, and the mutant {fault!r} must, too")
        file.write_text(text.replace(right, wrong), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-rfE", *_TESTS],
            cwd=_HERE.parent,
            env=os.environ | {"PYTHONPATH": folder, "CHECKBACK_SLOW": "1"},
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    failed = re.search(r"^(?:FAILED|ERROR) (tests/.*)", done.stdout, re.MULTILINE)
    assert failed or done.returncode == 0, done.stdout + done.stderr
    return failed.group(1) if failed else None


def main() -> int:
    """0 = every fault was found; 1 = some were not."""
    wanted = [fault for fault in FAULTS if fault.startswith(tuple(sys.argv[1:]) or "")]
    missed = 0
    for fault in wanted:
        test = found_by(fault)
        missed += test is None
        print(f"{fault}: {'NOT FOUND' if test is None else 'found by ' + test}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
