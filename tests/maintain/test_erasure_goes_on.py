"""Everything goes on after an erasure: retries, ops, consumers, a rebuild; and no file has what was erased."""

from __future__ import annotations

import base64
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from gateway.process import half, op
from maintain.test_erasure import traces
from release.lake import ARCHIVES, COMMITTED, LANDED, SCHEDULED, TOPIC, unpacked
from support.rows import records_of

if TYPE_CHECKING:
    from pathlib import Path

    from release.lake import Lake

pytestmark = [pytest.mark.processes, pytest.mark.slow]
_SECRET = "customer-17"
_MESSAGE = {
    "keys": f"order {_SECRET}",
    "properties": {"customer": _SECRET},
    "body": base64.b64encode(_SECRET.encode() * 9).decode(),
}
_WHY = ("--actor", "ada", "--reason", "asked to be forgotten", "--yes", "--now")


def published(lake: Lake) -> Counter[object]:
    """The transactions in the topic."""
    return Counter(row["transaction_id"] for row in records_of(lake.root, f"topics/{TOPIC}"))


def test_everything_goes_on_after_an_erasure(tmp_path: Path) -> None:
    lake = unpacked(max(ARCHIVES.glob("release-*/lake.tar.gz")), tmp_path)
    with lake.gateway() as gateway:
        places = [gateway.post("/v1/half", half(name, **_MESSAGE)).json()["queue_offset"] for name in ("gone", "open")]
        assert gateway.post("/v1/op", op(places[0], "gone")).status_code == 200
    lake.run("reconcile", "--available-now")
    before = published(lake) | Counter([SCHEDULED])  # which comes due some time
    assert before["gone"] == 1
    lake.run("erase", "--key", _SECRET, "--cancel", *_WHY)
    lake.run("reconcile", "--available-now")
    lake.run("erase", "--key", _SECRET, *_WHY)
    assert traces(lake.root, _SECRET) == []
    assert published(lake) | Counter([SCHEDULED]) == before
    lake.run("audit")
    assert "ERASE by ada" in lake.run("tx", "describe", "gone")

    with lake.gateway() as gateway:
        again = gateway.post("/v1/half", half("gone", **_MESSAGE))
        assert (again.status_code, again.json()["queue_offset"]) == (200, places[0])
        assert gateway.post("/v1/op", op(places[0], "gone")).status_code == 200
        assert gateway.post("/v1/half", half("open", **_MESSAGE)).status_code == 409  # it was rolled back
    lake.run("reconcile", "--available-now")
    lake.run("rebuild")
    lake.run("reconcile", "--available-now")
    assert published(lake) | Counter([SCHEDULED]) == before
    assert traces(lake.root, _SECRET) == []
    lake.run("audit")
    rest = published(lake) - Counter(COMMITTED) - Counter(LANDED) - Counter(["gone"])  # some the group has had
    assert lake.consume(rest.total()) == sorted(map(str, rest.elements()))
