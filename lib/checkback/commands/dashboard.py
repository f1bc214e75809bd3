"""`checkback dashboard`: what the tables say, in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from checkback.commands.options import ANSWERS, Common, app, command
from checkback.errors import missing_module
from checkback.settings.loading import SECRETS_OF_OTHERS


@command(app, panel=ANSWERS)
def dashboard(
    options: Common,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="As dashboard.host.")] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", help="As dashboard.port.")] = None,
) -> None:
    """Serve the dashboard: who is stuck, since when and why, as pages for a browser."""
    given = {"dashboard.host": host, "dashboard.port": port}
    settings = options.load_for_tables(SECRETS_OF_OTHERS - {"dashboard"}, given).settings
    try:
        from checkback.dashboard.server import serve
    except ModuleNotFoundError as error:
        raise missing_module(error, "dashboard", "checkback dashboard") from error

    serve(settings)
