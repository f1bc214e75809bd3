"""Commands and their options, by noun and verb.

A command's module is imported when the command runs: importing all would take a third of a short command's time.
Modules import Spark only when they run, so help and settings work without Java.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typer.core import TyperGroup

#: by the first word of a command, the modules of its commands; `--help` lists them in this order
MODULES = {
    "gateway": ("gateway",),
    "land": ("land",),
    "reconcile": ("reconcile",),
    "push": ("push",),
    "rebuild": ("reconcile",),
    "maintain": ("maintain",),
    "backup": ("backup",),
    "restore": ("backup",),
    "status": ("status",),
    "outages": ("status",),
    "audit": ("audit",),
    "what-if": ("what_if",),
    "clients": ("clients",),
    "dashboard": ("dashboard",),
    "erase": ("erase",),
    "tx": ("transactions", "describe", "operate"),
    "topic": ("topic",),
    "group": ("group",),
    "config": ("config",),
}


def application(arguments: Sequence[str] = ()) -> TyperGroup:
    """The application, with the commands of the arguments' first word; else with all."""
    known = MODULES.get(arguments[0]) if arguments else None
    return _application(known or tuple(dict.fromkeys(module for modules in MODULES.values() for module in modules)))


@cache
def _application(modules: tuple[str, ...]) -> TyperGroup:
    from typer.core import TyperGroup
    from typer.main import get_command

    from checkback.commands.options import app

    for module in modules:
        import_module(f"{__name__}.{module}")
    found = get_command(app)
    assert isinstance(found, TyperGroup)  # noqa: S101 - it has a callback
    return found
