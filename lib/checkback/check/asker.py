"""Check requests in, answers out, as Arrow batches: what a task of the check query runs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.check.breaker import Limits
from checkback.check.client import CheckClient
from checkback.check.exchange import SKIPPED, CheckAnswer, CheckRequest, Message
from checkback.check.traffic import Traffic
from checkback.check.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from checkback.check.endpoint import Group
    from checkback.check.pace import Rate

#: `check_answers` without its batch_id, as Arrow
ANSWERS = pa.schema(
    [
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("transaction_id", pa.string()),
        ("producer_group", pa.string()),
        ("real_topic", pa.string()),
        ("check_times", pa.int32()),
        ("endpoint", pa.string()),
        ("outcome", pa.string()),
        ("error", pa.string()),
        ("latency_ms", pa.int32()),
        ("answered_at", pa.timestamp("us", "UTC")),
        ("failed_tries", pa.list_(pa.struct([("endpoint", pa.string()), ("error", pa.string())]))),
        ("delivered", pa.bool_()),
    ]
)
#: what a task returns: ANSWERS, and one last row that has only what it learned (`Traffic`)
RETURNED = ANSWERS.append(pa.field("traffic", pa.string()))
#: bytes of requests that a task holds at once. All that wait must be known for groups to share the places; only
#: with bodies of messages among them it is more than this.
_MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class Asker:
    """Asks for every row of a partition with a client of its own, ``concurrency`` at the same time.

    ``rates``: this task's share of the groups' limits. ``batch_time_s``: what is not asked by then is SKIPPED.
    ``traffic``: what the batches before learned. Sent to the executors with the groups' secrets in it; its repr does
    not show them.
    """

    groups: Mapping[str, Group]
    timeout_s: float
    ca_file: str | None
    concurrency: int
    limits: Limits = field(default_factory=Limits)
    rates: Mapping[str, Rate] = field(default_factory=dict)
    batch_time_s: float = 30.0
    traffic: Traffic = field(default_factory=Traffic)

    def client(self) -> CheckClient:
        """A client for one task. Raises SettingsError when an endpoint, a secret or the CA file is not fit."""
        return CheckClient(
            self.groups,
            self.timeout_s,
            self.ca_file,
            limits=self.limits,
            breakers=self.traffic.breakers,
        )

    def ask(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row of RETURNED for each request, and one of what was learned.

        Columns of a request: those of `check_requests` up to check_times, born_ms, and message, a struct of tags,
        keys, properties and body, or null.
        """
        clock = _steady_clock()
        until, paces = clock() + self.batch_time_s, self.traffic.paces
        with self.client() as client:
            for requests in _portions(batches):
                turns = Turns(requests, self.rates, paces, until)
                answered = client.ask_all(turns, self.concurrency, clock)
                answered += [(request, self._skipped(clock())) for request in turns.left()]
                paces = turns.paces()
                yield pa.RecordBatch.from_pylist([_row(*pair) for pair in answered], schema=RETURNED)
            learned = Traffic(client.breakers(), paces)
        yield pa.RecordBatch.from_pylist([{"traffic": learned.to_json()}], schema=RETURNED)

    def _skipped(self, now: float) -> CheckAnswer:
        return CheckAnswer(
            outcome=SKIPPED,
            endpoint=None,
            error=f"not asked: the {self.batch_time_s:g} s of check.batch_time were over",
            latency_ms=0,
            answered_at=datetime.fromtimestamp(now, tz=timezone.utc),
            delivered=False,
        )


def _steady_clock() -> Callable[[], float]:
    """Seconds since the epoch, by a clock that nobody sets while a batch runs."""
    ahead = time.time() - time.monotonic()
    return lambda: time.monotonic() + ahead


def _portions(batches: Iterable[pa.RecordBatch]) -> Iterator[list[CheckRequest]]:
    """The requests, in as few lists as memory allows."""
    portion: list[CheckRequest] = []
    size = 0
    for batch in batches:
        portion += [_request(row) for row in batch.to_pylist()]
        size += batch.nbytes
        if size >= _MOST_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _request(row: dict[str, Any]) -> CheckRequest:
    message = row["message"]
    return CheckRequest(
        queue_id=row["queue_id"],
        queue_offset=row["queue_offset"],
        transaction_id=row["transaction_id"],
        producer_group=row["producer_group"],
        real_topic=row["real_topic"],
        check_times=row["check_times"],
        born_timestamp=row["born_ms"],
        message=message and Message(message["body"], message["tags"], message["keys"], _map(message["properties"])),
    )


def _map(pairs: list[tuple[str, str]] | None) -> dict[str, str] | None:
    return None if pairs is None else dict(pairs)  # an Arrow map is a list of pairs


def _row(request: CheckRequest, answer: CheckAnswer) -> dict[str, Any]:
    return {
        "queue_id": request.queue_id,
        "queue_offset": request.queue_offset,
        "transaction_id": request.transaction_id,
        "producer_group": request.producer_group,
        "real_topic": request.real_topic,
        "check_times": request.check_times,
        "endpoint": answer.endpoint,
        "outcome": answer.outcome,
        "error": answer.error,
        "latency_ms": answer.latency_ms,
        "answered_at": answer.answered_at,
        "failed_tries": [{"endpoint": endpoint, "error": error} for endpoint, error in answer.failed_tries],
        "delivered": answer.delivered,
    }
