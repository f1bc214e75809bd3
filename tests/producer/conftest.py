"""Databases for the barrier: SQLite in a file, and a PostgreSQL server started for the tests. A check endpoint."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from glob import glob
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from checkback.producer import CheckServer, check_app
from producer.checked import SECRET, Listener
from producer.gateways import StubGateway

EngineFactory = Callable[[], Engine]


def _program(name: str) -> str | None:
    """A program of PostgreSQL: on the path, or where Debian keeps it."""
    return shutil.which(name) or next(iter(sorted(glob(f"/usr/lib/postgresql/*/bin/{name}"), reverse=True)), None)


def _account() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: then as postgres or nobody."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL does not run as root, and there is no user postgres or nobody")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a PostgreSQL server on loopback; CHECKBACK_TEST_POSTGRES names one that runs already."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if given := os.environ.get("CHECKBACK_TEST_POSTGRES"):
        yield given
        return
    initdb, postgres = _program("initdb"), _program("postgres")
    if initdb is None or postgres is None:
        pytest.skip("no PostgreSQL server: initdb and postgres are not installed (apt-get install postgresql)")
    account = _account()
    folder = Path(tempfile.mkdtemp(prefix="checkback-postgres-"))
    try:
        if account:
            os.chown(folder, account["user"], account["group"])
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        data = str(folder / "data")
        options = {"cwd": folder, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **account}
        made = subprocess.run(
            [initdb, "-D", data, "-A", "trust", "-U", "checkback", "--no-sync"], **options, check=False
        )
        assert made.returncode == 0, made.stdout
        # Nobody reads its log once it has started: a pipe full of the errors that tests want would stop it.
        quiet = ["-c", "log_min_messages=log"]
        server = subprocess.Popen(
            [postgres, "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", str(folder), "-F", *quiet], **options
        )
        try:
            assert server.stdout is not None
            for line in server.stdout:
                if "ready to accept connections" in line:
                    break
            assert server.poll() is None, "PostgreSQL ended when it was started"
            yield f"postgresql+psycopg://checkback@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # without waiting for clients
            server.communicate(timeout=30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/business.db"
        return
    url = request.getfixturevalue("postgres_url")
    yield url
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """An engine of that database."""
    made = create_engine(database_url)
    yield made
    made.dispose()


@pytest.fixture
def listener() -> Listener:
    """One that says COMMIT."""
    return Listener()


@pytest.fixture
def server(listener: Listener) -> Iterator[CheckServer]:
    """A check endpoint that asks it, and takes signed checks only."""
    with CheckServer(check_app({"orders": listener}, secret=SECRET)) as running:
        yield running


@pytest.fixture
def gateway() -> Iterator[StubGateway]:
    """One that takes everything."""
    with StubGateway() as running:
        yield running
