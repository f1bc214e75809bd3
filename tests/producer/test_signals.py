"""A signal's handler that sends, flushes or closes, and Ctrl-C, at each line of the SDK that sends a transaction."""

from __future__ import annotations

import linecache
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checkback import producer as sdk
from checkback.producer import LocalTransactionState, RetryPolicy, SendStatus, TransactionProducer
from checkback.producer.calls import HALVES
from checkback.producer.senders import _RUNNING
from consumer.heard import until
from producer.sending import Listener, message

if TYPE_CHECKING:
    from collections.abc import Callable

    from producer.gateways import StubGateway

_SDK = str(Path(sdk.__file__).parent)
#: what holds locks, starts threads, waits, and hands over
_FUNCTIONS = frozenset({"_post", "add", "_start", "let_go", "wait", "_end", "hand_over"})


class _Interrupt:
    """Calls ``handler`` once, before the ``number``-th line of these functions; ``done``: there was such a line."""

    def __init__(self, number: int, handler: Callable[[], object]) -> None:
        self.left, self.handler, self.done = number, handler, False

    def __enter__(self) -> _Interrupt:
        self.before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    def _called(self, frame: Any, _: str, __: Any) -> Any:
        known = frame.f_code.co_name in _FUNCTIONS and frame.f_code.co_filename.startswith(_SDK)
        return self._line if known else None

    def _line(self, frame: Any, event: str, _: Any) -> Any:
        # The end of a with statement is such a line, too; no signal's handler comes between it and the lock's release.
        if event == "line" and not linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith(
            "with "
        ):
            if not self.left and not self.done:
                self.done = True
                self.handler()
            self.left -= 1
        return self._line


@pytest.mark.slow
@pytest.mark.parametrize("does", ["sends", "flushes", "closes", "raises"])
@pytest.mark.parametrize("first", [True, False])
def test_signal_at_each_line(gateway: StubGateway, does: str, first: bool) -> None:
    """Nobody waits in vain, and what is sent before and after lands; ``first``: the transaction starts the threads."""
    retry_policy = RetryPolicy(timeout=timedelta(seconds=20), total_timeout=timedelta(seconds=20))
    for number in range(1000):
        producer = TransactionProducer(
            "orders", gateway.url, Listener(lambda *_: LocalTransactionState.COMMIT), retry_policy=retry_policy
        )
        if not first:
            assert producer.send_in_transaction(message(0)).op_sent
            assert producer.flush()

        def handle(number: int = number, producer: TransactionProducer = producer) -> None:
            if does == "sends":
                assert producer.send_in_transaction(message(1_000 + number)).op_sent
            elif does == "flushes":
                producer.flush()
            elif does == "closes":
                producer.close()
            else:
                raise KeyboardInterrupt

        began = time.monotonic()
        with suppress(KeyboardInterrupt), _Interrupt(number, handle) as interrupt:
            producer.send_in_transaction(message(number))
        if does != "closes":
            assert producer.send_in_transaction(message(2_000 + number)).op_sent
            assert producer.flush(), number
        producer.close()
        until(lambda producer=producer: producer._senders not in _RUNNING)  # type: ignore[misc]
        assert time.monotonic() < began + 10, number
        if not interrupt.done:
            break
    assert 20 < number < 1000
    if does != "closes":
        assert {f"t{2_000 + each}" for each in range(number)} < {op["transaction_id"] for op in gateway.ops}


def test_handler_sends_in_the_request_of_the_call_that_it_interrupts(gateway: StubGateway) -> None:
    """It keeps the main thread, which therefore wakes neither it nor those behind."""
    assert threading.current_thread() is threading.main_thread()
    gateway.takes_halves.clear()
    results: dict[int, Any] = {}
    producer = TransactionProducer("orders", gateway.url, Listener(lambda *_: LocalTransactionState.COMMIT))
    waiting = producer._senders._calls[HALVES].waiting

    def send(number: int) -> None:
        results[number] = producer.send_in_transaction(message(number))

    def go_on() -> None:
        until(lambda: len(waiting) == 1)
        os.kill(os.getpid(), signal.SIGUSR1)
        until(lambda: len(waiting) == 2)
        behind.start()
        until(lambda: len(waiting) == 3)
        gateway.takes_halves.set()

    before = signal.signal(signal.SIGUSR1, lambda *_: send(2))
    behind = threading.Thread(target=send, args=(3,))
    others = [threading.Thread(target=send, args=(0,)), threading.Thread(target=go_on)]
    try:
        others[0].start()
        gateway.until("/v1/halves", 1)
        others[1].start()
        send(1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    for thread in (*others, behind):
        thread.join(20)
    producer.close()
    assert [results[number].send_status for number in range(4)] == [SendStatus.SEND_OK] * 4
