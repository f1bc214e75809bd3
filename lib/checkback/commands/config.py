"""`checkback config`: the settings and their origins."""

from __future__ import annotations

import json

import typer

from checkback.commands.options import Config, Debug, Json, Overrides, app, prepared
from checkback.commands.printing import console, shown, table_of
from checkback.settings import flatten

config_app = typer.Typer(help="What is set, and where.")
app.add_typer(config_app, name="config")


@config_app.command("show")
def config_show(
    as_json: Json = False, config: Config = None, overrides: Overrides = None, debug: Debug = False
) -> None:
    """Show every setting, its value and where it comes from; secrets are masked."""
    loaded = prepared(config, overrides, debug)
    values = flatten(loaded.settings)
    if as_json:
        print(
            json.dumps({key: {"value": value, "origin": loaded.origin(key)} for key, value in values.items()}, indent=2)
        )
        return
    table = table_of("setting", "value", "origin")
    for key, value in values.items():
        table.add_row(key, shown(value), loaded.origin(key))
    console().print(table)
