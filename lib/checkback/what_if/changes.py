"""The rules that the settings of a command line change: only those given by ``--set``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checkback.reconcile.batch_rules import rules_of
from checkback.settings.layers import OVERRIDE
from checkback.what_if.report import SETTINGS

if TYPE_CHECKING:
    from checkback.settings.loading import Loaded


def changes_of(loaded: Loaded) -> dict[str, Any]:
    """Fields of Rules and their values: durations in ms. All others stay as they were in force in each batch."""
    rules = rules_of(loaded.settings)
    return {name: getattr(rules, name) for name, key in SETTINGS.items() if loaded.origin(key) == OVERRIDE}
