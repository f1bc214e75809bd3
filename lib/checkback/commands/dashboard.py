"""`checkback dashboard`: what the tables say, in a browser."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from checkback.commands.options import Config, Debug, Overrides, app, prepared_for_tables
from checkback.errors import missing_module
from checkback.settings.loading import SECRETS_OF_OTHERS


@app.command()
def dashboard(
    host: Annotated[str | None, typer.Option(metavar="HOST", help="As dashboard.host.")] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", help="As dashboard.port.")] = None,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Show in a browser who is stuck, since when and why, until SIGTERM or Ctrl-C."""
    given = {"host": host, "port": port}
    options = [f"dashboard.{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
    unneeded = SECRETS_OF_OTHERS - {"dashboard"}
    settings = prepared_for_tables(config, [*(overrides or ()), *options], debug, unneeded)
    try:
        from checkback.dashboard.run import serve
    except ModuleNotFoundError as error:
        raise missing_module(error, "dashboard", "checkback dashboard") from error

    serve(settings)
