"""Each table carries the number of its format: one of another format, or of none, is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from checkback.errors import StorageError
from checkback.storage.log.compatibility import declared_schema
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.schemas import FORMAT, FORMAT_PROPERTY, SCHEMAS

_NAMES = [*SCHEMAS, "topics/t", "consumer_groups/g"]


@pytest.mark.parametrize("name", _NAMES)
def test_table_carries_its_format(tmp_path: Path, name: str) -> None:
    place = str(tmp_path / name)
    assert DeltaLog.created(name, place).properties()[FORMAT_PROPERTY] == FORMAT == "1"
    DeltaLog(name, place)


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("found", ["2", None])
def test_another_format_is_refused_with_what_helps(tmp_path: Path, name: str, found: str | None) -> None:
    """Such as a copy that was made with CREATE TABLE AS, which does as the line says."""
    place = str(tmp_path / name)
    own = {} if found is None else {FORMAT_PROPERTY: found}
    table = DeltaTable.create(place, declared_schema(name), configuration=own, raise_if_key_not_exists=False)
    with pytest.raises(
        StorageError, match=f"checkback.format is {found or 'missing'}, this release reads format 1"
    ) as refused:
        DeltaLog(name, place)
    line = str(refused.value)
    assert "\n" not in line
    assert line.endswith("ALTER TABLE ... SET TBLPROPERTIES ('checkback.format' = '1')")
    table.alter.set_table_properties({FORMAT_PROPERTY: FORMAT}, raise_if_not_exists=False)
    DeltaLog(name, place)


def test_table_of_somebody_in_a_topics_place_is_no_topic(tmp_path: Path) -> None:
    place = str(tmp_path / "topics/t")
    DeltaTable.create(place, Schema([Field("number", PrimitiveType("long"))]))
    assert not DeltaLog("topics/t", place).is_topic()
