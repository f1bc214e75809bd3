"""What becomes of a row's columns: a default never makes a committed row no message, and nothing is left out unsaid."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from checkback.errors import SettingsError
from checkback.landing.landing_queries import Landed
from landing.outbox import OUTBOX, Outbox, bodies

if TYPE_CHECKING:
    from pathlib import Path

    from landing.fixtures import Lakehouse


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "outbox"


def test_defaults_reject_no_row(lake: Lakehouse, place: Path) -> None:
    outbox = Outbox(lake, place, f"{OUTBOX}, timestamp BIGINT, headers STRING")
    outbox.add(
        "'empty', 'orders', '', '', 'x', 1700000000, ''",
        "'long', 'orders', repeat('é', 300), repeat('t', 40000), 'x', 1700000000123, NULL",
        "'same', 'orders', repeat('é', 300), 't', 'x', 1700000000123456, ' '",
        "'keys', 'orders', repeat('k', 40000), 't', 'x', 1700000000123456789, NULL",
        "'before', 'orders', 'a', 't', 'x', -1, NULL",
    )
    assert outbox.land() == Landed(half=5)
    rows = {row.transaction_id: row for row in lake.rows("half")}
    assert "__SHARDINGKEY" not in rows["empty"].properties
    key = rows["long"].properties["__SHARDINGKEY"]
    assert (len(key), key) == (64, rows["same"].properties["__SHARDINGKEY"])
    assert (rows["long"].keys, rows["long"].tags, rows["keys"].keys) == ("é" * 300, None, None)
    born = {name: int(row.born_timestamp.timestamp() * 1000) for name, row in rows.items()}
    assert (born["empty"], born["long"], born["same"], born["keys"]) == (1700000000000, *[1700000000123] * 3)
    assert born["before"] > 1700000000123


def test_what_a_wrong_mapping_has_rejected_lands_once_it_is_right(lake: Lakehouse, place: Path) -> None:
    """As docs/landing.md says."""
    outbox = Outbox(lake, place)
    outbox.orders(1)
    assert outbox.land() == Landed(half=1)
    outbox.orders(2, 3)
    assert outbox.land(mapping={"real_topic": "concat(aggregatetype, '!')"}) == Landed(rejected=2)
    shutil.move(lake.tables.checkpoint(outbox.query), place.with_name("away"))
    assert outbox.land(version="2") == Landed(half=2)
    assert sorted(row[1] for row in bodies(lake)) == ["1", "2", "3"]


def test_members_that_are_null_stay(lake: Lakehouse, place: Path) -> None:
    outbox = Outbox(
        lake,
        place,
        "id STRING, aggregatetype STRING, payload STRUCT<amount: INT, deep: STRUCT<note: STRING>, all: ARRAY<INT>>",
    )
    outbox.add("'1', 'orders', named_struct('amount', NULL, 'deep', named_struct('note', NULL), 'all', array(1, NULL))")
    assert outbox.land() == Landed(half=1)
    assert json.loads(bodies(lake)[0][2]) == {"amount": None, "deep": {"note": None}, "all": [1, None]}


HALVES = "queue_id INT, queue_offset BIGINT, transaction_id STRING, real_topic STRING, grp STRING, body STRING"
GROUP = {"producer_group": "grp"}


@pytest.mark.parametrize(
    ("more", "mapping", "told"),
    [
        ("", GROUP, None),
        (", _note STRING", GROUP, None),
        (", delay_lvl INT", GROUP, "--half: column delay_lvl: no such field, did you mean delay_level"),
        (", delay_lvl INT", GROUP | {"delay_level": "DELAY_LVL + 0"}, None),
        ("", GROUP | {"state": "'COMMIT'"}, "--map: state is not a field of --half"),
        ("", GROUP | {"order": "queue_offset"}, "--map: order is not a field of --half"),
    ],
)
def test_columns_that_no_field_takes_are_refused(
    lake: Lakehouse, place: Path, more: str, mapping: dict[str, Any], told: str | None
) -> None:
    halves = Outbox(lake, place, HALVES + more)
    halves.add("3, 0, 't0', 'paid', 'orders', 'x'" + (", NULL" if more else ""))
    if told is None:
        assert halves.land(as_outbox=False, half=str(place), mapping=mapping) == Landed(half=1)
        return
    with pytest.raises(SettingsError) as error:
        halves.land(as_outbox=False, half=str(place), mapping=mapping)
    assert str(error.value).startswith(told)
