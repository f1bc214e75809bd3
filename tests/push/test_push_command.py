"""`checkback push` as a process: its options and settings, how it ends, and what kill -9 leaves."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import requests
from standardwebhooks import Webhook as Verifier

from check.servers import Received, Server, always, reply
from checkback.cli import main
from consumer.heard import until
from push.test_pushed_group import OK, SECRET, handling

if TYPE_CHECKING:
    from pathlib import Path

    from consumer.published import Published

_PATIENCE_S = 30
TOPICS = {"credits": "payments", "mail": "refunds"}


class Pushing:
    """A running `checkback push`. Use as a context: it ends with SIGTERM."""

    def __init__(self, root: str, *arguments: str, environ: dict[str, str] | None = None) -> None:
        own = ("--set", f"storage.root={root}", "--set", "consumer.session_timeout=1s")
        command = [sys.executable, "-m", "checkback", "push", *arguments, *own]
        pipe: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env={**os.environ, **(environ or {})}, **pipe)

    def line(self) -> str:
        """The next line on stdout."""
        assert self.process.stdout is not None
        return str(self.process.stdout.readline()).rstrip()

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send the signal; the exit code, and what it said on stderr."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=_PATIENCE_S)
        return self.process.returncode, said

    def __enter__(self) -> Pushing:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.end()


@pytest.mark.processes
@pytest.mark.spine("the way through `checkback push`")
def test_group_topic_url(lake: Published) -> None:
    lake.publish({"payments": [lake.messages(3, tags="paid"), lake.messages(1, tags="created")]})
    with Server(always(OK)) as server:
        options = ("--url", f"{server.url}?key=secret", "--tag", "paid", "--batch", "2")
        secret = {"CHECKBACK__PUSH__CREDITS__SECRET": SECRET}
        with Pushing(lake.tables.root, "credits", "payments", *options, environ=secret) as pushing:
            assert (
                pushing.line()
                == f"checkback push: {server.url.removesuffix('check')}****, group credits, topic payments"
            )
            until(lambda: len(server.received) == 2)
            assert pushing.end() == (0, "")
    for each in server.received:
        Verifier(SECRET).verify(each.body, each.headers)


@pytest.mark.processes
def test_all_groups_of_the_settings_run_in_one_process(lake: Published, tmp_path: Path) -> None:
    lake.publish({"payments": [lake.messages(2)], "refunds": [lake.messages(3)]})
    with Server(always(OK)) as one, Server(always(OK)) as two:
        (tmp_path / "push.yml").write_text(
            f"push:\n  credits: {{topic: payments, url: '{one.url}', secret: 'env:CREDITS_SECRET'}}\n"
            f"  mail: {{topic: refunds, url: '{two.url}', mode: structured}}\n"
        )
        arguments = ("--config", str(tmp_path / "push.yml"))
        with Pushing(lake.tables.root, *arguments, environ={"CREDITS_SECRET": SECRET}) as pushing:
            until(lambda: len(one.received) == 2 and len(two.received) == 3)
            assert pushing.end(signal.SIGINT) == (130, "")
        with Pushing(lake.tables.root, "mail", *arguments, environ={"CREDITS_SECRET": SECRET}) as pushing:
            assert pushing.line().endswith(", group mail, topic refunds")
            assert pushing.end() == (0, "")
    assert (len(one.received), len(two.received)) == (2, 3)  # the second process went on behind them


@pytest.mark.processes
def test_metrics_of_all_groups(lake: Published, tmp_path: Path) -> None:
    lake.publish({"payments": [lake.messages(2)], "refunds": [lake.messages(3)]})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    with Server(always(OK)) as server:
        about = [f"push.{group}={{topic: {topic}, url: '{server.url}'}}" for group, topic in TOPICS.items()]
        options = [word for each in about for word in ("--set", each)]
        with Pushing(lake.tables.root, *options, "--metrics-port", port) as pushing:
            assert pushing.line()
            until(lambda: len(server.received) == 5)

            def counted() -> bool:
                said = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
                lines = [f'checkback_consumer_messages_total{{group="{group}"}}' for group in TOPICS]
                assert said.count("# TYPE checkback_consumer_messages_total") == 1
                return f"{lines[0]} 2.0" in said and f"{lines[1]} 3.0" in said

            until(counted)
            assert pushing.end() == (0, "")


@pytest.mark.processes
@pytest.mark.parametrize("options", [(), ("--orderly",), ("--batch", "20")], ids=" ".join)
def test_kill_9_loses_nothing(lake: Published, options: tuple[str, ...]) -> None:
    """Killed several times while messages come: each arrives, in order if it is to; positions are a group's."""
    count, kills, queues = 3000, 2, (0, 7, 21)
    seen: list[str] = []

    def answers(received: Received) -> bytes:
        events = json.loads(received.body) if options[:1] == ("--batch",) else [{"id": received.headers["ce-id"]}]
        seen.extend(each["id"] for each in events)
        return OK

    with Server(handling(answers)) as server:
        for number in range(kills + 1):
            lake.publish({"payments": [lake.messages(count // (kills + 1), queues)]})
            before = len(seen)
            with Pushing(lake.tables.root, "credits", "payments", "--url", server.url, *options) as pushing:
                if number == kills:
                    until(lambda: len(set(seen)) == count)
                    assert pushing.end() == (0, "")
                    break
                until(lambda before=before: len(seen) > before + 100)  # type: ignore[misc]
                pushing.end(signal.SIGKILL)
    assert set(seen) == {f"tx-{each}" for each in range(count)}
    if options == ("--orderly",):
        first = dict.fromkeys(int(each.removeprefix("tx-")) for each in seen)
        for queue in range(len(queues)):
            mine = [each for each in first if each % len(queues) == queue]
            assert mine == sorted(mine)
    with (
        Server(always(OK)) as server,
        Pushing(lake.tables.root, "credits", "payments", "--url", server.url, *options) as pushing,
    ):
        pushing.line()
        assert pushing.end() == (0, "")
    assert not server.received


@pytest.mark.processes
def test_what_a_restarted_group_has_consumed_does_not_come_again(lake: Published) -> None:
    lake.publish({"payments": [lake.messages(5)]})
    arguments = ("credits", "payments", "--url")
    with Server(always(OK)) as server:
        with Pushing(lake.tables.root, *arguments, server.url) as pushing:
            until(lambda: len(server.received) == 5)
            assert pushing.end() == (0, "")
        lake.publish({"payments": [lake.messages(1)]})
        with Pushing(lake.tables.root, *arguments, server.url):
            until(lambda: len(server.received) == 6)
    assert [each.headers["ce-id"] for each in server.received].count("tx-5") == 1


@pytest.mark.processes
def test_an_endpoint_that_is_away_for_a_while(lake: Published) -> None:
    lake.publish({"payments": [lake.messages(20)]})
    away = threading.Event()

    def answers(received: Received) -> bytes:
        return OK if away.is_set() else reply(b"", "503 Service Unavailable", Retry_After="1")

    with (
        Server(handling(answers)) as server,
        Pushing(lake.tables.root, "credits", "payments", "--url", server.url) as pushing,
    ):
        until(lambda: server.received)
        away.set()
        tried = len(server.received)
        until(lambda: len(server.received) >= tried + 20)
        code, said = pushing.end()
    assert {each.headers["ce-id"] for each in server.received} == {f"tx-{number}" for number in range(20)}
    assert code == 0
    assert "it is left alone for 1 s" in said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "push: no group is in push; set its topic and url there, or run checkback push GROUP TOPIC --url URL"),
        (["credits"], "credits: there is no such group in push"),
        (["credits", "payments"], "push.credits.url (conf/base.yml): is missing; add it"),
        (["credits", "payments", "--url", "ftp://x/"], "push.credits.url (--set): is not an http or https URL"),
        (["credits", "a b", "--url", "http://x/"], "push.credits.topic (--set): is not a topic's name"),
        (["a.b", "payments", "--url", "http://x/"], "a.b: is not a consumer group's name"),
        (["--rate", "5"], "options are of one group"),
        (["credits", "payments", "--url", "http://x/", "--tag", "a", "--sql", "b = 1"], "tag and sql exclude"),
        (["credits", "payments", "--url", "http://x/", "--from", "noon"], "push.credits.start_from: 'noon'"),
    ],
)
def test_wrong_usage_is_told_in_one_line(
    lake: Published, arguments: list[str], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", *arguments, "--set", f"storage.root={lake.tables.root}"]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert told in err
