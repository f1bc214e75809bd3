"""The keys of some half messages, for the rows of a page: those of all would be read for few."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.query.engines.question import Question

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from checkback.query.versions.view import View

_KEYS = """
SELECT DISTINCT h.queue_id, h.queue_offset, h.transaction_id, h.producer_group, h.keys AS keys
FROM {half} AS h JOIN {places} AS p ON p.queue_id = h.queue_id AND p.queue_offset = h.queue_offset
WHERE h.keys IS NOT NULL"""
_ORDER = "queue_id, queue_offset, transaction_id, producer_group, keys"
#: what names a half message
Name = tuple[int, int, "str | None", "str | None"]
NAME = ("queue_id", "queue_offset", "transaction_id", "producer_group")
#: of a row
name_of = itemgetter(*NAME)


def keys_of(view: View, rows: Iterable[Mapping[str, Any]]) -> dict[Name, str]:
    """By name of a row's half message its keys, if it has any. Rows: queue_id, queue_offset, of `half`."""
    known = {(row["queue_id"], row["queue_offset"]) for row in rows}
    places = sorted(place for place in known if None not in place)
    if not places:
        return {}
    wanted = pa.table(
        {
            "queue_id": pa.array([place[0] for place in places], pa.int32()),
            "queue_offset": pa.array([place[1] for place in places], pa.int64()),
        }
    )
    read = {"places": view.engine.keep("places", wanted)}
    found = view.engine.arrow(view.ask(Question(_KEYS, _ORDER), read)).to_pylist()
    return {name_of(row): row["keys"] for row in found}
