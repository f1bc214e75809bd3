"""From CloudEvents' SDK through gateway, `reconcile` and `checkback push` to the SDK: the same events."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent

from check.servers import Server, always
from consumer.heard import until
from gateway.process import Gateway
from push.test_push_command import Pushing
from push.test_pushed_group import OK, events

if TYPE_CHECKING:
    from pathlib import Path

_WHERE = "real_topic=payments&producer_group=orders"


def _event(name: str, kind: str, data: Any, **more: Any) -> CloudEvent:
    about = {"id": name, "source": "urn:shop:7", "type": "com.example.paid", "subject": f"carts/{name} ä"}
    time = datetime(2026, 11, 20, 15, 0, 0, 123456, tzinfo=timezone.utc)
    return CloudEvent({**about, "time": time, "datacontenttype": kind, **more}, data)


SENT = {
    "json": _event("json", "application/json", {"amount": 42}, partitionkey="customer-7", region="e u"),
    "text": _event("text", "text/plain", "zwölf", dataschema="https://shop.example.com/text"),
    "bytes": _event("bytes", "application/octet-stream", b"\x00\xff"),
}


@pytest.mark.spark
@pytest.mark.processes
def test_the_same_events_arrive(tmp_path: Path) -> None:
    """One as a half message that is committed, one without a transaction, one in a batch; in both modes."""
    root = tmp_path / "lake"
    with Gateway(root) as gateway:

        def post(path: str, message: HTTPMessage) -> dict[str, Any]:
            url = f"{gateway.url}{path}?{_WHERE}"
            answer = gateway.session.post(url, data=message.body, headers=message.headers, timeout=30)
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            return found

        stored = post("/v1/half", to_binary_event(SENT["json"]))
        op = {"producer_group": "orders", "state": "COMMIT", **stored}
        assert gateway.post("/v1/op", op).status_code == 200
        post("/v1/message", to_structured_event(SENT["text"]))
        one = json.loads(to_structured_event(SENT["bytes"]).body)
        post(
            "/v1/message",
            HTTPMessage({"content-type": "application/cloudevents-batch+json"}, json.dumps([one]).encode()),
        )
    command = [sys.executable, "-m", "checkback", "reconcile", "--available-now", "--set", f"storage.root={root}"]
    subprocess.run(command, check=True, capture_output=True)
    for mode in ("binary", "structured"):
        with Server(always(OK)) as server, Pushing(str(root), mode, "payments", "--url", server.url, "--mode", mode):
            until(lambda server=server: len(server.received) == len(SENT))  # type: ignore[misc]
        arrived = {event.get_id(): event for event in events(server.received)}
        for name, event in SENT.items():
            assert arrived[name].get_attributes() == event.get_attributes()
            assert arrived[name].get_data() == event.get_data()
