"""The planted faults fit the library as it is; whether rounds find them, `python -m crash_consumer.mutants` says."""

from __future__ import annotations

from pathlib import Path

import pytest

from crash_consumer.mutants import FAULTS

_LIB = Path(__file__).parents[2] / "lib" / "checkback" / "consumer"


@pytest.mark.parametrize("name", FAULTS)
def test_fault_can_be_planted(name: str) -> None:
    fault = FAULTS[name]
    text = (_LIB / fault.file).read_text("utf-8")
    assert text.count(fault.right) == 1
    compile(text.replace(fault.right, fault.wrong), fault.file, "exec")
