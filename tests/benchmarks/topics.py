"""What a further topic costs: one batch to 1, 16 and 128 topics."""

from __future__ import annotations

import statistics

from benchmarks.load import Load
from benchmarks.processes import lake
from benchmarks.proof import prove
from benchmarks.report import report, rounded, say, scaled
from benchmarks.stepper import Stepper
from checkback.storage.schemas import TOPIC_PREFIX

TOPICS = (1, 16, 128)
WARM_UP = 2
ROUNDS = 3


def bench(root: str) -> None:
    """Batches of 128,000 transactions to so many topics in turn; their tables are made before."""
    n = scaled(128_000, least=TOPICS[-1])
    seconds: dict[int, list[float]] = {topics: [] for topics in TOPICS}
    with lake(root) as place:
        place.tables.create(place.spark, *(f"{TOPIC_PREFIX}topic_{topic}" for topic in range(TOPICS[-1])))
        loads = {topics: Load(root, topics=topics, queue_id=topics) for topics in TOPICS}
        with Stepper(place) as stepper:
            for number in range(WARM_UP + ROUNDS):
                for topics, load in loads.items():
                    taken = stepper.step(lambda: load.land(number * n, n), published=n)  # noqa: B023 - called at once
                    seconds[topics].append(taken)
                    say(f"topics: {n} transactions to {topics} in {taken:.2f} s")
        prove(place, n * len(TOPICS) * (WARM_UP + ROUNDS), 0)
    counted = {topics: each[WARM_UP:] for topics, each in seconds.items()}
    one, *_, most = (statistics.median(counted[topics]) for topics in TOPICS)
    report(
        "topics",
        (most - one) / (TOPICS[-1] - TOPICS[0]) * 1000,
        "ms per further topic",
        ROUNDS,
        batch=n,
        seconds={str(topics): rounded(each) for topics, each in counted.items()},
    )
