"""A task of the check query: check requests in, answers out, as Arrow batches."""

from __future__ import annotations

import os
import pickle
import tempfile
import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkback.check.circuit_breaker import Limits
from checkback.check.client import CheckClient
from checkback.check.endpoint_health import EndpointHealth
from checkback.check.fair_scheduler import CheckScheduler
from checkback.check.wire import SKIPPED, CheckAnswer, CheckRequest, Message
from checkback.messages.half import FIRST_PLACE, RESUMED_FROM, parse_place
from checkback.storage.arrow_streams import of_stream, to_stream
from checkback.storage.valid_texts import valid_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from checkback.check.endpoint import CheckedGroup
    from checkback.check.endpoint_health import Rate

    Ask = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

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
#: what a task returns: ANSWERS, and a last row with only what it learned (`EndpointHealth`)
RETURNED = ANSWERS.append(pa.field("health", pa.string()))
#: what a task returns: RETURNED, in any number of pieces
ANSWERS_SCHEMA = "answers BINARY"
_ANSWERS = pa.schema([("answers", pa.binary())])
#: the columns that are fields of CheckRequest, in their order, and those that are fields of CheckAnswer
_IDENTITY = ANSWERS.names[:6]
_ANSWER = [name for name in ANSWERS.names[6:] if name != "failed_tries"]
_TRY = ("endpoint", "error")
#: bytes of requests from which on a task's messages wait on disk: fair scheduling over groups needs all of its requests
_MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class CheckWorker:
    """Sends the checks of a partition with its own client, ``concurrency`` at a time.

    ``rates``: this task's share of the groups' rate limits. ``batch_time_s``: requests not sent by then are SKIPPED.
    ``health``: learned in earlier batches. ``resumed_queues``: those of resumed messages, whose requests have their
    messages: properties name the place that the producer knows. Serialised to the executors with the groups' secrets;
    its repr hides them.
    """

    groups: Mapping[str, CheckedGroup]
    timeout_s: float
    ca_file: str | None
    concurrency: int
    limits: Limits = field(default_factory=Limits)
    rates: Mapping[str, Rate] = field(default_factory=dict)
    batch_time_s: float = 30.0
    health: EndpointHealth = field(default_factory=EndpointHealth)
    resumed_queues: Collection[int] = ()

    def client(self) -> CheckClient:
        """A client for one task. Raises SettingsError if an endpoint, a secret or the CA file is invalid."""
        return CheckClient(
            self.groups,
            self.timeout_s,
            self.ca_file,
            limits=self.limits,
            breakers=self.health.breakers,
        )

    def ask(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row of RETURNED for each request, and one with what was learned.

        Columns of a request: those of `check_requests` up to check_times, born_ms, and message, a struct of tags,
        keys, properties and body, or null.
        """
        clock = _steady_clock()
        until = clock() + self.batch_time_s
        with self.client() as client, SpilledMessages() as spilled:
            requests = list(_requests_of(batches, self.resumed_queues, spilled))
            scheduler = CheckScheduler(requests, self.rates, self.health.paces, until)
            answered = client.ask_all(scheduler, self.concurrency, clock)
            answered += [(request, self._skipped(clock())) for request in scheduler.left()]
            learned = EndpointHealth(client.breakers(), scheduler.paces())
        if answered:
            yield _returned(answered)
        yield pa.RecordBatch.from_pylist([{"health": learned.to_json()}], schema=RETURNED)

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
    """Seconds since the epoch, by a monotonic clock: unaffected by clock changes during a batch."""
    ahead = time.time() - time.monotonic()
    return lambda: time.monotonic() + ahead


def _requests_of(
    batches: Iterable[pa.RecordBatch], resumed: Collection[int], spilled: SpilledMessages
) -> Iterator[CheckRequest]:
    """All requests; the messages beyond _MOST_BYTES are in ``spilled``."""
    size = 0
    for batch in batches:
        size += batch.nbytes
        for request in _requests(batch):
            placed = _with_first_place(request) if request.queue_id in resumed else request
            if size > _MOST_BYTES and isinstance(placed.message, Message):
                placed = replace(placed, message=spilled.add(placed.message))
            yield placed


def _requests(batch: pa.RecordBatch) -> Iterator[CheckRequest]:
    columns = [batch.column(name).to_pylist() for name in (*_IDENTITY, "born_ms")]
    messages = valid_texts(pa.table([batch.column("message")], ["message"])).column(0)
    if messages.null_count == len(messages):
        columns.append([None] * len(messages))  # to_pylist would convert each
    else:
        columns.append([_message(fields) for fields in messages.to_pylist()])
    return map(CheckRequest, *columns)


def _with_first_place(request: CheckRequest) -> CheckRequest:
    message = request.message
    properties = (message.properties if isinstance(message, Message) else None) or {}
    place = parse_place(properties.get(FIRST_PLACE) or properties.get(RESUMED_FROM) or "")
    return request if place is None else replace(request, first_place=place)


def _message(fields: dict[str, Any] | None) -> Message | None:
    if fields is None:
        return None
    return Message(fields["body"], fields["tags"], fields["keys"], _map(fields["properties"]))


def _map(pairs: list[tuple[str, str]] | None) -> dict[str, str] | None:
    return None if pairs is None else dict(pairs)  # an Arrow map is a list of pairs


def _returned(answered: Sequence[tuple[CheckRequest, CheckAnswer]]) -> pa.RecordBatch:
    """Rows of RETURNED, built by column: a dict for each would cost as much CPU as the check."""
    columns: dict[str, Sequence[Any]] = {
        name: [getattr(request, name) for request, _ in answered] for name in _IDENTITY
    }
    columns |= {name: [getattr(answer, name) for _, answer in answered] for name in _ANSWER}
    columns["failed_tries"] = [
        [dict(zip(_TRY, one, strict=True)) for one in answer.failed_tries] for _, answer in answered
    ]
    columns["health"] = [None] * len(answered)
    return pa.RecordBatch.from_pydict(columns, schema=RETURNED)


class SpilledMessages:
    """A temporary file of half messages that wait until their check is sent, gone with the process. Use as a context.

    Made with the first message: most tasks have none to spill.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._end = 0

    def __enter__(self) -> SpilledMessages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, message: Message) -> Callable[[], Message]:
        """Write the message. Returns what reads it again. Raises OSError if the disk is full."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="checkback-check-")  # noqa: SIM115 - closed by __exit__
        written = pickle.dumps((message.body, message.tags, message.keys, message.properties))
        at, self._end = self._end, self._end + len(written)
        self._file.write(written)
        return partial(_read, self._file, at, len(written))


def _read(file: IO[bytes], at: int, size: int) -> Message:
    file.flush()
    return Message(*pickle.loads(os.pread(file.fileno(), size, at)))  # noqa: S301 - its own, see add


def partition_requests(requests: pa.Table, tasks: int) -> list[bytes]:
    """``requests`` (CHECK_REQUESTS) partitioned over tasks as the input of CheckWorker, without messages."""
    born = pc.floor_temporal(requests.column("born_timestamp"), unit="millisecond")
    asked = requests.select(_IDENTITY).append_column("born_ms", born.cast(pa.timestamp("ms", "UTC")).cast(pa.int64()))
    asked = asked.append_column("message", pa.nulls(requests.num_rows))
    # Round-robin: the requests of a group are adjacent, and go to all tasks.
    shares = [asked.take(np.arange(task, asked.num_rows, tasks)) for task in range(min(tasks, asked.num_rows))]
    return [to_stream(share).to_pybytes() for share in shares]


def check_partitions(worker: CheckWorker, shares: Sequence[bytes]) -> Ask:
    """The function for mapInArrow from the numbers of the shares to ANSWERS_SCHEMA."""

    def ask(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mine = [shares[number] for batch in numbers for number in batch.column(0).to_pylist()]
        yield from check_rows(worker)(batch for share in mine for batch in of_stream(share).to_batches())

    return ask


def check_rows(worker: CheckWorker) -> Ask:
    """The function for mapInArrow from the input of CheckWorker to ANSWERS_SCHEMA."""

    def ask(requests: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for answers in worker.ask(requests):
            block = to_stream(pa.Table.from_batches([answers])).to_pybytes()
            yield pa.RecordBatch.from_pydict({"answers": [block]}, schema=_ANSWERS)

    return ask


def answers_of(rows: pa.Table) -> pa.Table:
    """Deserialise ANSWERS_SCHEMA to RETURNED."""
    return pa.concat_tables([RETURNED.empty_table(), *map(of_stream, rows.column("answers").to_pylist())])
