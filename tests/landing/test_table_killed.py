"""kill -9 of `land --table` at every commit of a batch: no row is lost, none lands twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from checkback.landing.drained_tables import all_landed
from checkback.settings import Storage
from checkback.storage.tables import Tables
from support.jvm import SHORT_LIVED
from support.s3_server import BUCKET, options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.jars import Jars

#: one after the other, on the same batch: each is met by what those before it have left
_POINTS = [("before", "rejected"), ("after", "rejected"), ("before", "half"), ("after", "half"), ("never", "half")]


def _append(outbox: Path | str, numbers: Iterable[int], options: dict[str, str] | None = None) -> None:
    rows = [
        {
            "id": f"e{number}",
            "aggregatetype": "orders" if number % 10 else "or ders",
            "aggregateid": f"a{number % 3}",
            "payload": f"body {number} " + "x" * 100,
            "timestamp": datetime.fromtimestamp(1_700_000_000 + number, timezone.utc),
        }
        for number in numbers
    ]
    write_deltalake(str(outbox), pa.Table.from_pylist(rows), mode="append", storage_options=options)


def _land(
    root: Path | str, outbox: Path | str, when: str, table: str, store: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    settings = (
        f"storage.root={root}",
        "spark.master=local[2]",
        f"spark.driver.extraJavaOptions={SHORT_LIVED}",
        "spark.sql.codegen.wholeStage=false",
    )
    options = [part for setting in settings for part in ("--set", setting)]
    land = ["land", "--table", "--outbox", str(outbox), "--available-now", *options]
    return subprocess.run(
        [sys.executable, "-m", "landing.killed", when, table, *land],
        cwd=Path(__file__).parents[1],
        env=os.environ | {name.upper(): value for name, value in (store or {}).items()},
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.mark.processes
@pytest.mark.spark
@pytest.mark.slow
def test_killed_at_each_commit_it_loses_and_doubles_no_row(tmp_path: Path) -> None:
    root, outbox = tmp_path / "data", tmp_path / "outbox"
    _append(outbox, range(50))
    assert _land(root, outbox, "never", "half").stdout == "half 45, op 0, rejected 5, ignored 0\n"
    # What came before comes once more, beside what is new.
    _append(outbox, [*range(40, 60), 55])
    _append(outbox, range(60, 70))
    for when, table in _POINTS:
        ended = _land(root, outbox, when, table)
        if when != "never":
            assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert (ended.returncode, ended.stdout) == (0, "half 18, op 0, rejected 13, ignored 0\n")
    half = (
        DeltaTable(str(root / "half")).to_pyarrow_table(columns=["queue_offset", "transaction_id", "body"]).to_pylist()
    )
    half.sort(key=lambda row: row["queue_offset"])
    good = [number for number in range(70) if number % 10]
    assert [row["transaction_id"] for row in half] == [f"e{number}" for number in good]
    assert [row["queue_offset"] for row in half] == list(range(len(good)))
    assert [row["body"].decode().split()[1] for row in half] == [str(number) for number in good]
    reasons = DeltaTable(str(root / "rejected")).to_pyarrow_table(columns=["reason"]).column(0).to_pylist()
    repeated = sorted(reason for reason in reasons if reason.startswith("repeated"))
    assert repeated == sorted(f"repeated transaction_id e{number}" for number in (*range(41, 50), 55))
    assert len(reasons) == 5 + 13


@pytest.mark.processes
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(("root", "kills"), [("s3a://{}/lake", ("before", "after")), ("folder", ())])
def test_killed_it_lands_each_row_of_a_table_in_an_object_store(
    tmp_path: Path, jars: Jars | str, s3_port: int, root: str, kills: tuple[str, ...]
) -> None:
    """Also into tables elsewhere; and nothing if there is nothing new."""
    assert not isinstance(jars, str), jars
    bucket = f"{BUCKET}/{tmp_path.name}"
    place, outbox, store = root.format(bucket), f"s3a://{bucket}/outbox", options(s3_port)
    place = place if place.startswith("s3a:") else str(tmp_path / place)
    _append(outbox, range(50), store)
    for when in kills:
        ended = _land(place, outbox, when, "half", store)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    _append(outbox, range(45, 55), store)
    tables = Tables.of(Storage.model_validate({"root": place, "options": store if place.startswith("s3a:") else {}}))
    assert not all_landed(tables, [outbox])
    told = [_land(place, outbox, "never", "half", store).stdout for _ in range(2)]
    assert all_landed(tables, [outbox]) == place.startswith("s3a:")  # else Spark is started to see that
    assert told == ["half 49, op 0, rejected 11, ignored 0\n", "half 0, op 0, rejected 0, ignored 0\n"]
    half = DeltaTable(f"{place}/half", storage_options=store).to_pyarrow_table(columns=["queue_offset", "body"])
    assert sorted(half.column("queue_offset").to_pylist()) == list(range(49))
    assert len({bytes(body) for body in half.column("body").to_pylist()}) == 49
