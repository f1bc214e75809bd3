"""A figure is a JSON line that says all that is needed to take it again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.report import p99, report, scaled

if TYPE_CHECKING:
    import pytest


def test_report_is_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    report("catch_up", 1234.56789, "tx/s", 3, seconds=[1.0])
    line = json.loads(capsys.readouterr().out)
    assert {"name", "value", "unit", "n", "seconds", "scale", "machine", "versions"} == set(line)
    assert (line["name"], line["value"], line["unit"], line["n"]) == ("catch_up", 1234.568, "tx/s", 3)
    assert {"python", "checkback", "pyspark", "delta-spark", "deltalake"} <= set(line["versions"])


def test_scale_makes_all_smaller_but_not_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scaled(1_000_000, least=2_000) == 1_000_000
    monkeypatch.setenv("SCALE", "0.01")
    assert [scaled(1_000_000, least=2_000), scaled(1_000, least=20), scaled(100, least=20)] == [10_000, 20, 20]


def test_p99_is_of_the_values_that_there_are() -> None:
    assert p99([3.0]) == 3.0
    assert p99([float(value) for value in range(101)]) == 99.0
