"""Where streams stand, by what Spark writes into their checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checkback.errors import StorageError
from checkback.maintain.file_retention import Reader
from checkback.maintain.streams import reader_of, readers, rebuilding
from checkback.storage.checkpoints.checkpoint import StreamPosition
from checkback.storage.tables import Tables


def offsets(*versions: int | None) -> str:
    """A file of the offset log: where a batch ends in each source."""
    lines = ["v1", json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})]
    for number, version in enumerate(versions):
        position = {"reservoirId": f"id{number}", "reservoirVersion": version, "index": -1, "isStartingVersion": False}
        lines.append("-" if version is None else json.dumps(position))
    return "\n".join(lines)


def checkpoint(root: Path, query: str, begun: dict[int, str], done: list[int]) -> None:
    for folder in ("offsets", "commits"):
        (root / "_checkpoints" / query / folder).mkdir(parents=True)
    for number, text in begun.items():
        (root / "_checkpoints" / query / "offsets" / str(number)).write_text(text)
        (root / "_checkpoints" / query / "offsets" / f".{number}.crc").write_text("")
    for number in done:
        (root / "_checkpoints" / query / "commits" / str(number)).write_text("v1\n{}")


@pytest.mark.parametrize(
    ("position", "done", "expected"),
    [
        (StreamPosition("h", 7), True, Reader("q", 7)),
        (StreamPosition("h", 7, index=3), True, Reader("q", 7)),
        (StreamPosition("h", 7, index=3, starting=True), True, Reader("q", 7, snapshot=7)),
        (StreamPosition("h", 7, index=3, starting=True), False, Reader("q", 7, snapshot=7)),
        (StreamPosition("h", 7), False, Reader("q", 6, snapshot=6)),
        (StreamPosition("h", 0), False, Reader("q", 0, snapshot=0)),
    ],
)
def test_where_a_batch_ends_is_where_the_stream_stands(position: StreamPosition, done: bool, expected: Reader) -> None:
    """A first batch that is not done reads the snapshot before its end."""
    assert reader_of("q", position, done) == expected


def test_the_last_batch_that_is_done_counts_and_not_one_that_has_begun(tmp_path: Path) -> None:
    checkpoint(tmp_path, "reconcile", {4: offsets(10, 20, 3), 5: offsets(12, 20, None), 6: offsets(40, 50, 9)}, [4, 5])
    checkpoint(tmp_path, "check", {0: offsets(8)}, [])
    found = readers(Tables(root=str(tmp_path)), None)
    assert found == {
        "half": [("id0", Reader("reconcile", 12, begun=10))],
        "op": [("id1", Reader("reconcile", 20, begun=20))],
        "check_requests": [("id0", Reader("check", 7, snapshot=7))],
    }


def test_no_checkpoint_needs_nothing_and_a_broken_one_is_told(tmp_path: Path) -> None:
    tables = Tables(root=str(tmp_path))
    assert readers(tables, None) == {}
    checkpoint(tmp_path, "check", {0: "v1\nnonsense"}, [0])
    with pytest.raises(StorageError, match="the checkpoint cannot be read"):
        readers(tables, None)


def test_a_rebuild_is_seen(tmp_path: Path) -> None:
    tables = Tables(root=str(tmp_path))
    assert not rebuilding(tables, None)
    (tmp_path / "_checkpoints/reconcile.rebuilding").mkdir(parents=True)
    assert rebuilding(tables, None)
