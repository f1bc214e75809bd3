"""What was used last stays; what is kept stays always."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from checkback.storage import tables as module
from checkback.storage.lru_cache import LruCache
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import TOPIC_PREFIX, arrow_schema
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pathlib import Path


def test_the_last_used_are_kept() -> None:
    """And are made anew when they are asked for later."""
    made: list[str] = []

    def get(name: str) -> str:
        def make() -> str:
            made.append(name)
            return name

        return recent.get(name, make)

    recent = LruCache[str](2, str.isupper)
    assert [get(name) for name in "AabaBca"] == [*"AabaBca"]
    assert made == [*"AabBc"]
    assert [name in recent for name in "ABabc"] == [True, True, True, False, True]
    get("b")
    assert (len(recent), made) == (4, [*"AabBcb"])
    recent.forget("A")
    recent.forget("a")
    assert "A" not in recent
    assert len(pickle.loads(pickle.dumps(recent))) == 0  # noqa: S301 - ours


def test_what_cannot_be_made_is_asked_for_again() -> None:
    recent = LruCache[int](2)
    with pytest.raises(ZeroDivisionError):
        recent.get("a", lambda: 1 // 0)
    assert recent.get("a", lambda: 1) == 1


def test_many_threads_get_one_value() -> None:
    """The first that was made."""
    recent = LruCache[object](3)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda at: (at % 3, recent.get(str(at % 3), object)), range(300)))
    assert len({(name, id(value)) for name, value in found}) == 3


def test_logs_of_ever_new_topics_are_not_all_kept_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch is in each table once all the same, and the ledger's own logs stay open."""
    monkeypatch.setattr(module, "_OPEN_TOPICS", 3)
    tables = Tables(root=str(tmp_path), by_files=True)
    names = [f"{TOPIC_PREFIX}t{number}" for number in range(9)]
    no_spark: Any = None
    tables.create(no_spark, "half", *names)
    row = pa.Table.from_pylist([{}], schema=arrow_schema(TOPIC_PREFIX))
    half = tables.log("half")
    for batch_id in (0, 1, 1):
        for name in names:
            with FileWriter(tables.root) as writer:
                writer.write(name, row)
                tables.commit(no_spark, name, writer.close(), "app", batch_id)
    assert len(tables._logs) == 1 + 3
    assert tables.log("half") is half
    assert [len(DeltaTable(tables.location(name)).file_uris()) for name in names] == [2] * len(names)
