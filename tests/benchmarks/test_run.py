"""Benchmarks run, and give figures only of what was published right. No test asserts a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import catch_up, gateway, gateway_start, rocketmq, run, sdk
from benchmarks.load import Load
from benchmarks.processes import Lakehouse, settings
from benchmarks.proof import prove
from benchmarks.sdk_failover import longest_gap
from benchmarks.stepper import Stepper
from checkback.errors import CheckbackError
from checkback.storage.schemas import SCHEMAS
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

N = 2_000


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Lakehouse:
    chosen = settings(str(tmp_path / "lake"), reconcile={"partitions": 2})
    tables = Tables.of(chosen.storage)
    tables.create(spark, *SCHEMAS)
    return Lakehouse(str(tmp_path / "lake"), spark, chosen, tables)


def lines(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {line["name"]: line for line in found}


def test_catch_up_gives_its_figure_and_its_floor(
    place: Lakehouse, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rates and their ratio; each round's transactions are published once, but those that are left pending."""
    monkeypatch.setattr(catch_up, "WARM_UP", 0)
    monkeypatch.setattr(catch_up, "ROUNDS", 2)
    catch_up.figures(place, "catch_up", N, body_bytes=64)
    found = lines(capsys)
    rate, floor, ratio = (found[f"catch_up{name}"] for name in ("", "_floor", "_floor_ratio"))
    assert (rate["n"], rate["unit"], len(rate["seconds"]), rate["body_bytes"]) == (2, "tx/s", 2, 64)
    assert ratio["value"] == pytest.approx(rate["value"] / floor["value"], abs=0.002)
    assert rate["floor_ratio"] == ratio["value"]
    topics = [place.tables.read(place.spark, name) for name in place.tables.topics(place.spark)]
    offsets = [row[0] for topic in topics for row in topic.select("half_queue_offset").collect()]
    assert len(topics) == 4
    assert sorted(offsets) == [offset for offset in range(2 * N) if offset % catch_up.PENDING_EVERY]


def test_stepper_and_proof(place: Lakehouse) -> None:
    """A round ends when all that landed is decided, in however many commits; a row too many or too few is found."""
    load = Load(place.root, pending_every=4)
    with Stepper(place) as stepper:
        stepper.step(lambda: load.land(0, 8), published=6, pending=2)
        stepper.step(lambda: [load.land(8, 4), load.land(12, 4)], published=6, pending=2)
        assert (stepper.published, stepper.pending) == (12, 4)
    again = place.tables.read(place.spark, "topics/topic_1").limit(1)
    place.tables.append(again, "topics/topic_1")
    wrong = "1 published_twice, 12 published in 13 rows, 4 pending and 0 scheduled, instead of 12, 4 and 0"
    with pytest.raises(CheckbackError, match=wrong):
        prove(place, 12, 4)


@pytest.mark.processes
def test_gateway_gives_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCALE", "0.001")
    monkeypatch.setattr(gateway, "ROUNDS", 1)
    gateway.bench(str(tmp_path))
    found = lines(capsys)
    assert {name: (line["batch"], line["unit"]) for name, line in found.items()} == {
        "gateway_single": (1, "half messages/s"),
        "gateway_batch": (100, "half messages/s"),
    }
    assert all(line["value"] > 0 for line in found.values())


@pytest.mark.processes
def test_start_of_a_gateway_gives_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCALE", "0.001")
    monkeypatch.setattr(gateway_start, "ROUNDS", 1)
    gateway_start.bench(str(tmp_path))
    (line,) = lines(capsys).values()
    assert line["half_messages"] == 1_000
    assert line["value"] > 0
    assert line["mib"] > 0


@pytest.mark.processes
def test_sdk_gives_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCALE", "0.001")
    monkeypatch.setattr(sdk, "ROUNDS", 1)
    monkeypatch.setattr(sdk, "LOADS", (("threads", 4), ("tasks", 4)))
    sdk.bench(str(tmp_path))
    found = lines(capsys)
    assert set(found) == {"sdk_4_threads", "sdk_4_tasks", "sdk_4_threads_table"}
    assert all(line["value"] > 0 and line["p99_ms"] >= line["p50_ms"] > 0 for line in found.values())


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_rocketmqs_client_gives_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCALE", "0.001")
    monkeypatch.setattr(rocketmq, "ROUNDS", 1)
    monkeypatch.setattr(rocketmq, "THREADS", (4,))
    rocketmq.bench(str(tmp_path))
    found = lines(capsys)
    assert set(found) == {"rocketmq_4_threads", "rocketmq_next_client_asked"}
    assert all(line["value"] > 0 for line in found.values())


def test_longest_gap_is_that_after_the_kill() -> None:
    assert longest_gap([1.0, 5.0, 9.9, 10.1, 10.5, 10.6, 30.0, 40.0], 10.0) == pytest.approx(0.4)
    assert longest_gap([1.0], 10.0) == 2.0


def test_run_names_the_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["catchup"]) == 2
    assert "catch_up" in capsys.readouterr().err


_IMPORTS = """
import runpy, sys
from importlib import import_module
for name in runpy.run_path(sys.argv[1])["BENCHES"]:
    assert callable(import_module(f"benchmarks.{name}").bench), name
"""


@pytest.mark.processes
def test_each_benchmark_is_found_by_a_process_that_make_bench_starts(tmp_path: Path) -> None:
    """With the paths that run.py adds, and no others."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    started = [sys.executable, "-c", _IMPORTS, run.__file__]
    done = subprocess.run(started, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_not_right_is_no_figure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, one line."""

    def wrong(root: str) -> None:
        raise CheckbackError("the audit finds 1 published_twice", root)

    monkeypatch.setattr(gateway, "bench", wrong)
    assert run.main(["gateway"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("bench: gateway: ")
    assert error.count("\n") == 1
