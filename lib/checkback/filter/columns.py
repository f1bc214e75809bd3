"""Where a topic table has what a filter names: `TAGS` and `KEYS` in columns of their own, the rest in a map."""

from __future__ import annotations

from typing import NamedTuple

TAGS, KEYS = "TAGS", "KEYS"
PROPERTIES_COLUMN = "properties"
#: RocketMQ's properties (MessageConst) -> columns
COLUMNS = {TAGS: "tags", KEYS: "keys"}


class Source(NamedTuple):
    """A column, and the key if it is a map."""

    column: str
    key: str | None


def source(name: str) -> Source:
    """Where the property is. An entry TAGS or KEYS of the map does not count: RocketMQ's client refuses these names."""
    return Source(COLUMNS[name], None) if name in COLUMNS else Source(PROPERTIES_COLUMN, name)
