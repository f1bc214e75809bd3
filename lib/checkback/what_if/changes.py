"""Changed rules, from settings: only those named are changed, all others stay as they were in force in each batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checkback.errors import SettingsError
from checkback.reconcile.batch_rules import rules_of
from checkback.settings.layers import OVERRIDE
from checkback.settings.loading import load
from checkback.what_if.report import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.settings.loading import Loaded


def changes_of(loaded: Loaded) -> dict[str, Any]:
    """Fields of Rules and their values, of the rules that ``--set`` names: durations in ms."""
    rules = rules_of(loaded.settings)
    return {name: getattr(rules, name) for name, key in SETTINGS.items() if loaded.origin(key) == OVERRIDE}


def parse_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The same from settings and values, as {"transaction.timeout": "30s"}. Raises SettingsError."""
    for key in changes:
        if key not in SETTINGS.values():
            raise SettingsError("is no rule", key, f"rules are {', '.join(SETTINGS.values())}")
    values = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in changes.items()]
    return changes_of(load(None, values))
