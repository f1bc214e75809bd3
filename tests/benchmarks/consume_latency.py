"""From a producer's op to its consumer's listener: SDK, gateway, reconcile and PushConsumer, all running."""

from __future__ import annotations

import statistics
import threading
import time
from typing import TYPE_CHECKING

from benchmarks.application import Application
from benchmarks.report import p99, report, rounded, say, scaled
from checkback.consumer import ConsumeResult, PushConsumer
from checkback.errors import CheckbackError
from checkback.producer import LocalTransactionState, Message, TransactionListener, TransactionProducer
from gateway.process import Gateway

if TYPE_CHECKING:
    from checkback.consumer import MessageExt

_TOPIC, _PER_SECOND, _WARM_UP = "payments", 10, 50
#: reconcile.trigger, s: the default
_TRIGGER_S = 2.0


class _Committed(TransactionListener):
    """Local transactions that are done, and when."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}

    def execute_local_transaction(self, message: Message, _: object) -> LocalTransactionState:
        """COMMIT; the op is sent after this."""
        self.at[message.transaction_id] = time.monotonic()
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, _: object) -> LocalTransactionState:
        """It was committed."""
        return LocalTransactionState.COMMIT


def bench(root: str) -> None:
    """Ten transactions a second, one after the other; each one's time to the listener's call."""
    n = scaled(600, least=20)
    heard: dict[str, float] = {}
    done = threading.Event()

    def listen(message: MessageExt) -> ConsumeResult:
        heard[message.transaction_id or ""] = time.monotonic()
        if len(heard) >= n + _WARM_UP:
            done.set()
        return ConsumeResult.SUCCESS

    committed = _Committed()
    with (
        Application(root),
        Gateway(root) as gateway,
        PushConsumer("bench", root, listen).subscribe(_TOPIC),
        TransactionProducer("orders", gateway.url, committed) as producer,
    ):
        began = time.monotonic()
        for number in range(n + _WARM_UP):
            producer.send_in_transaction(Message(topic=_TOPIC, body=b"x" * 256, transaction_id=f"t-{number}"), None)
            time.sleep(max(0.0, began + (number + 1) / _PER_SECOND - time.monotonic()))
        if not done.wait(60):
            raise CheckbackError(f"{len(heard)} of {n + _WARM_UP} messages came")
    taken = sorted(heard[name] - committed.at[name] for name in list(committed.at)[_WARM_UP:])
    say(f"consume_latency: {statistics.median(taken):.2f} s, at most {taken[-1]:.2f} s")
    details = {"trigger_s": _TRIGGER_S, "per_second": _PER_SECOND}
    report("consume_latency_p50", statistics.median(taken), "s", len(taken), **details)
    report("consume_latency_p99", p99(taken), "s", len(taken), **details, worst=rounded(taken[-3:]))
