"""`checkback gateway`: the HTTP server for producers."""

from __future__ import annotations

from typing import Annotated

import typer

from checkback.commands.answering import no_pandas
from checkback.commands.options import RUN, Common, app, command
from checkback.errors import missing_module
from checkback.observe.logs import started
from checkback.storage.files.paths import storage_check


@command(app, panel=RUN)
def gateway(
    options: Common,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="As gateway.host.")] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", help="As gateway.port.")] = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Claim queues of another gateway's journal. What it has acknowledged and not committed lands when it "
            "is started again.",
        ),
    ] = False,
) -> None:
    """Serve HTTP: take half messages and ops from producers, until SIGTERM or Ctrl-C."""
    loaded = options.load(given={"gateway.host": host, "gateway.port": port})
    storage_check(loaded.settings, loaded.origins)
    try:
        with no_pandas():
            import pyarrow as pa

            pa.array([0])
        from checkback.gateway.server import serve
    except ModuleNotFoundError as error:
        raise missing_module(error, "gateway", "checkback gateway") from error

    form = loaded.settings.log.format
    serve(loaded.settings, lambda url, queues, ports: started(form, "gateway", url, queues=queues, **ports), take_over)
