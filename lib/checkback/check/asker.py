"""Check requests in, answers out, as Arrow batches: what a task of the check query runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.check.client import CheckClient, Group
from checkback.check.exchange import CheckAnswer, CheckRequest, Message
from checkback.check.turns import ask_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

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
    ]
)
#: timeouts in a row that few threads wait for before they give an endpoint up
_PATIENCE = 8


@dataclass(frozen=True)
class Asker:
    """Asks for every row of a partition with a client and threads of its own.

    Sent to the executors with the groups' secrets in it; its repr does not show them.
    """

    groups: Mapping[str, Group]
    timeout_s: float
    ca_file: str | None
    threads: int

    def client(self) -> CheckClient:
        """A client for one task. Raises SettingsError when an endpoint, a secret or the CA file is not fit."""
        return CheckClient(
            self.groups,
            self.timeout_s,
            self.ca_file,
            connections=self.threads,
            give_up_after=max(self.threads, _PATIENCE),
        )

    def ask(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row of ANSWERS for each request.

        Columns of a request: those of `check_requests` up to check_times, born_ms, and message, a struct of tags,
        keys, properties and body, or null.
        """
        with self.client() as client:
            for batch in batches:
                answered = ask_all(client.ask, [_request(row) for row in batch.to_pylist()], self.threads)
                yield pa.RecordBatch.from_pylist([_row(*pair) for pair in answered], schema=ANSWERS)


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
    }
