"""The commands and their options, a module for each noun.

A command's module is imported when the command is run: all of them would take a third of a quick answer's time. Spark
is imported by those that need it, when they run: help and settings work without Java.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typer.core import TyperGroup

#: by module, its commands; `--help` lists them in this order
MODULES = {
    "gateway": ("gateway",),
    "land": ("land",),
    "reconcile": ("reconcile", "rebuild"),
    "status": ("status",),
    "inspect": ("audit", "decisions", "discarded", "pending", "scheduled", "stuck", "unpublished"),
    "outages": ("outages",),
    "lineage": ("lineage",),
    "dashboard": ("dashboard",),
    "what_if": ("what-if",),
    "operate": ("resolve", "cancel", "resume"),
    "consume": ("consume", "consumers", "reconsume"),
    "group": ("group",),
    "maintain": ("maintain",),
    "config": ("config",),
}


def application(arguments: Sequence[str] = ()) -> TyperGroup:
    """The application, with the command that the arguments begin with; else with all."""
    wanted = [module for module, commands in MODULES.items() if arguments and arguments[0] in commands]
    return _application(tuple(wanted or MODULES))


@cache
def _application(modules: tuple[str, ...]) -> TyperGroup:
    from typer.main import get_group

    from checkback.commands.options import app

    for module in modules:
        import_module(f"{__name__}.{module}")
    return get_group(app)


def names() -> list[str]:
    """The commands' names."""
    return sorted(name for commands in MODULES.values() for name in commands)
