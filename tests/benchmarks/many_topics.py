"""A lake of ten thousand topics: commands and a gateway's start; and batches to a thousand of them."""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks.answer_tables import AnswerTables
from benchmarks.answers import run
from benchmarks.gateway_start import start
from benchmarks.load import Load
from benchmarks.processes import lake
from benchmarks.proof import prove
from benchmarks.report import report, rounded, say, scaled
from benchmarks.stepper import Stepper

TOPICS, ACTIVE = 10_000, 1_000
#: transactions of a batch to each of the active topics
EACH = 10
WARM_UP = 2
ROUNDS = 3
COMMANDS = {
    "audit": ("audit",),
    "status": ("status",),
    "list": ("topic", "list"),
    "describe": ("tx", "describe", "transaction-1"),
}


def bench(root: str) -> None:
    """Tables with a message in each topic, written by Arrow and delta-rs; then a checkpoint, and batches."""
    topics, active = scaled(TOPICS, least=20), scaled(ACTIVE, least=2)
    AnswerTables(root, topics, 0, topics=topics).make()
    say(f"many_topics: {topics} topics")
    subprocess.run([sys.executable, "-m", "checkback", "rebuild", "--set", f"storage.root={root}"], check=True)
    seconds = []
    with lake(root, transaction={"timeout": "6s"}) as place:
        load = Load(root, topics=active, queue_id=9, prefix="topic-")
        n = active * EACH
        with Stepper(place) as stepper:
            for number in range(WARM_UP + ROUNDS):
                seconds.append(stepper.step(lambda: load.land(number * n, n), published=n))  # noqa: B023 - called at once
                say(f"many_topics: {n} transactions to {active} topics in {seconds[-1]:.2f} s")
        prove(place, topics + n * len(seconds), 0)
    counted = seconds[WARM_UP:]
    report("many_topics_batch", statistics.median(counted), "s", ROUNDS, active=active, seconds=rounded(counted))
    for name, arguments in COMMANDS.items():
        runs = [run(root, {}, *arguments) for _ in range(ROUNDS)]
        _report(name, topics, [each.seconds for each in runs], max(each.memory for each in runs))
    starts = [start(root, "gateway.queues=[8]") for _ in range(ROUNDS)]
    _report("gateway", topics, [each.seconds for each in starts], max(each.peak for each in starts))


def _report(name: str, topics: int, seconds: list[float], peak_mb: float) -> None:
    value = statistics.median(seconds)
    say(f"many_topics {name}: {value:.2f} s, {peak_mb:.0f} MB")
    report(f"many_topics_{name}", value, "s", ROUNDS, topics=topics, seconds=rounded(seconds), peak_mb=round(peak_mb))
