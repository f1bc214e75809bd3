"""Everything goes on after retention: `reconcile`, gateway, `land`, a rebuild; nothing is published twice."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from checkback.settings import Settings
from checkback.storage.tables import Tables
from gateway.process import half, op
from release.lake import ARCHIVES, COMMITTED, IN_JOURNAL, LANDED, TOPIC, landed, unpacked
from support.aged import age
from support.rows import records_of

if TYPE_CHECKING:
    from pathlib import Path

    from release.lake import Lake

pytestmark = [pytest.mark.processes, pytest.mark.slow]
#: what the lake has that is not ended
_OPEN = {"open", "checked-1", "landed-open", "scheduled"}
_RETENTION = ["retention.history=30d", "transaction.max_age=72h", "maintain.min_files=2"]


def ids(lake: Lake, name: str) -> Counter[object]:
    return Counter(row["transaction_id"] for row in records_of(lake.root, name))


def maintained(lake: Lake) -> None:
    lake.settings = _RETENTION
    lake.run("maintain")
    lake.settings = []


def test_everything_goes_on_after_retention(tmp_path: Path) -> None:
    lake = unpacked(max(ARCHIVES.glob("release-*/lake.tar.gz")), tmp_path)
    tables = Tables.of(Settings.model_validate({"storage": {"root": str(lake.root)}}).storage)
    age(tables, timedelta(days=40))
    lake.run("rebuild")
    with lake.gateway() as gateway:  # commits what the killed one has left
        gateway.post("/v1/half", half("young"))
    lake.run("reconcile", "--available-now")
    published = ids(lake, f"topics/{TOPIC}")
    maintained(lake)
    lake.run("audit")
    left = ids(lake, "half")
    assert not left.keys() & {*COMMITTED, *LANDED, "rolled-back"}
    assert left.keys() >= _OPEN - {"scheduled"} | {"young", IN_JOURNAL}
    assert not ids(lake, "decisions").keys() & {*COMMITTED, *LANDED}
    assert ids(lake, f"topics/{TOPIC}") == published

    with lake.gateway() as gateway:
        late = gateway.post("/v1/op", op(0, COMMITTED[0]))
        assert (late.status_code, late.json()["code"]) == (404, "unknown_offset")
        assert "retention.history" in late.text
        new = gateway.post("/v1/half", half("new")).json()
        assert new["queue_offset"] > max(row["queue_offset"] for row in records_of(lake.root, "half"))
        assert gateway.post("/v1/op", op(new["queue_offset"], "new")).status_code == 200
    again, ops = landed(0, LANDED[0], "COMMIT")
    lake.land("again", again, ops)
    assert any("retention.history" in str(row["reason"]) for row in records_of(lake.root, "rejected"))
    lake.run("reconcile", "--available-now")
    once = published + Counter({"new": 1})
    assert ids(lake, f"topics/{TOPIC}") == once
    lake.run("audit")
    lake.run("rebuild")
    lake.run("reconcile", "--available-now")
    assert ids(lake, f"topics/{TOPIC}") == once
    lake.run("audit")
    maintained(lake)
    assert "removed by retention" in lake.run("tx", "describe", COMMITTED[0])
    rest = once - Counter(COMMITTED) - Counter(LANDED)  # these the group has had
    assert lake.consume(rest.total()) == sorted(map(str, rest.elements()))
