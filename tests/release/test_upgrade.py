"""The lakes of the releases before, in the middle of their work, go on under this one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from gateway.process import half, op
from release.lake import ARCHIVES, CHECKED, COMMITTED, IN_JOURNAL, LANDED, SCHEDULED, TOPIC, answering, landed, unpacked
from support.rows import records_of

if TYPE_CHECKING:
    from pathlib import Path

_RELEASES = sorted(ARCHIVES.glob("release-*/lake.tar.gz"))


@pytest.mark.processes
@pytest.mark.parametrize("archive", _RELEASES, ids=lambda archive: archive.parent.name)
def test_lake_of_a_release_goes_on(archive: Path, tmp_path: Path) -> None:
    """Tables, checkpoints, journal and consumer group: each message is published once, and consumed once."""
    lake = unpacked(archive, tmp_path)
    before = [*COMMITTED, *LANDED, CHECKED[0]]
    assert sorted(row["transaction_id"] for row in records_of(lake.root, f"topics/{TOPIC}")) == sorted(before)
    halves = {row["transaction_id"]: row for row in records_of(lake.root, "half")}
    with lake.gateway() as gateway:
        assert gateway.post("/v1/op", op(halves["open"]["queue_offset"], "open")).status_code == 200
        refused = gateway.post("/v1/op", op(halves["rolled-back"]["queue_offset"], "rolled-back"))
        assert (refused.status_code, refused.json()["code"]) == (409, "contradiction")
        stored = gateway.post("/v1/half", half("new")).json()
        assert gateway.post("/v1/op", op(stored["queue_offset"], "new")).status_code == 200
    new, ops = landed(3, "landed-new", "COMMIT")
    lake.land("second", new, ops + landed(2, "landed-open", "COMMIT")[1])
    with answering(CHECKED) as url:
        for _ in range(3):  # the check is requested, answered and counted
            lake.run("reconcile", "--available-now", endpoint=url)
    after = ["open", "new", IN_JOURNAL, SCHEDULED, "landed-open", "landed-new", CHECKED[1]]
    published = records_of(lake.root, f"topics/{TOPIC}")
    assert Counter(row["transaction_id"] for row in published) == Counter(before + after)
    assert all(bytes(row["body"]) == f"body of {row['transaction_id']}".encode() for row in published)
    assert lake.consume(len(after) + 1) == sorted([CHECKED[0], *after])
    lake.run("audit")
    assert lake.run("tx", "list", "-o", "json") == ""
    lake.run("maintain")
    assert len(records_of(lake.root, f"topics/{TOPIC}")) == len(published)
