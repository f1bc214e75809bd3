"""Databases for the barrier: SQLite in a file, and a PostgreSQL server started for the tests. A check endpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from checkback.errors import SettingsError
from checkback.producer import CheckServer, check_app
from examples.outbox.postgres import postgres
from producer.checked import SECRET, Listener
from producer.gateways import StubGateway

EngineFactory = Callable[[], Engine]


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a PostgreSQL server on loopback; CHECKBACK_TEST_POSTGRES names one that runs already."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if given := os.environ.get("CHECKBACK_TEST_POSTGRES"):
        yield given
        return
    try:
        with postgres() as url:
            yield url.replace("postgresql:", "postgresql+psycopg:")
    except SettingsError as error:
        pytest.skip(str(error))


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
