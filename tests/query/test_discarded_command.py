"""`checkback tx list --state discarded` for people: how many by group and reason, above the first rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.cli import main
from checkback.settings import Settings
from checkback.storage.tables import Tables
from support.stories import Transaction, write

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_totals_are_of_all_rows_also_of_those_not_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [Transaction(0, offset).discarded() for offset in range(60)]
    rows += [Transaction(1, offset).discarded(reason="EXPIRED", producer_group="pay") for offset in range(2)]
    rows += [Transaction(2).discarded(reason="CANCELLED")]
    halves = [Transaction(0).half(), Transaction(1).half(producer_group="pay")]
    write(None, Tables.of(Settings.model_validate({"storage": {"root": str(tmp_path)}}).storage), halves + rows)

    def lines(*words: str) -> list[str]:
        assert main(["tx", "list", "--state", "discarded", *words, "--set", f"storage.root={tmp_path}"]) == 0
        return capfd.readouterr().out.splitlines()

    orders, pay, header, *shown, more = lines()
    assert (orders, pay) == ("orders: 60 CHECK_MAX, 1 CANCELLED", "pay: 2 EXPIRED")
    assert header.split()[:2] == ["queue", "offset"]
    assert (len(shown), more) == (50, "and 13 more; -o json shows all")
    assert lines("--group", "pay")[0] == "pay: 2 EXPIRED"
    assert len(lines("-o", "json")) == 63
    assert len(lines("-o", "csv")) == 1 + 63
