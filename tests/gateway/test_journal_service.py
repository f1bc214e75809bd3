"""The gateway with its journal: starts, stops, outages of the tables, queues that change hands."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from checkback.errors import CheckbackError, SettingsError, StorageError
from checkback.gateway.appender import Appender, half_rows
from checkback.gateway.journal.files import LARGE
from checkback.gateway.metrics import Metrics
from checkback.gateway.ownership import changed_hands
from checkback.gateway.problems import Problem
from checkback.gateway.service import GatewayService
from checkback.messages.half import Half
from checkback.messages.op import Op
from checkback.settings import Settings
from checkback.storage.log.delta_log import DeltaLog
from gateway.process import PATIENCE_S, Gateway, half, op, rows
from gateway.test_journal import crash

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from checkback.gateway.problems import Answer

pytestmark = pytest.mark.slow


def settings_of(root: Path, sync: bool = False, **gateway: object) -> Settings:
    return Settings.model_validate({"storage": {"root": str(root), "sync": sync}, "gateway": gateway})


def started(root: Path, take_over: bool = False, sync: bool = False, **gateway: object) -> GatewayService:
    def stop(error: CheckbackError) -> None:
        raise AssertionError(str(error))

    return GatewayService(settings_of(root, sync, **gateway), Metrics(), stop, take_over)


def run(
    service: GatewayService, act: Callable[[GatewayService], Awaitable[Any]], kill: bool = False
) -> CheckbackError | None:
    """Act on a running service; then it ends, or is killed. Returns the error with which it ended."""

    async def main() -> CheckbackError | None:
        running = asyncio.create_task(service.run())
        await asyncio.wait_for(act(service), PATIENCE_S)
        if kill:
            running.cancel()
            await asyncio.wait([running])
            return None
        service.hurry()
        service.close()
        await asyncio.wait([running])
        error = running.exception()
        assert error is None or isinstance(error, CheckbackError)
        return error

    if kill and service.journal is not None:
        service.journal.close = lambda: crash(service.journal)  # type: ignore[method-assign, arg-type]
    return asyncio.run(main())


async def send(service: GatewayService, name: str) -> Answer:
    message = Half(0, 0, name, "orders", "payments", 0, None, None, {}, b"body", 1000, None)
    return (await service.halves.take([message], None))[0]


async def end(service: GatewayService, name: str, place: Answer, state: str = "COMMIT") -> Answer:
    assert isinstance(place, dict)
    message = Op(place["queue_id"], place["queue_offset"], name, "orders", state, 1000)
    return (await service.ops.take([(message, None)], None))[0]


def offsets(root: Path) -> dict[str, int]:
    return {row["transaction_id"]: row["queue_offset"] for row in rows(root, "half")}


def code(answer: Answer) -> str | None:
    return answer.code if isinstance(answer, Problem) else None


def test_what_a_killed_gateway_has_acknowledged_is_committed_by_the_next_start(tmp_path: Path) -> None:
    places = []

    async def act(service: GatewayService) -> None:
        places.append(await send(service, "t-0"))
        places.append(await send(service, "t-1"))
        assert code(await end(service, "t-0", places[0])) is None

    run(started(tmp_path, flush="1h"), act, kill=True)
    service = started(tmp_path)
    assert service.recovered == 3
    assert offsets(tmp_path) == {"t-0": 0, "t-1": 1}

    async def again(service: GatewayService) -> None:
        assert await send(service, "t-1") == places[1]
        assert (await end(service, "t-0", places[0])) == {
            "transaction_id": "t-0",
            "queue_id": 0,
            "queue_offset": 0,
            "state": "COMMIT",
            "repeated": True,
        }
        assert code(await end(service, "t-0", places[0], "ROLLBACK")) == "contradiction"

    assert run(service, again) is None
    assert [row["transaction_id"] for row in rows(tmp_path, "op")] == ["t-0"]


@pytest.mark.parametrize("flushed", [True, False])
def test_file_that_is_gone_matters_only_to_what_is_not_in_the_tables(tmp_path: Path, flushed: bool) -> None:
    """Rows that name a file which is not there."""
    body = b"b" * LARGE

    async def stored(service: GatewayService, name: str) -> None:
        message = Half(0, 0, name, "orders", "payments", 0, None, None, {}, body, 1000, None)
        assert code((await service.halves.take([message], None))[0]) is None

    async def many(service: GatewayService) -> None:
        # more rows than an append deletes
        for number in range(30):
            await stored(service, f"t-{number}")
        if flushed:
            assert service._flushing is not None
            await asyncio.to_thread(service._flushing._to_tables.flush)

    run(started(tmp_path, sync=True, flush="1h"), many, kill=True)
    (tmp_path / "_journal/journal-1.bin").unlink()
    if not flushed:
        for _ in range(2):
            with pytest.raises(StorageError, match=r"journal-1.bin is not there, or not as it was"):
                started(tmp_path, sync=True)
        return
    for number in range(30, 33):
        service = started(tmp_path, sync=True, flush="1h")
        assert service.recovered == (number > 30)
        # to another file: rows still name the one that is gone
        assert run(service, partial(stored, name=f"t-{number}"), kill=number < 32) is None
    assert offsets(tmp_path) == {f"t-{number}": number for number in range(33)}
    assert len(rows(tmp_path, "half")) == 33


def test_what_is_not_in_the_tables_yet_is_known_all_the_same(tmp_path: Path) -> None:
    """Although the cache forgets at once: ops are judged, repeats keep their place, questions are answered."""

    async def act(service: GatewayService) -> None:
        place = await send(service, "t-0")
        await send(service, "t-1")
        service.forget()
        assert await send(service, "t-0") == place
        assert code(await end(service, "t-0", place)) is None
        service.forget()
        assert code(await end(service, "t-0", place, "ROLLBACK")) == "contradiction"
        told = await service.questions.transaction("t-0", "orders", None)
        assert isinstance(told, dict)
        assert (told["state"], told["queue_offset"]) == ("COMMIT", 0)
        assert not rows(tmp_path, "half")

    assert run(started(tmp_path, flush="1h", dedup_window="1ms", dedup_max=1), act) is None
    assert offsets(tmp_path) == {"t-0": 0, "t-1": 1}


def test_tables_that_cannot_be_written_stop_nobody_until_the_journal_is_full(tmp_path: Path) -> None:
    service = started(tmp_path, flush="1ms", journal_max="1MiB")

    async def act(service: GatewayService) -> None:
        os.rename(tmp_path / "half", tmp_path / "away")
        (tmp_path / "half").write_text("no folder")
        answers = [await send(service, "t-0")]
        for number in range(1, 30):
            message = Half(0, 0, f"t-{number}", "orders", "payments", 0, None, None, {}, b"x" * 50_000, 1000, None)
            answers += await service.halves.take([message], None)
        assert {code(answer) for answer in answers[:15]} == {None}
        assert code(answers[-1]) == "journal_full"
        assert service.health.ready
        os.symlink(tmp_path / "away", tmp_path / "back")
        os.replace(tmp_path / "back", tmp_path / "half")  # at once, as the next flush makes the folder anew

    assert run(service, act) is None
    assert offsets(tmp_path) == {f"t-{n}": n for n in range(len(offsets(tmp_path)))}


def test_journal_that_is_half_full_is_flushed_at_once(tmp_path: Path) -> None:
    """Else it would become full although the tables can be written."""

    async def act(service: GatewayService) -> None:
        assert service.journal is not None
        message = Half(0, 0, "", "orders", "payments", 0, None, None, {}, b"x" * 50_000, 1000, None)
        answers = await service.halves.take([message._replace(transaction_id=f"t-{n}") for n in range(15)], None)
        answers += await service.halves.take([message._replace(transaction_id="t-15")], None)
        while service.journal.rows > 1:  # the last one may not be among those
            await asyncio.sleep(0)
        assert {code(answer) for answer in answers} == {None}

    assert run(started(tmp_path, flush="1h", journal_max="1MiB"), act) is None
    assert offsets(tmp_path) == {f"t-{n}": n for n in range(16)}


def test_end_without_the_tables_says_what_is_left(tmp_path: Path) -> None:
    async def act(service: GatewayService) -> None:
        await send(service, "t-0")
        os.rename(tmp_path / "half", tmp_path / "away")
        (tmp_path / "half").write_text("no folder")

    error = run(started(tmp_path, flush="1h"), act)
    assert isinstance(error, StorageError)
    assert "1 messages are acknowledged and in the journal, not in the tables yet" in str(error)
    assert "then start again: the start commits them" in str(error)
    (tmp_path / "half").unlink()
    os.rename(tmp_path / "away", tmp_path / "half")
    assert run(started(tmp_path), lambda service: asyncio.sleep(0, service)) is None
    assert offsets(tmp_path) == {"t-0": 0}


@pytest.mark.parametrize("name", ["half", "op"])
def test_table_that_is_made_anew_under_it_ends_it(tmp_path: Path, name: str) -> None:
    """What it acknowledged from then on could land nowhere: its next start is refused until the old one is back."""

    async def act(service: GatewayService) -> None:
        os.rename(tmp_path / name, tmp_path / "away")
        DeltaLog.create(name, str(tmp_path / name))
        await end(service, "t-0", await send(service, "t-0"))
        while not service.health.stopping:
            await asyncio.sleep(0)

    error = run(started(tmp_path, flush="1ms"), act)
    told = f"{tmp_path}/{name}: the table was recreated meanwhile; restore the previous table, then start again"
    assert f"not in the tables yet: {told}" in str(error)
    assert not rows(tmp_path, name)
    assert not list((tmp_path / name).glob("*.parquet"))
    shutil.rmtree(tmp_path / name)
    os.rename(tmp_path / "away", tmp_path / name)
    assert run(started(tmp_path), lambda service: asyncio.sleep(0, service)) is None
    assert [[row["transaction_id"] for row in rows(tmp_path, name)] for name in ("half", "op")] == [["t-0"]] * 2


def test_queue_of_another_journal_is_refused_and_taken_over(tmp_path: Path) -> None:
    """What the other had acknowledged lands later, where it was acknowledged; nothing has its offset."""
    root, first, second = tmp_path / "tables", str(tmp_path / "first"), str(tmp_path / "second")

    async def act(service: GatewayService) -> None:
        assert (await send(service, "old")) == {"transaction_id": "old", "queue_id": 0, "queue_offset": 0}

    run(started(root, journal=first, flush="1h"), act, kill=True)
    for acknowledge in ("journal", "table"):
        with pytest.raises(SettingsError, match=r"another gateway's journal may have messages for half queue 0"):
            started(root, journal=second, acknowledge=acknowledge)

    async def other(service: GatewayService) -> None:
        answer = await send(service, "new")
        assert isinstance(answer, dict)
        assert answer["queue_offset"] == 2**32

    assert run(started(root, take_over=True, journal=second), other) is None
    assert offsets(root) == {"new": 2**32}
    with pytest.raises(SettingsError, match="another gateway's journal"):
        started(root, journal=first)
    assert offsets(root) == {"old": 0, "new": 2**32}

    async def back(service: GatewayService) -> None:
        answer = await send(service, "back")
        assert isinstance(answer, dict)
        assert answer["queue_offset"] == 2**33 + 1

    assert run(started(root, take_over=True, journal=first), back) is None


def test_a_take_over_without_messages_keeps_its_offsets_apart(tmp_path: Path) -> None:
    """Also if the new owner was killed before its first message."""
    root, first, second = tmp_path / "tables", str(tmp_path / "first"), str(tmp_path / "second")
    run(started(root, journal=first, flush="1h"), lambda service: send(service, "old"), kill=True)
    run(started(root, take_over=True, journal=second), lambda service: asyncio.sleep(0, service), kill=True)
    assert run(started(root, journal=second), lambda service: send(service, "new")) is None
    assert offsets(root) == {"new": 2**32}


def test_offsets_that_others_have_taken_are_told(tmp_path: Path) -> None:
    """As when `half` was written by something else meanwhile: no message is dropped, none lands twice."""
    run(started(tmp_path, flush="1h"), lambda service: send(service, "old"), kill=True)
    os.rename(tmp_path / "_journal", tmp_path / "away")
    assert run(started(tmp_path, take_over=True, acknowledge="table"), lambda service: send(service, "x")) is None
    appender = Appender(str(tmp_path), "half", [1], sync=False)
    message = Half(0, 0, "forged", "orders", "payments", 0, None, None, {}, b"body", 1000, None)
    appender.append(half_rows([message], 0, 0, 1))
    os.rename(tmp_path / "away", tmp_path / "_journal")
    with pytest.raises(StorageError, match=r"1 half messages of the journal cannot land: others are at their offsets"):
        started(tmp_path, take_over=True)


def test_queues_are_given_up_and_to_tables_alone(tmp_path: Path) -> None:
    """A queue that is no longer named is free for others; acknowledge: table drains the journal first."""
    run(started(tmp_path, queues=[0, 1], flush="1h"), lambda service: send(service, "t-0"), kill=True)
    assert run(started(tmp_path, queues=[0]), lambda service: asyncio.sleep(0, service)) is None
    other = started(tmp_path, queues=[1], journal=str(tmp_path / "other"))
    assert run(other, lambda service: send(service, "t-1")) is None
    run(started(tmp_path, queues=[0], flush="1h"), lambda service: send(service, "t-2"), kill=True)
    assert run(started(tmp_path, queues=[0], acknowledge="table"), lambda service: send(service, "t-3")) is None
    assert offsets(tmp_path) == {"t-0": 0, "t-1": 0, "t-2": 1, "t-3": 2}
    assert run(started(tmp_path, queues=[0], acknowledge="table"), lambda service: send(service, "t-4")) is None
    assert run(started(tmp_path, queues=[0]), lambda service: send(service, "t-5")) is None
    assert offsets(tmp_path)["t-5"] == 4


def test_queue_that_is_taken_over_while_it_is_given_up_stays_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a third gateway got it unasked, and assigned offsets that the second has acknowledged."""
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    root = tmp_path / "tables"
    run(started(root, journal=first, queues=[0, 1]), lambda service: send(service, "old"))
    taken: list[GatewayService] = []

    def meanwhile(*args: Any) -> Any:
        monkeypatch.undo()
        taken.append(started(root, take_over=True, journal=second, queues=[0], flush="1h"))
        return changed_hands(*args)

    monkeypatch.setattr("checkback.gateway.journal.recovery.changed_hands", meanwhile)
    giving_up = started(root, journal=first, queues=[1])
    run(taken[0], lambda service: send(service, "new"), kill=True)
    assert run(giving_up, lambda service: asyncio.sleep(0, service)) is None
    with pytest.raises(SettingsError, match="another gateway's journal may have messages for half queue 0"):
        started(root, journal=third, queues=[0])
    run(started(root, journal=second, queues=[0]), lambda service: asyncio.sleep(0, service))
    assert offsets(root) == {"old": 0, "new": 2**32 + 1}


@pytest.mark.parametrize("copied", ["before", "meanwhile"])
def test_of_copies_of_a_journal_the_outdated_one_is_refused(tmp_path: Path, copied: str) -> None:
    """Its positions are another's: what it has acknowledged would count as committed, and was never."""
    root, first, second = tmp_path / "tables", tmp_path / "first", tmp_path / "second"
    run(started(root, journal=str(first)), lambda service: send(service, "t-0"))
    if copied == "before":
        shutil.copytree(first, second)

    async def act(service: GatewayService) -> None:
        if copied == "meanwhile":
            shutil.copytree(first, second)
        assert code(await send(service, "t-1")) is None

    run(started(root, journal=str(first), flush="1h"), act, kill=True)
    if copied == "meanwhile":
        run(started(root, journal=str(second), flush="1h"), lambda service: send(service, "t-2"), kill=True)
    outdated, other = (second, first) if copied == "before" else (first, second)
    for acknowledge in ("journal", "table"):
        with pytest.raises(StorageError, match="another copy of this journal has been started since"):
            started(root, take_over=True, journal=str(outdated), acknowledge=acknowledge)
    assert run(started(root, journal=str(other)), lambda service: send(service, "t-3")) is None
    assert offsets(root) == {"t-0": 0, "t-1" if copied == "before" else "t-2": 1, "t-3": 2}


def test_a_start_that_was_killed_whenever_outdates_no_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(started(tmp_path, flush="1h"), lambda service: send(service, "t-0"), kill=True)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    for name in ("note_starts", "own", "own", "note_starts"):
        with monkeypatch.context() as patch:
            patch.setattr(f"checkback.gateway.journal.journal.Journal.{name}", killed)
            with pytest.raises(KeyboardInterrupt):
                started(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr("checkback.gateway.appender.Appender.claim", _one_claim())
            with pytest.raises(KeyboardInterrupt):
                started(tmp_path)
    assert run(started(tmp_path), lambda service: send(service, "t-1")) is None
    assert offsets(tmp_path) == {"t-0": 0, "t-1": 1}


def _one_claim() -> Callable[..., None]:
    """Claims `half`, and is killed before `op`."""
    real = Appender.claim

    def claim(appender: Appender, *args: Any) -> None:
        if appender.place.endswith("/op"):
            raise KeyboardInterrupt
        real(appender, *args)

    return claim


def test_queues_are_given_up_whenever_the_start_without_a_journal_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(started(tmp_path, queues=[0]), lambda service: send(service, "t-0"))

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("checkback.gateway.journal.recovery.claim", killed)
        with pytest.raises(KeyboardInterrupt):
            started(tmp_path, queues=[0], acknowledge="table")
    run(started(tmp_path, queues=[1], acknowledge="table"), lambda service: asyncio.sleep(0, service))
    other = started(tmp_path, queues=[0], journal=str(tmp_path / "other"))
    assert run(other, lambda service: send(service, "t-1")) is None


def test_a_clock_that_is_set_back_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(started(tmp_path, flush="1h"), lambda service: send(service, "t-0"), kill=True)
    monkeypatch.setattr(
        "checkback.gateway.journal.journal_to_tables.now_ms", lambda: int((time.time() - 18_000) * 1000)
    )

    async def act(service: GatewayService) -> None:
        assert (await send(service, "t-0")) == {"transaction_id": "t-0", "queue_id": 0, "queue_offset": 0}
        await send(service, "t-1")

    assert run(started(tmp_path), act) is None
    assert offsets(tmp_path) == {"t-0": 0, "t-1": 1}


def test_in_an_object_store_a_journal_needs_a_folder() -> None:
    settings = Settings.model_validate({"storage": {"root": "s3://bucket/x"}, "gateway": {"acknowledge": "journal"}})
    from checkback.gateway.journal.recovery import uses_journal

    with pytest.raises(SettingsError, match=r"the journal needs a folder.*name a folder on a durable local disk"):
        uses_journal(settings)


@pytest.mark.processes
def test_second_gateway_on_the_journal_is_refused_in_one_line(tmp_path: Path) -> None:
    """And the first goes on; it says how far the tables are behind, and drains on SIGTERM."""
    with Gateway(tmp_path, "gateway.flush=1h") as first:
        assert first.post("/v1/half", half("t-0")).status_code == 200
        with pytest.raises(AssertionError, match=r"another gateway has this journal open"):
            Gateway(tmp_path)
        assert first.post("/v1/op", op(0, "t-0")).status_code == 200
        ready = first.get("/readyz").json()
        assert (ready["status"], ready["journal_messages"]) == ("ok", 2)
        assert ready["behind_seconds"] > 0
        assert "checkback_gateway_journal_messages 2.0" in first.get("/metrics").text
        assert not rows(tmp_path, "half")
        assert first.stop() == (0, "")
    assert offsets(tmp_path) == {"t-0": 0}
    assert len(rows(tmp_path, "op")) == 1


@pytest.mark.processes
@pytest.mark.parametrize("replaced", [False, True])
def test_journal_that_is_removed_while_it_runs_acknowledges_nothing_more(tmp_path: Path, replaced: bool) -> None:
    """What it had acknowledged before gets into the tables all the same."""
    root, journal = tmp_path / "tables", tmp_path / "tables" / "_journal"
    with Gateway(root, "gateway.flush=10s") as gateway:
        assert gateway.post("/v1/half", half("before")).status_code == 200
        if replaced:
            shutil.copytree(journal, tmp_path / "copy")
        shutil.rmtree(journal)
        if replaced:
            shutil.copytree(tmp_path / "copy", journal)
        assert gateway.post("/v1/half", half("after")).status_code == 503
        code, said = gateway.wait()
    assert code == 1
    assert "the journal's files were removed or replaced while the gateway ran" in said
    assert offsets(root) == {"before": 0}


@contextmanager
def disk_of(place: Path, options: str) -> Iterator[Path]:
    """A file system of its own."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system can be mounted by root only")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)  # noqa: S607 - wherever it is


@pytest.mark.processes
@pytest.mark.parametrize(
    ("options", "fill", "said"),
    [
        (
            "size=96m",
            lambda disk: (disk / "fill").write_bytes(bytes(64 << 20)),
            r"on its disk 3\d MiB are free, 6\d MiB",
        ),
        (
            "size=96m,nr_inodes=64",
            lambda disk: [(disk / f"fill-{number}").touch() for number in range(50)],
            r"on its disk \d+ files can be made, 16 are needed \(inodes\)",
        ),
    ],
)
def test_full_disk_of_the_journal_is_seen(
    tmp_path: Path, options: str, fill: Callable[[Path], object], said: str
) -> None:
    """By /readyz, a metric and a line of the log, from the start on; what is acknowledged lands all the same."""
    with disk_of(tmp_path / "disk", options) as disk:
        tables = tmp_path / "tables"
        with Gateway(tables, f"gateway.journal={disk}/journal", "gateway.flush=100ms") as gateway:
            assert gateway.post("/v1/half", half("t-0")).status_code == 200
            fill(disk)
            unready = gateway.get("/readyz")
            assert (unready.status_code, unready.json()["code"]) == (503, "journal_full")
            assert re.search(said, unready.json()["detail"])
            for _ in range(3):
                refused = gateway.post("/v1/half", half("t-1"))
                assert refused.status_code == 503
                assert re.search(said, refused.json()["detail"])  # what is needed grows with what waits
            assert "checkback_gateway_ready 0.0" in gateway.get("/metrics").text
            for file in disk.glob("fill*"):
                file.unlink()
            assert gateway.get("/readyz").status_code == 200
            assert "checkback_gateway_ready 1.0" in gateway.get("/metrics").text
            assert gateway.post("/v1/half", half("t-1")).status_code == 200
            fill(disk)
            assert gateway.get("/readyz").status_code == 503
            code, log = gateway.stop()
        assert code == 0
        assert [line.split(":")[1] for line in log.splitlines()] == [
            " the journal takes no messages",
            " the journal takes messages again",
            " the journal takes no messages",
        ]
        assert offsets(tables) == {"t-0": 0, "t-1": 1}
        with Gateway(tables, f"gateway.journal={disk}/journal") as again:
            assert again.get("/readyz").status_code == 503
            code, log = again.stop()
        assert (code, log.count("the journal takes no messages"), log.count("\n")) == (0, 1, 1)


@pytest.mark.parametrize("there", [None, "", "lost+found", "decisions/_delta_log"])
def test_start_makes_no_tables_where_the_journal_s_were(tmp_path: Path, there: str | None) -> None:
    """The disk of the tables is not mounted, and what was sent would land in the mount point, or on another disk."""
    root, journal = tmp_path / "tables", str(tmp_path / "journal")
    assert run(started(root, journal=journal), lambda service: send(service, "before")) is None
    root.rename(tmp_path / "unmounted")
    if there is not None:
        (root / there).mkdir(parents=True)
    before = list(tmp_path.rglob("*"))
    with pytest.raises(SettingsError, match=r"storage.root: .* has no table half and no table op, .*; mount its disk"):
        started(root, journal=journal)
    assert list(tmp_path.rglob("*")) == before
    if there is not None:
        shutil.rmtree(root)
    (tmp_path / "unmounted").rename(root)
    assert run(started(root, journal=journal), lambda service: send(service, "after")) is None
    assert offsets(root) == {"before": 0, "after": 1}
    # Tables elsewhere, and a journal that was moved away, begin anew.
    shutil.rmtree(root)
    run(started(tmp_path / "others", journal=journal), lambda service: send(service, "others"))
    shutil.rmtree(journal)
    run(started(root, journal=journal), lambda service: send(service, "anew"))
    assert offsets(root) == {"anew": 0}
