"""Transactions of RocketMQ's own client for Java: half message, a local transaction that does nothing, commit."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from benchmarks.producers import BODY_BYTES
from benchmarks.report import report, rounded, say, scaled
from examples.bank.java_accounts import class_path, compiling_java
from gateway.process import PATIENCE_S, Gateway, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Path(__file__).with_name("RocketMQLoad.java")
TOPIC = "orders"
SECONDS = 10
WARM_UP = 1
ROUNDS = 3
THREADS = (1, 16, 64)
KILLS = 5


class Round(NamedTuple):
    """What the program says of a round."""

    transactions: int
    seconds: float
    p50_ms: float
    p99_ms: float


def load(root: str, endpoint: str, threads: int, seconds: float, number: int) -> list[Round]:
    """So many rounds, of a client at this endpoint."""
    with _program(root, endpoint, str(threads), str(seconds), str(number)) as program:
        assert program.stdout is not None
        lines = [line.split() for line in program.stdout]
        program.wait()
    if program.returncode or len(lines) < number:
        raise AssertionError(f"the client has ended with {program.returncode} after {len(lines)} rounds")
    return [Round(int(line[0]), *map(float, line[1:])) for line in lines]


def bench(root: str) -> None:
    """Rounds of 10 seconds of 1, 16 and 64 threads; then how soon another client is asked when one is killed."""
    settings = ("gateway.rocketmq.plain_port=0", "gateway.dedup_window=1m")
    for threads in THREADS:
        name = f"rocketmq_{threads}_threads"
        with Gateway(f"{root}/{name}", *settings) as gateway:
            found = load(root, _endpoint(gateway), threads, scaled(SECONDS, least=1), WARM_UP + ROUNDS)
        rates = [one.transactions / one.seconds for one in found]
        say(f"{name}: {rounded(rates)} tx/s")
        report(
            name,
            statistics.median(rates[WARM_UP:]),
            "tx/s",
            ROUNDS,
            p50_ms=round(statistics.median(one.p50_ms for one in found[WARM_UP:]), 2),
            p99_ms=round(statistics.median(one.p99_ms for one in found[WARM_UP:]), 1),
            body_bytes=BODY_BYTES,
            rounds=rounded(rates[WARM_UP:]),
        )
    gaps = _next_asked(root, settings)
    report("rocketmq_next_client_asked", statistics.median(gaps), "s", len(gaps), rounds=rounded(gaps))


def _next_asked(root: str, settings: tuple[str, ...]) -> list[float]:
    """Seconds from the end of the process that has sent a half message to the check that another one gets."""
    gaps = []
    with (
        Gateway(f"{root}/next", *settings, "gateway.acknowledge=table") as gateway,
        _program(root, _endpoint(gateway)) as other,
    ):
        _said(other.stdout, "ready")
        for number in range(scaled(KILLS, least=1)):
            with _program(root, _endpoint(gateway), "half") as sender:
                _said(sender.stdout, "ready")
                half = max(rows(gateway.root, "half"), key=lambda row: row["queue_offset"])
                sender.send_signal(signal.SIGKILL)
                ended = time.monotonic()
            named = ("transaction_id", "producer_group", "real_topic", "queue_id", "queue_offset")
            about = {name: half[name] for name in named} | {"check_times": 1, "properties": dict(half["properties"])}
            answer = gateway.session.post(f"{gateway.url}/v1/rocketmq/check", json=about, timeout=PATIENCE_S)
            assert answer.ok, answer.text
            _said(other.stdout, "asked")
            gaps.append(time.monotonic() - ended)
            say(f"rocketmq_next_client_asked {number}: {gaps[-1]:.3f} s")
    return gaps


def _endpoint(gateway: Gateway) -> str:
    return f"127.0.0.1:{gateway.ports['rocketmq_plain_port']}"


@contextmanager
def _program(root: str, endpoint: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    # The client writes its log into its home.
    java = [compiling_java(), f"-Duser.home={root}", "-cp", class_path(), os.fspath(PROGRAM)]
    command = [*java, endpoint, TOPIC, str(BODY_BYTES), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as program:
        try:
            yield program
        finally:
            program.kill()


def _said(stdout: IO[str] | None, word: str) -> None:
    assert stdout is not None
    for line in stdout:
        if line.strip() == word:
            return
    raise AssertionError(f"the client has ended, and not said {word}")


if __name__ == "__main__":
    # What a RocketMQ server takes: endpoint and threads.
    print(load(os.getcwd(), sys.argv[1], int(sys.argv[2]), SECONDS, WARM_UP + ROUNDS))
