"""Files land once, whatever is in them and however they are named, and a batch done twice changes nothing."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from checkback.errors import CheckbackError, SettingsError, StateError
from checkback.landing import file_source, run
from checkback.landing.batch import Landing
from checkback.landing.duplicates import COPIES_MAX
from checkback.landing.parser import RAW_MAX
from checkback.landing.run import Landed
from checkback.messages import LINE_MAX, parse_half, parse_ops
from checkback.storage.queue_owners import Queues
from checkback.storage.spark_schemas import HALF, OP, REJECTED
from checkback.storage.tables import Tables
from conftest import TRACE
from landing.fixtures import Lakehouse, half, op

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from typing import Any

    from pyspark.sql import DataFrame, SparkSession


def test_trace_lands_once_and_fits_the_tables(lake: Lakehouse) -> None:
    files = TRACE / "half.jsonl", TRACE / "op.jsonl"
    assert lake.land(*files) == Landed(half=154, op=91, rejected=0)
    versions = lake.versions()

    for name, schema in (("half", HALF), ("op", OP), ("rejected", REJECTED)):
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
    columns = ("queue_id", "half_offset", "transaction_id", "producer_group", "state")
    assert lake.rows("op", *columns, "source", "remark") == sorted((*op[:5], "producer", None) for op in expected_ops)

    # The same files by their folder's pattern: nothing is left to take.
    assert lake.land(TRACE / "h*.jsonl", TRACE / "o*.jsonl") == Landed()
    # Killed between the writes and the note that they are done: the batch runs again, its rows are there already.
    lake.forget_last_batch("land-half")
    lake.forget_last_batch("land-op")
    lake.land(*files)
    assert lake.commits("land-half") == lake.commits("land-op") == [0]
    assert lake.versions() == versions


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
    batch = json.loads(op(0)) | {"half_offsets": "2,3,"}
    del batch["half_offset"], batch["transaction_id"]
    (ops / "deeper").mkdir()
    (ops / "deeper" / "b{1}.jsonl").write_text(json.dumps(batch))
    assert lake.land(halves, ops) == Landed(half=4, op=3, rejected=8)

    assert lake.rows("half", "queue_offset") == [(0,), (1,), (2,), (3,)]
    assert lake.rows("op", "half_offset", "transaction_id", "state") == [
        (0, "t0", "COMMIT"),
        (2, None, "COMMIT"),
        (3, None, "COMMIT"),
    ]
    assert lake.rows("rejected", "source", "file", "reason", "raw") == [
        ("half", f"{halves}/long", "line: over 16 MiB", "x" * RAW_MAX),
        ("half", f"{halves}/mixed.jsonl", "not JSON: Expecting value at character 0", "nonsense"),
        ("half", f"{halves}/mixed.jsonl", "queue_id: -1 is negative", half(1, queue_id=-1)),
        ("half", f"{halves}/packed.gz", "queue_id: missing", "{}"),
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


def test_watching_ends_with_a_vanished_folder(lake: Lakehouse, inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take = Landing.__call__

    def take_and_remove(landing: Landing, batch: DataFrame, batch_id: int) -> None:
        take(landing, batch, batch_id)
        shutil.rmtree(inbox)

    monkeypatch.setattr(Landing, "__call__", take_and_remove)
    (inbox / "a.jsonl").write_text(half(0))
    with pytest.raises(CheckbackError) as caught:
        lake.land(half=inbox, available_now=False)
    assert str(caught.value) == f"{inbox}: the folder has vanished; restore it and run again"
    assert lake.rows("half", "queue_offset") == [(0,)]
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


def test_op_that_comes_over_and_over_again_lands_some_times(lake: Lakehouse, inbox: Path) -> None:
    """A small packed file must not fill a batch. Kept is what was born first: that decides."""
    batch = json.loads(op(0)) | {"half_offsets": "2,3,2,"}
    del batch["half_offset"], batch["transaction_id"]
    lines = [op(0, born_timestamp=1_700_000_000_000 - born) for born in range(30)]
    lines += [op(1)] * COPIES_MAX + [op(0, state="ROLLBACK"), "nonsense"] + [json.dumps(batch)] * (COPIES_MAX + 2)
    (inbox / "ops.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    landed = Landed(op=4 * COPIES_MAX + 1, rejected=3)
    assert lake.land(op=inbox) == landed
    versions = lake.versions()
    counts = Counter(lake.rows("op", "half_offset", "state"))
    assert counts == {
        **{(offset, "COMMIT"): COPIES_MAX for offset in range(4)},
        (0, "ROLLBACK"): 1,
    }
    born = [row.born_timestamp for row in lake.rows("op", "half_offset", "born_timestamp") if row.half_offset == 0]
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


def test_queues_of_the_gateway_and_the_operator_take_no_lines(lake: Lakehouse, inbox: Path) -> None:
    halves, ops = inbox / "halves", inbox / "ops"
    for folder in (halves, ops):
        folder.mkdir()
    (halves / "a.jsonl").write_text(half(0))
    assert lake.land(half=halves) == Landed(half=1)
    # A gateway starts later on a queue into which files have landed.
    lake.gateway(0, 3)
    own = lake.settings.operator.queue
    (halves / "b.jsonl").write_text("\n".join([half(1), half(1, queue_id=own), half(1, queue_id=1), half(0)]))
    several = json.loads(op(0)) | {"half_offsets": "5,6,"}
    del several["half_offset"], several["transaction_id"]
    (ops / "a.jsonl").write_text("\n".join([op(0, queue_id=3), op(0, queue_id=1), json.dumps(several)]))
    assert lake.land(halves, ops) == Landed(half=1, op=1, rejected=5)
    assert lake.rows("half", "queue_id", "queue_offset") == [(0, 0), (1, 1)]
    assert lake.rows("op", "queue_id", "half_offset") == [(1, 0)]
    told = "queue_id: {} is the {}'s, whose messages come by no other door".format
    rejected = [
        ("half", told(0, "gateway"), half(0)),
        ("half", told(0, "gateway"), half(1)),
        ("half", told(own, "operator"), half(1, queue_id=own)),
        ("op", told(0, "gateway"), json.dumps(several)),
        ("op", told(3, "gateway"), op(0, queue_id=3)),
    ]
    assert lake.rows("rejected", "source", "reason", "raw") == rejected
    # Done again, a batch rejects nothing that it has landed before the queue had an owner.
    lake.gateway(1)
    lake.forget_last_batch("land-half")
    lake.forget_last_batch("land-op")
    assert lake.land(halves, ops).half == 1
    assert lake.rows("rejected", "source", "reason", "raw") == rejected


@pytest.mark.parametrize("killed", ["half", "op", "rejected"])
def test_batch_that_is_done_again_under_other_settings_has_each_line_once(
    lake: Lakehouse, inbox: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    """Killed before one of its commits; what was refused then is taken now, and the other way round."""
    kind = "op" if killed == "op" else "half"
    line = op if kind == "op" else half
    told = "queue_id: {} is the operator's, whose messages come by no other door".format
    texts = [line(0), line(0, queue_id=7), line(0, queue_id=8), line(1, queue_id=8), "nonsense", "nonsense", line(1)]
    (inbox / "a.jsonl").write_text("\n".join(texts))
    append, fenced = Tables.append, Tables.append_fenced

    def dying(work: Callable[..., Any]) -> Callable[..., Any]:
        def killing(*given: Any) -> Any:
            if given[2] == killed:
                raise RuntimeError
            return work(*given)

        return killing

    def land(lake: Lakehouse) -> Landed:
        return lake.land(op=inbox) if kind == "op" else lake.land(half=inbox)

    with monkeypatch.context() as patch:
        patch.setattr(Tables, "append", dying(append))
        patch.setattr(Tables, "append_fenced", dying(fenced))
        with pytest.raises(CheckbackError):
            land(_with_operator(lake, 7))
    now = _with_operator(lake, 8)
    taken, rejected = {"half": (2, 5), "op": (2, 5), "rejected": (3, 4)}[killed]
    landed = Landed(op=taken, rejected=rejected) if kind == "op" else Landed(half=taken, rejected=rejected)
    assert land(now) == landed
    after = now.rows(kind, "queue_id"), now.rows("rejected", "reason", "raw")
    raws = [row.raw for row in after[1]]
    assert sorted(raws + [text for text in texts if text not in raws]) == sorted(texts)
    assert len(after[0]) == taken
    assert {row.reason for row in after[1]} == {
        told(8),
        *([] if killed == "rejected" else [told(7)]),
        "not JSON: Expecting value at character 0",
    }
    # Whole, and done again under the first settings: nothing moves.
    lake.forget_last_batch(f"land-{kind}")
    assert land(_with_operator(lake, 7)) == landed
    assert (now.rows(kind, "queue_id"), now.rows("rejected", "reason", "raw")) == after


def _with_operator(lake: Lakehouse, queue: int) -> Lakehouse:
    operator = lake.settings.operator.model_copy(update={"queue": queue})
    return replace(lake, settings=lake.settings.model_copy(update={"operator": operator}))


def test_gateway_that_claims_a_queue_during_a_batch_keeps_it(
    lake: Lakehouse, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Queues.refused

    def look_and_be_late(queues: Queues, wanted: Iterable[int]) -> dict[int, str]:
        found = look(queues, wanted)
        monkeypatch.undo()
        lake.gateway(0)
        return found

    monkeypatch.setattr(Queues, "refused", look_and_be_late)
    (inbox / "a.jsonl").write_text(f"{half(0)}\n{half(0, queue_id=1)}")
    assert lake.land(half=inbox) == Landed(half=1, rejected=1)
    assert lake.rows("half", "queue_id") == [(1,)]


def test_changed_files_are_not_read_again_and_are_told_of(
    lake: Lakehouse, inbox: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "abc":
        (inbox / name).write_text(half(ord(name)) + "\n")
    assert lake.land(half=inbox) == Landed(half=3)
    assert lake.land(half=inbox) == Landed()
    assert not caplog.messages
    # One grows, one is written anew, one is renamed.
    with (inbox / "a").open("a") as file:
        file.write(half(0))
    (inbox / "b").write_text(half(1))
    os.utime(inbox / "b", (2_000_000_000, 2_000_000_000))
    (inbox / "c").rename(inbox / "d")
    os.utime(inbox / "a", (2_000_000_000, 2_000_000_000))
    assert lake.land(half=inbox) == Landed(rejected=1)
    (told,) = caplog.messages
    assert told.startswith("2 files have changed since they were read, as ")
    assert lake.rows("rejected", "file", "raw") == [(f"{inbox}/d", half(ord("c")))]


def test_one_file_or_link_of_somebody_holds_nobody_s_files_up(
    lake: Lakehouse, inbox: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "secret").write_text("password\n")
    (tmp_path / "home").mkdir()
    for name, target in (("a", "."), ("b", "."), ("home", "../home"), ("secret", "../secret"), ("own", "0")):
        (inbox / name).symlink_to(target)
    os.truncate(os.open(inbox / "holes", os.O_CREAT | os.O_RDWR), 15 << 30)
    (inbox / "0").write_text(half(0))
    (inbox / "future").write_text(half(1))
    os.utime(inbox / "future", (2**33, 2**33))  # the year 2242
    assert lake.land(half=inbox) == Landed(half=2, rejected=3)
    rejected = [
        (f"{inbox}/holes", "file: is over 256 MiB and has holes, which were never written; copy it without", None),
        (f"{inbox}/own", "repeated (queue_id, queue_offset) 0/0", half(0)),
        (
            f"{inbox}/secret",
            "file: is a link that leads out of the folder that is landed; put the file itself there",
            None,
        ),
    ]
    assert lake.rows("rejected", "file", "reason", "raw") == rejected
    assert f"{inbox}/home: skipped: a link that leads out of the folder that is landed" in caplog.messages
    # The future has been seen.
    (inbox / "2").write_text(half(2))
    os.utime(inbox / "2", (-(2**31), -(2**31)))
    (tmp_path / "link").symlink_to(inbox)
    assert lake.land(half=inbox) == Landed(half=1)
    # The operator's own links, and globs.
    (tmp_path / "file").symlink_to(inbox / "0")
    assert lake.land(half=tmp_path / "link" / "2").rejected == 1
    assert lake.land(half=tmp_path / "file").rejected == 1
    (tmp_path / "in").symlink_to(inbox)
    (inbox / "3, file:").write_text(half(3))
    assert lake.land(half=f"{tmp_path}/in/3*") == Landed(half=1)


def test_files_that_spark_has_listed_itself_are_not_taken_again(lake: Lakehouse, inbox: Path) -> None:
    """As it did in checkpoints of before: the URIs are the same."""
    for number, name in enumerate(
        ["a b%20", "ü😀", "n\nl", "[x]{a,b}*?\\", "\u00a0\u2028", ":@&=+$,;~!()'\"<>#^`|", "sub/c"]
    ):
        (inbox / name).parent.mkdir(exist_ok=True)
        (inbox / name).write_text(half(number))
    pattern, schema = file_source._as_glob(str(inbox)), file_source._BINARY_FILE
    rows = lake.spark.readStream.format("binaryFile").schema(schema).options(**file_source._OPTIONS).load(pattern)
    query = rows.select("path").writeStream.option("checkpointLocation", lake.tables.checkpoint("land-half"))
    query.trigger(availableNow=True).foreachBatch(lambda *_: None).start().awaitTermination()
    (inbox / "new").write_text(half(9))
    assert lake.land(half=inbox) == Landed(half=1)


def test_folder_is_looked_at_again_while_it_is_watched(
    lake: Lakehouse, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Landing.__call__

    def take_and_go_on(landing: Landing, batch: DataFrame, batch_id: int) -> None:
        take(landing, batch, batch_id)
        if batch_id == 0:
            (inbox / "b.jsonl").write_text(half(1))
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Landing, "__call__", take_and_go_on)
    (inbox / "a.jsonl").write_text(half(0))
    assert lake.land(half=inbox, available_now=False) == Landed(half=2)


def test_elsewhere_hadoop_reads_no_line_beyond_a_limit(
    spark: SparkSession, inbox: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not on this machine Spark reads the lines: what it is told of their length must reach Hadoop's reader."""
    monkeypatch.setitem(file_source._OPTIONS, "mapreduce.input.linerecordreader.line.maxlength", "1000")
    for end in ("", ".gz"):
        data = b"first\n" + b"a" * 100_000 + b"\nlast\n"
        (inbox / f"a{end}").write_bytes(gzip.compress(data) if end else data)
    found = replace(file_source.Source.find(spark, str(inbox)), local=False)
    query = found.stream(spark).writeStream.format("memory").queryName("elsewhere")
    query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    lines = [bytes(row["line"]) for row in spark.table("elsewhere").select("line").collect()]
    assert sorted(lines) == [b"first", b"first", b"last", b"last"]


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("nowhere", "no such file or folder"),
        ("_hidden", "files whose names begin with _ or . are skipped"),
        ("nosuch://bucket/in", 'No FileSystem for scheme "nosuch"'),
    ],
)
def test_wrong_path_is_refused_before_anything_starts(lake: Lakehouse, tmp_path: Path, path: str, what: str) -> None:
    (tmp_path / "_hidden").touch()
    with pytest.raises(SettingsError, match=what) as caught:
        lake.land(half=path if "://" in path else tmp_path / path)
    assert caught.value.where.endswith(path)
    assert not lake.root.exists()


def test_nothing_to_land_is_refused(lake: Lakehouse) -> None:
    with pytest.raises(SettingsError, match="give --half PATH, --op PATH or both"):
        lake.land()


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
        patch.setattr(run, "_refuse_misfit", lambda *_: None)
        patch.setattr(Landing, "_again", property(lambda _: False, lambda *_: None), raising=False)
        with pytest.raises(CheckbackError, match="half has a batch 1 of this query already"):
            lake.land(inbox)
    shutil.rmtree(place)
    assert lake.land(inbox) == Landed(half=1, rejected=2)
    assert lake.rows("half", "queue_offset") == [(0,), (1,), (2,)]

    shutil.rmtree(lake.root / "half")
    shutil.copytree(backup / "half", lake.root / "half")
    with pytest.raises(StateError, match="the table half was put back to an older state"):
        lake.land(inbox)
