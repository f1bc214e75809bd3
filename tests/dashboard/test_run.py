"""The dashboard's own server, in this process: requests that do not come, and too many connections."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from uvicorn.server import ServerState

from checkback.dashboard.access import Access
from checkback.dashboard.app import create_app
from checkback.dashboard.pages import Pages
from checkback.dashboard.server import MAX_CONNECTIONS, TIMEOUT_S, config_of
from checkback.errors import StorageError
from checkback.query.answers import Answers
from checkback.query.engines.duckdb_engine import DuckDBEngine
from checkback.settings import Settings
from checkback.storage.tables import Tables
from dashboard.hostile import TOKEN

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

_INCOMPLETE = (b"GET / HT", b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\nt")
_WHOLE = b"GET /static/style.css HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_PATIENCE_S = 30


def test_requests_that_do_not_come_are_closed_and_connections_are_bounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    app = create_app(Pages(settings, Access(TOKEN, lambda: 0.0)))

    writers: list[asyncio.StreamWriter] = []

    async def run() -> list[bytes]:
        config = config_of(settings.dashboard, app, timeout_s=0.5, max_connections=len(_INCOMPLETE))
        config.load()
        state = ServerState()
        server = await asyncio.get_running_loop().create_server(
            lambda: config.http_protocol_class(config=config, server_state=state, app_state={}),  # type: ignore[call-arg]
            "127.0.0.1",
        )

        async def opened(said: bytes) -> asyncio.StreamReader:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writers.append(writer)  # it closes its connection when it is forgotten
            writer.write(said)
            return reader

        async with server:
            slow = [await opened(said) for said in _INCOMPLETE]
            refused = await (await opened(b"")).read()
            closed = [await reader.read() for reader in slow]
            answered = await (await opened(_WHOLE)).read()
            await asyncio.gather(*state.tasks)
        return [refused, *closed, answered]

    refused, *closed, answered = asyncio.run(asyncio.wait_for(run(), _PATIENCE_S))
    assert json.loads(refused.partition(b"\r\n\r\n")[2])["code"] == "too_many_connections"
    assert [heard[:13] for heard in closed] == [b"HTTP/1.1 408 "] * 2
    assert answered.startswith(b"HTTP/1.1 200 ")
    assert not caplog.records


@pytest.mark.processes
def test_ctrl_c_ends_it_with_130_and_without_a_word(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "checkback", "dashboard", "--port", "0", "--set", f"storage.root={tmp_path}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("checkback dashboard: http://")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=_PATIENCE_S)
    assert (process.returncode, said) == (130, "")


@pytest.mark.processes
def test_a_port_in_use_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "checkback", "dashboard", "--port", port, "--set", f"storage.root={tmp_path}"]
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    told = f"checkback: 127.0.0.1:{port}: cannot listen: Address already in use; choose another dashboard.port\n"
    assert (run.returncode, run.stdout, run.stderr) == (2, "", told)


def test_a_question_that_is_being_answered_is_ended_with_it(root: Path) -> None:
    """`Answers.stop`, which the dashboard's signals call: the questions then, and those that come after."""
    answers = Answers(Settings.model_validate({"storage": {"root": str(root)}}))
    ended = StorageError("the dashboard ends")
    begun = threading.Event()

    def began(number: int) -> int:
        begun.set()
        return number

    def ask() -> None:
        with answers.together() as opened:
            engine = opened._engine
            assert engine is not None
            engine._database._connection.create_function("began", began, ["BIGINT"], "BIGINT")
            engine.query("SELECT sum(began(n) + m) FROM range(1) t(n), range(10_000_000_000_000) u(m)", {}, {})
        raise AssertionError("it was not ended")

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        assert begun.wait(_PATIENCE_S)
        answers.stop(ended)
        assert asked.exception(_PATIENCE_S) is ended
    with pytest.raises(StorageError, match="the dashboard ends"):
        answers.pending()


def test_a_question_that_has_not_begun_yet_is_ended_too(root: Path) -> None:
    """DuckDB does not hear of an interruption before it begins."""
    ended = StorageError("the dashboard ends")
    with DuckDBEngine(Tables.of(Settings.model_validate({"storage": {"root": str(root)}}).storage)) as engine:
        stopping = threading.Thread(target=engine.stop, args=[ended])

        def late() -> list[tuple[Any, ...]]:
            stopping.start()
            stopping.join(0.2)  # longer than one interruption takes
            sql = "SELECT sum(n + m) FROM range(10_000) t(n), range(1_000_000) u(m)"
            return engine._database._connection.execute(sql).fetchall()

        with pytest.raises(StorageError, match="the dashboard ends"):
            engine._database._answered(late)


def test_the_limits_are_those_of_the_page() -> None:
    """docs/inspect.md names them."""
    assert (TIMEOUT_S, MAX_CONNECTIONS) == (10, 200)
