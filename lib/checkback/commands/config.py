"""`checkback config show`: the settings and their origins."""

from __future__ import annotations

import json

from checkback.commands.options import Answer, Output, command, config
from checkback.commands.printing import print_table, shown
from checkback.settings import flatten


@command(config)
def show(options: Answer) -> None:
    """Show every setting, its value and where it comes from; secrets are masked."""
    loaded = options.load(unneeded=())
    values = {key: {"value": value, "origin": loaded.origin(key)} for key, value in flatten(loaded.settings).items()}
    if options.output is Output.JSON:
        print(json.dumps(values, indent=2))
        return
    rows = [(key, shown(each["value"]), each["origin"]) for key, each in values.items()]
    print_table(("setting", "value", "origin"), rows, options.output)
