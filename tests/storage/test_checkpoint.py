"""What the files of a checkpoint say, as Spark and Delta write them."""

from __future__ import annotations

import json

import pytest

from checkback.errors import StorageError
from checkback.storage.checkpoints.checkpoint import PARTITIONS, Batch, StreamPosition, parse_batch, parse_metadata


def _log(*sources: object, **about: object) -> str:
    lines = ["v1", json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 5} | about)]
    return "\n".join(lines + ["-" if source is None else json.dumps(source) for source in sources])


def _offset(version: int, index: int, starting: bool) -> dict[str, object]:
    return {
        "sourceVersion": 1,
        "reservoirId": "t",
        "reservoirVersion": version,
        "index": index,
        "isStartingVersion": starting,
    }


@pytest.mark.parametrize(
    ("half", "position", "unread"),
    [
        (_offset(4, -1, False), StreamPosition("t", 4), 4),
        (_offset(4, 3, True), StreamPosition("t", 4, 3, starting=True), 0),
        (None, None, 0),
    ],
)
def test_offsets_say_the_time_and_what_was_read(half: object, position: StreamPosition | None, unread: int) -> None:
    batch = parse_batch(2, _log(half, None, conf={PARTITIONS: "3"}), "p")
    assert batch == Batch(2, 5, (position, None), 3)
    assert (batch.unread(0), batch.unread(1), batch.unread(2)) == (unread, 0, 0)


def test_partitions_need_not_be_there() -> None:
    assert parse_batch(0, _log(), "p") == Batch(0, 5)


@pytest.mark.parametrize(
    "text",
    [
        *("", "v1\n{}\n-", "v1\n[]\n-", _log({"sourceVersion": 9}), _log(7), _log([]), "v1\nnull"),
        *('v1\n{"batchTimestampMs":1e400}\n-', f"v1\n{'[' * 200_000}"),
    ],
)
def test_file_that_is_no_batch_is_an_error(text: str) -> None:
    with pytest.raises(StorageError, match="p/offsets/2") as refused:
        parse_batch(2, text, "p")
    assert "checkback rebuild" in refused.value.fix


def test_query_has_an_id() -> None:
    assert parse_metadata('{"id":"q"}', "p") == "q"


@pytest.mark.parametrize("text", ["", "{}", "[]", "null"])
def test_metadata_that_is_not_whole_is_an_error(text: str) -> None:
    with pytest.raises(StorageError, match="p/metadata"):
        parse_metadata(text, "p")
