"""`make bench`: prints one JSON line per figure: name, value, unit, n, details, machine, versions.

`make bench NAME=catch_up` runs one, `SCALE=0.01 make bench` everything a hundredth as large, to see that it runs.
Nothing else should run on the machine meanwhile. Exit code 1: what a benchmark has made is not right.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

# the tests, and the examples whose S3 server they share
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from checkback.errors import CheckbackError

#: files beside this one
BENCHES = (
    "catch_up",
    "backlog",
    "land_table",
    "where",
    "flat_state",
    "steady_latency",
    "check_storm",
    "scheduled",
    "delay_storm",
    "lateness",
    "dispatch",
    "end_to_end",
    "idle",
    "start_up",
    "rebuild",
    "topics",
    "many_topics",
    "scale",
    "gateway",
    "gateway_start",
    "sdk",
    "rocketmq",
    "sdk_failover",
    "sdk_latency",
    "sync",
    "maintain",
    "object_store",
    "beside_folder",
    "catalog",
    "consume",
    "consume_latency",
    "push",
    "what_if",
    "answers",
    "aged",
)


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all: each in a process of its own, so that none warms another."""
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        print(f"bench: there is no {unknown[0]}; one of {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    if len(names) != 1:
        runs = [subprocess.run([sys.executable, __file__, name], check=False) for name in names or BENCHES]
        return max(run.returncode for run in runs)
    with tempfile.TemporaryDirectory(prefix="checkback-bench-") as root:
        try:
            import_module(f"benchmarks.{names[0]}").bench(root)
        except CheckbackError as error:
            print(f"bench: {names[0]}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    # Told to end, it ends what it has started and removes what it has made.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main(sys.argv[1:]))
