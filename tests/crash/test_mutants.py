"""The planted faults fit the library as it is; whether the tests find them, `python -m crash.mutants` says."""

from __future__ import annotations

from pathlib import Path

import pytest

from crash.mutants import FAULTS

_LIB = Path(__file__).parents[2] / "lib" / "checkback"


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_can_be_planted(fault: str) -> None:
    name, right, wrong = FAULTS[fault]
    text = (_LIB / name).read_text("utf-8")
    assert text.count(right) == 1
    compile(text.replace(right, wrong), name, "exec")
