"""Rows as files of Delta tables: what is in them, what Delta is told of them, and what an error leaves."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.storage.parquet import parquet_files
from checkback.storage.parquet.parquet_files import (
    FileWriter,
    TableRoot,
    file_rows,
    files_of,
    most_group_rows,
    to_files,
)
from checkback.storage.schemas import arrow_schema

if TYPE_CHECKING:
    from pathlib import Path

_TOPICS = ("topics/a", "topics/b", "topics/c")
T = datetime(2026, 1, 1, 0, 0, 0, 1234, tzinfo=timezone.utc)


def _ops(*offsets: int, at: datetime = T) -> pa.Table:
    rows = [{"queue_id": 1, "queue_offset": offset, "store_timestamp": at, "state": "COMMIT"} for offset in offsets]
    return pa.Table.from_pylist(rows, schema=arrow_schema("op"))


def test_all_topics_have_one_schema() -> None:
    """One that is kept, however many names producers think of."""
    assert arrow_schema("topics/a") is arrow_schema("topics/b") is not arrow_schema("op")


def test_file_holds_the_rows_and_its_statistics_their_range(tmp_path: Path) -> None:
    """Timestamps are cut to milliseconds, the greatest upwards: the rows behind it must not be skipped."""
    with FileWriter(str(tmp_path)) as writer:
        writer.write("op", _ops(5, 3))
        writer.write("op", _ops(9, at=T + timedelta(seconds=1)).to_batches()[0])
        (file,) = writer.close()
    assert file.size == (tmp_path / "op" / file.path).stat().st_size
    assert pq.read_table(tmp_path / "op" / file.path).column("queue_offset").to_pylist() == [5, 3, 9]
    assert json.loads(file.stats) == {
        "numRecords": 3,
        "minValues": {"queue_id": 1, "queue_offset": 3, "store_timestamp": "2026-01-01T00:00:00.001Z"},
        "maxValues": {"queue_id": 1, "queue_offset": 9, "store_timestamp": "2026-01-01T00:00:01.002Z"},
        "nullCount": {"queue_id": 0, "queue_offset": 0, "store_timestamp": 0},
    }


def test_rows_over_the_most_go_into_another_file(tmp_path: Path) -> None:
    """Of the table that has a most; an error removes all of them."""
    with FileWriter(str(tmp_path), most_rows={"op": 3}) as writer:
        for rows in (_ops(1, 2), _ops(3, 4), _ops(*range(5, 12)), _ops()):
            writer.write("op", rows)
            writer.write("topics/a", pa.Table.from_pylist([{"batch_id": 1}] * 9, schema=arrow_schema("topics/a")))
        done = writer.close()
    held = [
        pq.read_table(tmp_path / "op" / file.path)["queue_offset"].to_pylist() for file in done if file.name == "op"
    ]
    assert held == [[1, 2], [3, 4], [5, 6, 7], [8, 9, 10], [11]]
    assert [json.loads(file.stats)["numRecords"] for file in done if file.name == "topics/a"] == [36]
    parts = tmp_path / "b" / "op"
    parts.parent.mkdir()
    with suppress(ZeroDivisionError), FileWriter(str(tmp_path / "b"), most_rows={"op": 1}) as writer:
        writer.write("op", _ops(1, 2, 3))
        assert len(list(parts.iterdir())) == 2
        raise ZeroDivisionError
    assert list(parts.iterdir()) == []


def test_refused_line_that_repeats_itself_stays_small(tmp_path: Path) -> None:
    """It came compressed, and is kept whole."""
    rows = [{"source": "op", "raw": "x" * 2**20, "reason": "too long", "file": None, "rejected_at": T}] * 8
    with FileWriter(str(tmp_path)) as writer:
        writer.write("rejected", pa.Table.from_pylist(rows, schema=arrow_schema("rejected")))
        (file,) = writer.close()
    assert file.size < 2**15
    assert pq.read_table(tmp_path / "rejected" / file.path).column("raw").to_pylist() == ["x" * 2**20] * 8


def test_nulls_of_a_column_are_counted_beside_its_span(tmp_path: Path) -> None:
    """A reader that does not find a column in the statistics skips the file."""
    rows = _ops(1, 2)
    rows = rows.set_column(0, "queue_id", pa.array([None, 4], pa.int32()))
    with FileWriter(str(tmp_path)) as writer:
        writer.write("op", rows)
        writer.write("op", _ops(7))
        (file,) = writer.close()
    statistics = json.loads(file.stats)
    assert (statistics["minValues"]["queue_id"], statistics["maxValues"]["queue_id"]) == (1, 4)
    assert statistics["nullCount"] == {"queue_id": 1, "queue_offset": 0, "store_timestamp": 0}
    assert statistics["maxValues"]["queue_offset"] == 7


@given(sizes=st.lists(st.tuples(st.sampled_from(["op", "rejected", "topics/a"]), st.integers(0, 40)), max_size=12))
def test_small_buffers_lose_nothing(tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[str, int]]) -> None:
    """Rows of several tables, written out whenever they are many: all of them are there, in their order."""
    folder = tmp_path_factory.mktemp("tables")
    wanted: dict[str, list[str]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_files, "BUFFER", 500)
        with FileWriter(str(folder)) as writer:
            for number, (name, size) in enumerate(sizes):
                column = {"op": "remark", "rejected": "raw", "topics/a": "keys"}[name]
                texts = [f"{number}-{row}" for row in range(size)]
                schema = arrow_schema(name)
                writer.write(name, pa.Table.from_pylist([{column: text} for text in texts], schema=schema))
                wanted.setdefault(column, []).extend(texts)
            done = writer.close()
    found = {
        column: [row[column] for file in done for row in _rows(folder, file) if column in row] for column in wanted
    }
    assert found == wanted
    assert sum(json.loads(file.stats)["numRecords"] for file in done) == sum(size for _, size in sizes)


def _rows(folder: Path, file: parquet_files.ParquetFile) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = pq.read_table(folder / file.name / file.path).to_pylist()
    return rows


def test_error_leaves_no_file(tmp_path: Path) -> None:
    """A task that fails takes back what it has written."""

    def batches() -> object:
        yield _ops(1).to_batches()[0]
        raise OSError("the other side went away")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_files, "BUFFER", 0)
        with pytest.raises(OSError, match="went away"):
            list(to_files("op", TableRoot(str(tmp_path)))(batches()))  # type: ignore[arg-type]
    assert not list((tmp_path / "op").iterdir())


def test_root_that_is_away_is_not_made_anew(tmp_path: Path) -> None:
    """Renamed, or a link or a disk that is gone: in its place the folder would be in the way of its return."""
    root = tmp_path / "root"
    root.mkdir()
    with FileWriter(str(root)) as writer:
        writer.write("op", _ops(1))
        writer.close()
    root.rename(tmp_path / "away")
    with FileWriter(str(root)) as writer, pytest.raises(FileNotFoundError):
        writer.write("op", _ops(2))
    assert [place.name for place in tmp_path.iterdir()] == ["away"]


def _halves(*delays: int | None) -> pa.Table:
    rows = [{"queue_offset": offset, "delay_ms": delay} for offset, delay in enumerate(delays)]
    return pa.Table.from_pylist(rows, schema=arrow_schema("half"))


def test_row_groups_are_small_where_messages_have_delays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only there: each costs. The file's name tells it, if its first rows do; that of the folder does not."""
    monkeypatch.setattr(parquet_files, "_GROUP_ROWS", 2)

    def written(*parts: pa.Table) -> tuple[int | None, list[int]]:
        folder = tmp_path / "part.rows-9.x"
        folder.mkdir(exist_ok=True)
        with FileWriter(str(folder), buffer=0) as writer:
            for part in parts:
                writer.write("half", part)
            (file,) = writer.close()
        path = f"{tmp_path}/part.rows-9.x/half/{file.path}"
        found = pq.read_metadata(path)
        return most_group_rows(path), [found.row_group(number).num_rows for number in range(found.num_row_groups)]

    assert written(_halves(None, None, None, None, None)) == (None, [5])
    assert written(_halves(None, None, 7, None, None)) == (2, [2, 2, 1])
    assert written(_halves(None, None, None), _halves(None, 1, None)) == (None, [3, 2, 1])
    assert written(_halves(1, 1, 1), _halves(None, None, None)) == (2, [2, 1, 2, 1])


def test_value_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    """Not another value."""
    with pytest.raises(pa.ArrowInvalid, match="2147483648"), FileWriter(str(tmp_path)) as writer:
        writer.write("op", _ops(1).set_column(0, "queue_id", pa.array([2**31])))


def test_files_and_notes_come_back_from_the_tasks(tmp_path: Path) -> None:
    """A task without rows has no file, and may still have a note."""
    with FileWriter(str(tmp_path)) as writer:
        writer.write("op", _ops())
        assert writer.close() == []
        writer.write("op", _ops(1))
        done = writer.close()
    rows = pa.Table.from_batches([file_rows(done), file_rows([], b"seen")])
    assert files_of(rows) == (done, [b"seen"])


def test_table_that_cannot_be_written_stops_no_other(tmp_path: Path) -> None:
    """Where the caller says so: all of its rows are left out. An error of the machine ends the whole."""
    (tmp_path / "topics").mkdir()
    (tmp_path / "topics/b").write_text("in the way")
    rows = {name: pa.Table.from_pylist([{"half_queue_offset": 1}], schema=arrow_schema(name)) for name in _TOPICS}
    with FileWriter(str(tmp_path), apart="topics/") as writer:
        for name in [*_TOPICS, *_TOPICS]:
            writer.write(name, rows[name])
        assert sorted(file.name for file in writer.close()) == ["topics/a", "topics/c"]
        assert [type(error) for error in writer.failed.values()] == [FileExistsError]
    with pytest.raises(FileExistsError), FileWriter(str(tmp_path)) as writer:
        writer.write("topics/b", rows["topics/b"])
    (tmp_path / "topics/b").unlink()
    with FileWriter(str(tmp_path), apart="topics/") as writer:
        writer.write("topics/b", rows["topics/b"])
        (tmp_path / "topics/b" / writer._files["topics/b"].path).symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space"):
            writer.close()


def test_files_open_at_once_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many topics there are: a process may have some hundreds open, and then none would be published."""
    monkeypatch.setattr(parquet_files, "_OPEN", 2)
    names = [f"topics/t{number}" for number in range(10)]
    with FileWriter(str(tmp_path), buffer=1) as writer:
        for offset in range(3):
            for name in names:
                writer.write(name, pa.Table.from_pylist([{"half_queue_offset": offset}], schema=arrow_schema(name)))
                assert sum(file.writer is not None for file in writer._files.values()) <= 2
        found = writer.close()
    for name in names:
        offsets = [
            row["half_queue_offset"]
            for file in found
            if file.name == name
            for row in pq.read_table(tmp_path / name / file.path, partitioning=None).to_pylist()
        ]
        assert sorted(offsets) == [0, 1, 2]
