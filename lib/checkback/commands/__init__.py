"""The commands and their options, a module for each noun.

Spark is imported by those that need it, when they run: help and settings work without Java.
"""

from __future__ import annotations

import typer

from checkback.commands import (
    config,
    consume,
    dashboard,
    gateway,
    inspect,
    land,
    lineage,
    maintain,
    operate,
    outages,
    reconcile,
    status,
    what_if,
)
from checkback.commands.options import app

__all__ = [
    "app",
    "config",
    "consume",
    "dashboard",
    "gateway",
    "inspect",
    "land",
    "lineage",
    "maintain",
    "names",
    "operate",
    "outages",
    "reconcile",
    "status",
    "what_if",
]


def names() -> list[str]:
    """The commands' names."""
    return sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
