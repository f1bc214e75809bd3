"""Starts an example: what goes wrong is told in one line, as by the commands, a missing package too."""

from __future__ import annotations

import sys
from importlib import import_module

from checkback.errors import CheckbackError, missing_module, printable


def launch(module: str) -> None:
    """Run ``main`` of the module with the process's arguments, as a Typer command; ends the process."""
    try:
        try:
            from typer import Typer

            app = Typer(add_completion=False, pretty_exceptions_enable=False)
            app.command()(import_module(module).main)
            app()
        except ModuleNotFoundError as error:
            raise missing_module(error) from error
    except CheckbackError as error:
        print(f"checkback: {printable(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
