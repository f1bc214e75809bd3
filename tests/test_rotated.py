"""Secrets in files: both values count, a change is seen, and a file that is broken leaves what was."""

from __future__ import annotations

import errno
import logging
import signal
import threading
import time
from pathlib import Path

import pytest

from checkback.check.endpoint import CheckedGroup
from checkback.errors import SettingsError
from checkback.producer import CheckServer, Message, TransactionProducer, check_app
from checkback.rotated import Rotated, read_again
from checkback.settings.loading import load
from checkback.settings.secrets import tokens_of
from gateway.process import PATIENCE_S, Gateway, half
from producer.checked import COMMIT, OTHER, SECRET, Listener, ask
from support.secret_volume import as_kubelet

OLD, NEW = "old-token-0123456789", "new-token-0123456789"


def rotated(path: Path) -> Rotated[str]:
    return Rotated({"orders": f"file:{path}"}, "producers.{}.token", lambda texts: texts["orders"])


def test_change_is_seen_within_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, now = tmp_path / "token", time.monotonic()
    file.write_text(OLD)
    found = rotated(file)
    file.write_text(f"{OLD} {NEW}\n")
    assert found.current == OLD
    monkeypatch.setattr(time, "monotonic", lambda: now + 2)
    assert found.current.split() == [OLD, NEW]


def test_asked_to_read_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(OLD)
    found = rotated(tmp_path / "token")
    (tmp_path / "token").write_text(NEW)
    read_again()
    assert found.current == NEW


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff\xfe"])
def test_broken_file_leaves_what_was(tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "token"
    file.write_text(OLD)
    found = rotated(file)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with caplog.at_level(logging.WARNING, "checkback.secrets"):
        for _ in range(2):
            read_again()
            assert found.current == OLD
    assert [record.levelname for record in caplog.records] == ["WARNING"], "once"
    with pytest.raises(SettingsError, match=r"producers\.orders\.token"):
        rotated(file)


def test_one_broken_file_keeps_no_other_secret(tmp_path: Path) -> None:
    """What was removed from another group's file counts no more, and the broken one is read when it is whole again."""
    files = {name: tmp_path / name for name in ("a", "b")}
    for file in files.values():
        file.write_text(f"{OLD}-{file.name}")
    found: Rotated[dict[str, str]] = Rotated({name: f"file:{file}" for name, file in files.items()}, "{}", dict)
    files["a"].unlink()
    files["b"].write_text(NEW)
    read_again()
    assert found.current == {"a": f"{OLD}-a", "b": NEW}
    files["a"].write_text(NEW)
    read_again()
    assert found.current == {"a": NEW, "b": NEW}


def test_file_that_could_not_be_read_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nothing about it changes, as when too many files were open for a moment."""
    now = [time.monotonic()]
    (tmp_path / "token").write_text(OLD)
    found = rotated(tmp_path / "token")
    (tmp_path / "token").write_text(NEW)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as broken:
        broken.setattr("builtins.open", refuse)
        now[0] += 2
        assert found.current == OLD
    now[0] += 2
    assert found.current == NEW


def test_what_is_no_token_is_refused_unseen(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{OLD} s3cret")
    producers = load(overrides=[f"producers.orders.token=file:{tmp_path}/token"]).settings.producers
    with pytest.raises(SettingsError, match="not a bearer token") as refused:
        tokens_of(producers, dict)
    assert "s3cret" not in str(refused.value)


def test_file_may_be_an_url(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(OLD)
    assert Rotated({"": f"file://{tmp_path}/token"}, "token", lambda texts: texts[""]).current == OLD


def test_check_is_verified_while_secrets_are_rotated(tmp_path: Path) -> None:
    """One after the other: the sender has both, the endpoint the new one, the sender the new one alone."""
    sender, receiver = SECRET, tmp_path / "secret"
    receiver.write_text(SECRET)
    with CheckServer(check_app(Listener(COMMIT), secret=f"file:{receiver}")) as server:
        for times, step in enumerate(("", "both", "receiver", "new"), start=1):
            if step == "both":
                sender = f"{OTHER} {SECRET}"
            elif step == "receiver":
                receiver.write_text(OTHER)
                read_again()
            elif step == "new":
                sender = OTHER
            assert ask(server.url, sender, times=times).outcome == "COMMIT", step
        assert ask(server.url, SECRET, times=5).outcome == "NO_ANSWER"


def test_group_hides_both_secrets() -> None:
    assert SECRET not in repr(CheckedGroup((), f"{SECRET} {OTHER}"))


@pytest.mark.processes
@pytest.mark.parametrize("signal_it", [True, False], ids=["SIGHUP", "Secrets of Kubernetes, within a second"])
def test_token_is_rotated_under_load(tmp_path: Path, signal_it: bool) -> None:
    """The page's steps, with a gateway and a producer that have a file each: no request is refused."""
    write = Path.write_text if signal_it else as_kubelet
    for name in ("gateway", "producer"):
        (tmp_path / name).mkdir()
    taken, given = tmp_path / "gateway/token", tmp_path / "producer/token"
    write(taken, OLD)
    write(given, OLD)
    lake, stop, sent = tmp_path / "lake", threading.Event(), [0]
    with Gateway(lake, f"producers.orders.token=file:{taken}") as gateway:

        def is_taken(token: str) -> bool:
            return gateway.post("/v1/half", half("probe"), token).status_code == 200

        def changed(text: str, token: str, expected: bool) -> None:
            write(taken, text)
            if signal_it:
                gateway.process.send_signal(signal.SIGHUP)
            end = time.monotonic() + PATIENCE_S
            while is_taken(token) is not expected:
                assert time.monotonic() < end

        with TransactionProducer("orders", gateway.url, Listener(COMMIT), token=f"file:{given}") as producer:

            def load_it() -> None:
                while not stop.is_set():
                    producer.send(Message("payments", b"{}"))
                    sent[0] += 1

            thread = threading.Thread(target=load_it)
            thread.start()
            try:
                changed(f"{OLD}\n{NEW}\n", NEW, True)
                before, end = sent[0], time.monotonic() + 2
                write(given, NEW)
                while sent[0] < before + 10 or time.monotonic() < end:
                    assert thread.is_alive(), "a request was refused"
                changed(NEW, OLD, False)
                before = sent[0]
                while sent[0] < before + 10:
                    assert thread.is_alive(), "a request was refused"
            finally:
                stop.set()
                thread.join()
        code, said = gateway.stop()
    assert code == 0
    assert OLD not in said
    assert NEW not in said
