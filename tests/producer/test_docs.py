"""The page's example runs as it is printed."""

from __future__ import annotations

import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from check.servers import request
from checkback.check.client import CheckClient
from checkback.check.endpoint import CheckedGroup
from checkback.producer import LocalTransactionState, Message, SendStatus, TransactionProducer
from producer.gateways import OK, REFUSED, StubGateway

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "producer.md"
ROLLBACK = LocalTransactionState.ROLLBACK
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture(autouse=True)
def _own_sigterm() -> Iterator[None]:
    """The page's program has a handler of its own."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_service_in_one_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    code = found.group(1)
    monkeypatch.setenv("ORDERS_SECRET", SECRET)
    monkeypatch.setenv("ORDERS_TOKEN", "token")
    names: dict[str, Any] = {"__name__": "example"}
    with StubGateway() as gateway:
        for printed, here in (("http://127.0.0.1:8900", gateway.url), ("port=8901", "port=0")):
            assert printed in code
            code = code.replace(printed, here)
        exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102 - the page's own code
        assert [op["state"] for op in gateway.ops] == ["COMMIT"]
    result = names["result"]
    assert result.send_status is SendStatus.SEND_OK
    # The listener on its own, asked by Checkback's client.
    app = names["check_app"]({"orders": names["orders"]}, secret=SECRET)
    with names["CheckServer"](app) as server, CheckClient({"orders": CheckedGroup((server.url,), SECRET)}, 5) as client:
        asked = replace(
            request(transaction_id=result.transaction_id), queue_id=result.queue_id, queue_offset=result.queue_offset
        )
        assert client.ask(asked).outcome == "COMMIT"
        assert client.ask(replace(asked, queue_offset=result.queue_offset + 1)).outcome == "ROLLBACK"
        assert client.ask(request(transaction_id="never seen", offset=8)).outcome == "ROLLBACK"
    assert (
        names["barrier"].check(replace(asked, transaction_id="never seen", queue_offset=8))
        is LocalTransactionState.ROLLBACK
    )


def test_several_messages_in_one_local_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are committed with the database, or none is: also if the last half message is refused, or the work fails."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORDERS_SECRET", SECRET)
    monkeypatch.setenv("ORDERS_TOKEN", "token")
    page = PAGE.read_text()
    service, several = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], page.partition("## Several messages")[2]
    found = re.search(r"```python\n(.*?)```", several, re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {"__name__": "example"}

    def run(code: str, gateway: StubGateway) -> None:
        here = code.replace("http://127.0.0.1:8900", gateway.url).replace("port=8901", "port=0")
        exec(compile(here, str(PAGE), "exec"), names)  # noqa: S102 - the page's own code

    with StubGateway() as gateway:
        run(service, gateway)
    with StubGateway() as gateway:
        run(found.group(1), gateway)
        assert [half["real_topic"] for half in gateway.halves] == ["payments", "receipts"]
        assert sorted((op["queue_offset"], op["state"]) for op in gateway.ops) == [(0, "COMMIT"), (1, "COMMIT")]
    with StubGateway() as gateway:  # the order is there already: the work fails
        run(found.group(1), gateway)
        assert [(op["queue_offset"], op["state"]) for op in gateway.ops] == [(0, "ROLLBACK")]
        (_, second) = gateway.halves
        lost = request(transaction_id=second["transaction_id"])
        assert names["several"].check_local_transaction(replace(lost, queue_id=3, queue_offset=1)) is ROLLBACK
    with StubGateway(halves=[OK, REFUSED]) as gateway:
        run(found.group(1).replace("4712", "4713"), gateway)
        assert [(op["queue_offset"], op["state"]) for op in gateway.ops] == [(0, "ROLLBACK")]


def test_messages_without_a_transaction() -> None:
    found = re.search(r"```python\n(.*?)```", (DOCS / "protocol.md").read_text(), re.DOTALL)
    assert found is not None
    with StubGateway() as gateway:
        code = found.group(1).replace("http://127.0.0.1:8900", gateway.url)
        names: dict[str, Any] = {"TOKEN": "token", "TransactionProducer": TransactionProducer, "Message": Message}
        exec(compile(code, "protocol.md", "exec"), names)  # noqa: S102 - the page's own code
        assert len(gateway.halves) == 2501
    assert [half.get("delay_level") for half in gateway.halves[:2]] == [3, None]
    assert [len(received.json.get("messages", [1])) for received in gateway.server.received] == [1, 1000, 1000, 500]
