"""Files land once, whatever is in them and however they are named, and a batch done twice changes nothing."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkback.errors import CheckbackError, StateError
from checkback.landing import landing_queries
from checkback.landing.batch import Landing
from checkback.landing.duplicates import COPIES_MAX
from checkback.landing.landing_queries import Landed
from checkback.landing.parser import REJECTED_MAX
from checkback.messages.half import parse_half
from checkback.messages.limits import LINE_MAX, RAW_MAX
from checkback.messages.op import parse_ops
from checkback.storage.spark_schemas import HALF, OP, schema_of
from conftest import TRACE
from landing.fixtures import Lakehouse, half, op

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession


@pytest.mark.spine("landing from files")
def test_trace_lands_once_and_fits_the_tables(lake: Lakehouse) -> None:
    files = TRACE / "half.jsonl", TRACE / "op.jsonl"
    assert lake.land(*files) == Landed(half=154, op=91, rejected=0)
    versions = lake.versions()

    for name, schema in (("half", HALF), ("op", OP), ("rejected", schema_of("rejected"))):
        assert lake.tables.read(lake.spark, name).schema == schema
    landed = {row.queue_offset: row for row in lake.rows("half")}
    for line in files[0].read_bytes().splitlines():
        expected, row = parse_half(line), landed.pop(parse_half(line).queue_offset)
        assert bytes(row.body) == expected.body
        assert row[:10] == (*expected[:9], expected.body)
        assert row.born_timestamp.timestamp() * 1000 == pytest.approx(expected.born_timestamp, abs=0.5)
        assert row.check_immunity_s == expected.check_immunity_s
    assert not landed
    expected_ops = [op for line in files[1].read_bytes().splitlines() for op in parse_ops(line)]
    columns = ("queue_id", "queue_offset", "transaction_id", "producer_group", "state")
    assert lake.rows("op", *columns, "source", "remark") == sorted((*op[:5], "producer", None) for op in expected_ops)

    # The same files by their folder's pattern: nothing is left to take.
    assert lake.land(TRACE / "h*.jsonl", TRACE / "o*.jsonl") == Landed()
    # Killed between the writes and the note that they are done: the batch runs again, its rows are there already.
    lake.forget_last_batch("land-half")
    lake.forget_last_batch("land-op")
    lake.land(*files)
    assert lake.commits("land-half") == lake.commits("land-op") == [0]
    assert lake.versions() == versions


@pytest.mark.spine("what is wrong is rejected")
def test_bad_lines_are_rejected_and_good_ones_beside_them_land(lake: Lakehouse, inbox: Path) -> None:
    halves, ops = inbox / "halves", inbox / "ops"
    halves.mkdir()
    ops.mkdir()
    (halves / "mixed.jsonl").write_text(f"{half(0)}\r\n\n{half(1, queue_id=-1)}\nnonsense\n \r\n{half(1)}", newline="")
    (halves / "bom.jsonl").write_bytes(b"\xef\xbb\xbf" + half(2).encode() + b"\n")
    (halves / "packed.gz").write_bytes(gzip.compress(f"{half(3)}\n{{}}\n".encode()))
    (halves / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\xff\xfe")
    (halves / "long").write_bytes(b"x" * (LINE_MAX + 100))
    (halves / "empty").write_bytes(b"")
    (halves / ".unfinished").write_text("no")
    (halves / "_SUCCESS").write_text("no")
    (ops / "a.jsonl").write_text(f"{op(0)}\n{op(1, state='LATER')}\n")
    batch = json.loads(op(0)) | {"queue_offsets": "2,3,"}
    del batch["queue_offset"], batch["transaction_id"]
    (ops / "deeper").mkdir()
    (ops / "deeper" / "b{1}.jsonl").write_text(json.dumps(batch))
    assert lake.land(halves, ops) == Landed(half=4, op=3, rejected=8)

    assert lake.rows("half", "queue_offset") == [(0,), (1,), (2,), (3,)]
    assert lake.rows("op", "queue_offset", "transaction_id", "state") == [
        (0, "t0", "COMMIT"),
        (2, None, "COMMIT"),
        (3, None, "COMMIT"),
    ]
    assert lake.rows("rejected", "source", "file", "reason", "raw") == [
        ("half", f"{halves}/long", "line: over 16 MiB", "x" * RAW_MAX),
        ("half", f"{halves}/mixed.jsonl", "not JSON: Expecting value at character 0", "nonsense"),
        ("half", f"{halves}/mixed.jsonl", "queue_id: -1 is negative", half(1, queue_id=-1)),
        ("half", f"{halves}/packed.gz", "transaction_id: missing", "{}"),
        ("half", f"{halves}/picture.png", "not JSON: Expecting value at character 0", "\x1a"),
        ("half", f"{halves}/picture.png", "not JSON: byte 0 is not UTF-8", "\ufffdPNG\r"),
        ("half", f"{halves}/picture.png", "not JSON: byte 2 is not UTF-8", "\x00\x00\ufffd\ufffd"),
        ("op", f"{ops}/a.jsonl", 'state: unknown state "LATER", neither COMMIT nor ROLLBACK', op(1, state="LATER")),
    ]
    times = {row.rejected_at for row in lake.rows("rejected", "rejected_at")}
    assert times <= {row.store_timestamp for name in ("half", "op") for row in lake.rows(name, "store_timestamp")}


@pytest.fixture
def small_blocks(spark: SparkSession) -> Iterator[None]:
    """Files are read in blocks of one or two lines, and Spark packs the blocks as it likes."""
    spark.conf.set("spark.sql.files.maxPartitionBytes", "400")
    yield
    spark.conf.unset("spark.sql.files.maxPartitionBytes")


@pytest.mark.usefixtures("small_blocks")
def test_first_of_repeated_half_messages_is_kept(lake: Lakehouse, inbox: Path) -> None:
    def write(name: str, age: int, *texts: str) -> Path:
        (inbox / name).write_text("\n".join(texts))
        os.utime(inbox / name, (2_000_000_000 - age,) * 2)
        return inbox / name

    write("a.jsonl", 10, half(0, "younger file"), half(1), half(1, "later line"), half(5, queue_id=1))
    old = write("b.jsonl", 20, half(0, "older file"), half(0, "older file, later line"))
    write("c.jsonl", 10, half(1, "same age, later path"), half(2), half(5, queue_id=2))
    assert lake.land(half=inbox) == Landed(half=5, rejected=4)
    bodies = {(row.queue_id, row.queue_offset): bytes(row.body) for row in lake.rows("half")}
    assert bodies == {(0, 0): b"older file", (0, 1): b"hi", (0, 2): b"hi", (1, 5): b"hi", (2, 5): b"hi"}
    first = [
        (f"{inbox}/a.jsonl", "repeated (queue_id, queue_offset) 0/0", half(0, "younger file")),
        (f"{inbox}/a.jsonl", "repeated (queue_id, queue_offset) 0/1", half(1, "later line")),
        (f"{inbox}/b.jsonl", "repeated (queue_id, queue_offset) 0/0", half(0, "older file, later line")),
        (f"{inbox}/c.jsonl", "repeated (queue_id, queue_offset) 0/1", half(1, "same age, later path")),
    ]
    assert lake.rows("rejected", "file", "reason", "raw") == first

    # After a restart, a file named on its own, beside one that is known already: the table knows what was landed.
    # That it is far older than what has landed is no reason to pass over it.
    new = write("d.jsonl", 30 * 86_400, half(3), half(2, "in the table"), half(3, "again"), "?")
    assert lake.land(half=old) == Landed()
    assert lake.land(half=new) == Landed(half=1, rejected=3)
    after = lake.rows("rejected", "file", "reason", "raw")
    assert after == [
        *first,
        (f"{inbox}/d.jsonl", "not JSON: Expecting value at character 0", "?"),
        (f"{inbox}/d.jsonl", "repeated (queue_id, queue_offset) 0/2", half(2, "in the table")),
        (f"{inbox}/d.jsonl", "repeated (queue_id, queue_offset) 0/3", half(3, "again")),
    ]
    # Its folder later: not taken again. The same batch again: its own rows are no repeats.
    assert lake.land(half=inbox) == Landed()
    versions = lake.versions()
    lake.forget_last_batch("land-half")
    lake.land(half=inbox)
    assert lake.versions() == versions
    assert lake.rows("rejected", "file", "reason", "raw") == after


def test_signal_lets_the_batch_finish(lake: Lakehouse, inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take, handlers = Landing.__call__, [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def take_and_be_told_to_stop(landing: Landing, batch: DataFrame, batch_id: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        take(landing, batch, batch_id)

    monkeypatch.setattr(Landing, "__call__", take_and_be_told_to_stop)
    (inbox / "a.jsonl").write_text(half(0))
    assert lake.land(half=inbox, available_now=False) == Landed(half=1)
    assert lake.commits("land-half") == [0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert not lake.spark.streams.active


def test_faulty_files_are_rejected_in_one_line_and_hold_nothing_up(
    lake: Lakehouse, inbox: Path, caplog: pytest.LogCaptureFixture
) -> None:
    endless = gzip.compress(f"{half(0)}\n".encode() + b"a" * (LINE_MAX + 9) + f"\n{half(1)}\n".encode())
    (inbox / "endless.gz").write_bytes(endless)
    (inbox / "broken.gz").write_bytes(gzip.compress(f"{half(2)}\n".encode()) + b"\x1f\x8bno more")
    (inbox / "packed.lz4").write_text("?")
    (inbox / "good.jsonl").write_text(half(3))
    os.mkfifo(inbox / "pipe")  # not even listed
    assert lake.land(half=inbox) == Landed(half=4, rejected=3)
    taken = "; its lines before that are taken, the whole file must come under another name"
    rejected = [
        (f"{inbox}/broken.gz", f"file: its compressed data end too early or are corrupt{taken}", None),
        (f"{inbox}/endless.gz", "line: over 16 MiB", "a" * RAW_MAX),
        (f"{inbox}/packed.lz4", "file: unsupported compression; give it as .gz, .bz2 or .zst", None),
    ]
    assert lake.rows("rejected", "file", "reason", "raw") == rejected
    assert sorted(caplog.messages) == [f"{file}: {reason}" for file, reason, _ in rejected]
    assert lake.rows("half", "queue_offset") == [(0,), (1,), (2,), (3,)]
    # Under another name, as a whole: what has landed is known.
    (inbox / "again.gz").write_bytes(gzip.compress(f"{half(2)}\n{half(4)}\n".encode()))
    assert lake.land(half=inbox) == Landed(half=1, rejected=1)


def test_file_of_invalid_lines_is_one_row_more_and_its_good_lines_land(
    lake: Lakehouse, inbox: Path, caplog: pytest.LogCaptureFixture
) -> None:
    invalid = b"x\n" * (REJECTED_MAX + 7)
    (inbox / "bomb.gz").write_bytes(gzip.compress(invalid + f"{half(0)}\n".encode()))
    (inbox / "good.jsonl").write_text(half(1))
    landed = Landed(half=2, rejected=REJECTED_MAX + 1)
    assert lake.land(half=inbox) == landed
    (message,) = caplog.messages
    assert message.startswith(f"{inbox}/bomb.gz: file: 7 invalid lines after {REJECTED_MAX} others are not kept")
    assert len(lake.rows("rejected", "file")) == REJECTED_MAX + 1
    assert lake.rows("half", "queue_offset") == [(0,), (1,)]
    lake.forget_last_batch("land-half")  # a replay finds all of them, also the one without a text
    assert lake.land(half=inbox) == landed
    assert len(lake.rows("rejected", "file")) == REJECTED_MAX + 1


def test_op_that_comes_over_and_over_again_lands_some_times(lake: Lakehouse, inbox: Path) -> None:
    """A small packed file must not fill a batch. Kept is what was born first: that decides."""
    batch = json.loads(op(0)) | {"queue_offsets": "2,3,2,"}
    del batch["queue_offset"], batch["transaction_id"]
    lines = [op(0, born_timestamp=1_700_000_000_000 - born) for born in range(30)]
    lines += [op(1)] * COPIES_MAX + [op(0, state="ROLLBACK"), "nonsense"] + [json.dumps(batch)] * (COPIES_MAX + 2)
    (inbox / "ops.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    landed = Landed(op=4 * COPIES_MAX + 1, rejected=3)
    assert lake.land(op=inbox) == landed
    versions = lake.versions()
    counts = Counter(lake.rows("op", "queue_offset", "state"))
    assert counts == {
        **{(offset, "COMMIT"): COPIES_MAX for offset in range(4)},
        (0, "ROLLBACK"): 1,
    }
    born = [row.born_timestamp for row in lake.rows("op", "queue_offset", "born_timestamp") if row.queue_offset == 0]
    assert min(born) == datetime.fromtimestamp(1_700_000_000, timezone.utc) - timedelta(milliseconds=29)
    told = f"repeated: {{}} ops of the batch that come after {COPIES_MAX} like them"
    assert lake.rows("rejected", "reason", "raw") == [
        ("not JSON: Expecting value at character 0", "nonsense"),
        (told.format(30 - COPIES_MAX), lines[0]),
        (told.format(2 * 2), json.dumps(batch)),
    ]
    lake.forget_last_batch("land-op")
    lake.land(op=inbox)
    assert lake.versions() == versions


def test_checkpoint_and_table_that_do_not_belong_together_are_refused(
    lake: Lakehouse, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them was put back from a backup: new files would be taken for landed. Begun anew, nothing is lost."""
    place, backup = lake.tables.checkpoint("land-half"), inbox.with_name("backup")
    for offset in (0, 1):
        (inbox / f"{offset}.jsonl").write_text(half(offset))
        lake.land(inbox)
        if not offset:
            shutil.copytree(lake.root, backup)
    (inbox / "2.jsonl").write_text(half(2))
    shutil.rmtree(place)
    shutil.copytree(backup / os.path.relpath(place, lake.root), place)
    with pytest.raises(
        StateError, match=r"land-half: the checkpoint is older than the tables.*move this checkpoint away"
    ):
        lake.land(inbox)
    with monkeypatch.context() as patch:  # as if the other batch had come since the start
        patch.setattr(landing_queries, "_refuse_misfit", lambda *_: None)
        patch.setattr(Landing, "_again", property(lambda _: False, lambda *_: None), raising=False)
        with pytest.raises(CheckbackError, match="half has a batch 1 of this query already"):
            lake.land(inbox)
    shutil.rmtree(place)
    assert lake.land(inbox) == Landed(half=1, rejected=2)
    assert lake.rows("half", "queue_offset") == [(0,), (1,), (2,)]

    shutil.rmtree(lake.root / "half")
    shutil.copytree(backup / "half", lake.root / "half")
    with pytest.raises(StateError, match="the table half was restored to an older state"):
        lake.land(inbox)


@pytest.mark.parametrize("line", [half(0), "bad"])
def test_batch_of_another_plan_is_not_taken_for_done(
    lake: Lakehouse, inbox: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes have planned it at once, which in an object store nobody notices: the other one read a file more.

    That file would count as landed.
    """
    (inbox / "0.jsonl").write_text(line)
    lake.land(inbox)
    (inbox / "1.jsonl").write_text(half(1))
    place = Path(lake.tables.checkpoint("land-half"))
    lake.forget_last_batch("land-half")
    read, plan = place / "sources/0/0", place / "offsets/0"
    entry = read.read_text().splitlines()[-1]
    _replace(read, f"{read.read_text()}\n{entry.replace('0.jsonl', '1.jsonl')}")
    _replace(plan, plan.read_text().replace('"batchTimestampMs":1', '"batchTimestampMs":2'))
    with pytest.raises(StateError, match=r"another batch 0 than the checkpoint has.*move this checkpoint away"):
        lake.land(inbox)
    with monkeypatch.context() as patch:  # as if the other one had come since the start
        patch.setattr(landing_queries, "_refuse_misfit", lambda *_: None)
        with pytest.raises(CheckbackError, match="has a batch 0 of this query already"):
            lake.land(inbox)
    shutil.rmtree(place)
    assert lake.land(inbox) == Landed(half=1, rejected=1)
    assert (1,) in lake.rows("half", "queue_offset")


def _replace(file: Path, content: str) -> None:
    file.with_name(f".{file.name}.crc").unlink()  # object stores have none
    file.write_text(content)
