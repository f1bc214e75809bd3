"""What Debezium made of an outbox in PostgreSQL (debezium/record.py) lands: its envelopes, and routed events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checkback.landing.landing_queries import Landed
from checkback.landing.table_query import TableOptions, land

if TYPE_CHECKING:
    from landing.fixtures import Lakehouse

_HERE = Path(__file__).parent / "debezium"
ROUTED = {
    "transaction_id": "headers.id",
    "real_topic": "replace(topic, 'outbox.event.')",
    "body": "value",
    "keys": "key",
    "ordering_key": "key",
}


def table_of(lake: Lakehouse, folder: Path, kind: str, *, values: bool) -> str:
    """A Delta table of the recorded events, or of their values, as Spark reads JSON."""
    events = (_HERE / f"{kind}.jsonl").read_text().splitlines()
    lines, place = folder / "lines", folder / kind
    lines.write_text("\n".join(json.dumps(json.loads(event)["value"]) if values else event for event in events))
    lake.spark.read.json(str(lines)).write.format("delta").save(str(place))
    return str(place)


def landed_rows(lake: Lakehouse) -> dict[str, Any]:
    return {row.transaction_id: row for row in lake.rows("half")}


@pytest.mark.parametrize("kind", ["envelopes", "envelopes_with_schema"])
def test_inserts_and_the_snapshot_of_envelopes_are_messages(lake: Lakehouse, tmp_path: Path, kind: str) -> None:
    """An update, a delete and a truncation are not; the time is a text in Debezium's JSON."""
    outbox = table_of(lake, tmp_path, kind, values=True)
    assert land(lake.spark, lake.settings, TableOptions(outbox=outbox), True) == Landed(half=4, ignored=3)
    rows = landed_rows(lake)
    for number in range(1, 5):
        row = rows[f"00000000-0000-0000-0000-{number:012}"]
        assert (row.queue_offset, row.real_topic, row.tags, row.keys) == (
            number - 1,
            "orders",
            "paid",
            f"account-{number % 2}",
        )
        assert json.loads(row.body) == {"amount": number, "note": None}
        assert row.born_timestamp.isoformat() == f"2026-11-20T15:00:0{number}+00:00"


def test_microseconds_of_an_envelope_are_a_time(lake: Lakehouse, tmp_path: Path) -> None:
    """Those of PostgreSQL's timestamp without a zone (MicroTimestamp)."""
    outbox = table_of(lake, tmp_path, "envelopes", values=True)
    given = TableOptions(outbox=outbox, mapping={"born_timestamp": "at", "order": "at"})
    assert land(lake.spark, lake.settings, given, True) == Landed(half=4, ignored=3)
    times = [row.born_timestamp.isoformat() for row in lake.rows("half")]
    assert times == [f"2026-11-20T15:00:0{number}+00:00" for number in range(1, 5)]


def test_events_that_debezium_has_routed_land_by_a_mapping(lake: Lakehouse, tmp_path: Path) -> None:
    """As docs/landing.md says."""
    outbox = table_of(lake, tmp_path, "routed", values=False)
    given = TableOptions(outbox=outbox, mapping=ROUTED)
    assert land(lake.spark, lake.settings, given, True) == Landed(half=4)
    row = landed_rows(lake)["00000000-0000-0000-0000-000000000003"]
    assert (row.real_topic, row.keys, json.loads(row.body)) == ("orders", "account-1", {"amount": 3, "note": None})
    assert row.properties["__SHARDINGKEY"] == "account-1"
