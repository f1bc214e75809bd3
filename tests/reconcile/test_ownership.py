"""Whose the tables are, and what their checkpoint has written, is known in local folders whoever writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from checkback.reconcile.checkpoint_owner import claim
from checkback.reconcile.publish.published_notes import note
from checkback.reconcile.start.start_facts import decision_facts
from checkback.settings import Storage
from checkback.storage.checkpoints.checkpoint import Batch, Checkpoint
from checkback.storage.schemas import SCHEMAS, arrow_schema
from checkback.storage.tables import Tables

NOBODY: Any = None
WRITERS = ("auto", "spark")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Tables, some written by batch 3 of the query q."""
    tables = _tables(tmp_path, "auto")
    tables.create(NOBODY, *SCHEMAS)
    rows = pa.Table.from_pylist([{"batch_id": 3}], arrow_schema("batches"))
    tables.append_arrow(NOBODY, rows, "batches", "q/batches", 3)
    rows = pa.Table.from_pylist([{"queue_id": 1, "queue_offset": 0}], arrow_schema("decisions"))
    tables.append_arrow(NOBODY, rows, "decisions", "q/decisions", 2)
    return tmp_path


def _tables(root: Path, writer: str) -> Tables:
    return Tables.of(Storage.model_validate({"root": str(root), "writer": writer}))


def _checkpoint(query: str) -> Checkpoint:
    return Checkpoint(query, Batch(0, 0))


@pytest.mark.parametrize("before", WRITERS)
@pytest.mark.parametrize("now", WRITERS)
def test_what_one_writer_noted_the_other_knows(root: Path, before: str, now: str) -> None:
    claim(NOBODY, _tables(root, before), "q", 64)
    found = decision_facts(NOBODY, _tables(root, now), _checkpoint("q"))
    assert (found.written, found.owner, found.owned, found.segment_size) == (True, 1, 1, 64)
    assert (found.last_batch, found.concluded) == (3, 3)
    assert decision_facts(NOBODY, _tables(root, now), None).written
    claim(NOBODY, _tables(root, now), "rebuilt", 32)
    for writer in WRITERS:
        old, new = (decision_facts(NOBODY, _tables(root, writer), _checkpoint(query)) for query in ("q", "rebuilt"))
        assert (old.owner, old.owned) == (2, 1)
        assert (new.owner, new.owned, new.segment_size, new.last_batch) == (2, 2, 32, None)


def test_table_of_others_in_a_topics_place_is_no_decision(tmp_path: Path) -> None:
    """Before the first batch; a topic's own table holds what that batch may have published."""
    tables = _tables(tmp_path, "auto")
    tables.create(NOBODY, *SCHEMAS, "topics/own")
    write_deltalake(tables.location("topics/taken"), pa.table({"id": [1]}))
    fresh = (None, Checkpoint("q"))  # the latter has begun no batch, or has lost the entries of those that it had
    assert not any(decision_facts(NOBODY, tables, checkpoint).written for checkpoint in fresh)
    rows = pa.Table.from_pylist([{"half_queue_offset": 0}], arrow_schema("topics/own"))
    tables.append_arrow(NOBODY, rows, "topics/own")
    assert all(decision_facts(NOBODY, tables, checkpoint).written for checkpoint in fresh)


def test_owner_that_is_a_property_is_followed_by_others(root: Path) -> None:
    """As where delta-rs may not commit to the table for a time: the greater number stands."""
    tables = _tables(root, "auto")
    claim(NOBODY, tables, "q", 64)
    _set_properties(tables, {"checkback.checkpoint": "b", "checkback.checkpoints": "2", "checkback.segment_size": "8"})
    tables = _tables(root, "auto")
    old, new = (decision_facts(NOBODY, tables, _checkpoint(query)) for query in ("q", "b"))
    assert [(one.owner, one.owned, one.segment_size) for one in (old, new)] == [(2, 1, 64), (2, 2, 8)]
    claim(NOBODY, tables, "b", 8)
    assert tables.log("decisions").versions(["checkpoint"]) == {"checkpoint": 1}
    claim(NOBODY, tables, "c", 8)
    assert [decision_facts(NOBODY, tables, _checkpoint(query)).owned for query in "qbc"] == [1, None, 3]


def _set_properties(tables: Tables, properties: dict[str, str]) -> None:
    log = Path(tables.location("decisions")) / "_delta_log"
    first = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    (metadata,) = (action for action in first if "metaData" in action)
    metadata["metaData"]["configuration"] |= properties
    newest = max(int(file.stem) for file in log.glob("*.json"))
    (log / f"{newest + 1:020}.json").write_text(json.dumps(metadata) + "\n")


def test_what_is_published_late_is_noted_in_the_log_whoever_writes(root: Path) -> None:
    tables = _tables(root, "spark")
    note(NOBODY, tables, {("t", "q"): 7})
    assert tables.log("unpublished").versions(["published/q/t"]) == {"published/q/t": 7}
