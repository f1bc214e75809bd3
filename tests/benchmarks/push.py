"""How many messages a second `checkback push` posts to a receiver that answers at once: alone, and in batches."""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.consume import publish
from benchmarks.report import report, rounded, say, scaled
from check.quick_endpoint import NOTHING, endpoint
from checkback.errors import CheckbackError
from checkback.push.pushed_group import PushedGroup
from checkback.settings import Settings, Storage
from checkback.storage.tables import Tables
from consumer.published import Published

_ROUNDS = 3
_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
#: name of the figure, what the group sets, messages as a share of all
_KINDS: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("push", {"secret": _SECRET}, 1.0),
    ("push_orderly", {"secret": _SECRET, "orderly": True}, 1.0),
    ("push_batch", {"secret": _SECRET, "batch": 100}, 5.0),
)


def bench(root: str) -> None:
    """Signed messages of 256 B in 8 queues; each round a group of its own, in this process, the receiver in another."""
    n = scaled(20_000, least=500)
    for name, about, share in _KINDS:
        place, count = f"{root}/{name}", round(n * share)
        publish(Published(Tables.of(Storage(root=place))), count)
        with endpoint(1, NOTHING) as url:
            groups = [f"{name}-{number}" for number in range(_ROUNDS)]
            seconds = [_round(place, group, {"topic": "payments", "url": url, **about}, count) for group in groups]
        rate = count / statistics.median(seconds)
        say(f"{name}: {rate:,.0f} messages/s")
        report(name, rate, "messages/s", _ROUNDS, messages=count, seconds=rounded(seconds))


def _round(root: str, name: str, about: dict[str, Any], count: int) -> float:
    """Seconds from the start to the last message."""
    group = PushedGroup(name, Settings.model_validate({"storage": {"root": root}, "push": {name: about}}))
    began = time.perf_counter()
    group.start()
    try:
        while group.consumer.consumed < count:
            if time.perf_counter() - began > 600 or group.consumer.failed:
                raise CheckbackError(f"{group.consumer.consumed} of {count} messages were taken")
            time.sleep(0.01)
        return time.perf_counter() - began
    finally:
        group.close()
