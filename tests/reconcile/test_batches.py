"""The row of the table `batches`."""

from __future__ import annotations

from dataclasses import replace

from checkback.reconcile.batch_rules import batch_rules
from checkback.reconcile.publish.batches import batch_row
from checkback.settings import Settings


def test_rules_of_a_build_without_limits_can_be_recorded() -> None:
    """A batch is replayed with the rules that it began with, whatever the settings are by then."""
    decided = batch_rules(Settings(), connect=False)
    decided = replace(decided, rules=replace(decided.rules, check_max=2**40))
    assert batch_row("q", 0, 0, 0, decided).column("check_max").to_pylist() == [2**31 - 1]
