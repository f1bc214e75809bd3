"""What the gateway reads of `op` beside its own rows."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.deltalog import DeltaLog
from checkback.files import FileWriter
from checkback.gateway.older import Ended, Older
from checkback.schemas import arrow_schema

if TYPE_CHECKING:
    from pathlib import Path

T0 = datetime(2026, 3, 1, tzinfo=timezone.utc)


def test_check_that_reached_nobody_ends_no_transaction(tmp_path: Path) -> None:
    """An UNDELIVERED row is no op of the half: it neither ends it nor hides the op after it."""
    said = [(0, "UNDELIVERED"), (1, "UNDELIVERED"), (1, "COMMIT")]
    rows = [
        {"queue_id": 0, "half_offset": offset, "state": state, "source": "check"}
        | {"born_timestamp": T0, "store_timestamp": T0 + timedelta(seconds=number)}
        for number, (offset, state) in enumerate(said)
    ]
    place = f"{tmp_path}/op"
    DeltaLog.create("op", place)
    with FileWriter(str(tmp_path)) as writer:
        writer.write("op", pa.Table.from_pylist(rows, schema=arrow_schema("op")))
        files = writer.close()
    DeltaLog("op", place).commit(files)
    assert Older(str(tmp_path)).ended([(0, 0), (0, 1)]) == {(0, 1): Ended("COMMIT")}
