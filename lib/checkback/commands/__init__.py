"""The commands and their options, a module for each noun.

A command's module is imported when the command is run: all of them would take a third of a quick answer's time. Spark
is imported by those that need it, when they run: help and settings work without Java.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import typer

#: by module, its commands
MODULES = {
    "config": ("config",),
    "consume": ("consume", "consumers", "reconsume"),
    "dashboard": ("dashboard",),
    "gateway": ("gateway",),
    "inspect": ("audit", "decisions", "discarded", "pending", "scheduled", "stuck", "unpublished"),
    "land": ("land",),
    "lineage": ("lineage",),
    "maintain": ("maintain",),
    "operate": ("cancel", "resolve", "resume"),
    "outages": ("outages",),
    "reconcile": ("rebuild", "reconcile"),
    "status": ("status",),
    "what_if": ("what-if",),
}


def application(arguments: Sequence[str] = ()) -> typer.Typer:
    """The typer application, with the command that the arguments begin with; else with all."""
    from checkback.commands.options import app

    wanted = [module for module, commands in MODULES.items() if arguments and arguments[0] in commands]
    for module in wanted or MODULES:
        import_module(f"{__name__}.{module}")
    return app


def names() -> list[str]:
    """The commands' names."""
    return sorted(name for commands in MODULES.values() for name in commands)
