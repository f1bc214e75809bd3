"""Records what Debezium's embedded engine makes of an outbox in a real PostgreSQL: the JSON lines beside this file.

``PYTHONPATH=lib:tests:. .venv/bin/python -m landing.debezium.record`` in the project's folder. Needs Java, PostgreSQL
and a repository of Maven packages.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import sqlalchemy as sa
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from checkback.spark.jvm import java_check
from examples.outbox.postgres import postgres
from support.jars import SPARK_JARS, resolver

if TYPE_CHECKING:
    from collections.abc import Sequence

_VERSION = "2.7.4.Final"
_PACKAGES = f"io.debezium:debezium-embedded:{_VERSION},io.debezium:debezium-connector-postgres:{_VERSION}"
#: Spark brings these, or the engine alone does not need them
_EXCLUDES = "org.slf4j:slf4j-api,org.lz4:lz4-java,org.glassfish.*:*,org.eclipse.jetty:*"
_HERE = Path(__file__).parent
_CREATE = """CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255)
NOT NULL, type varchar(255) NOT NULL, payload jsonb, timestamp timestamptz, at timestamp, wait bigint)"""
_ROUTED = {"transforms": "outbox", "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter"}
_KINDS: dict[str, dict[str, str]] = {
    "envelopes": {"schemas": "false"},
    "envelopes_with_schema": {"schemas": "true"},
    "routed": {"schemas": "false", "skipped.operations": "t", **_ROUTED},
}


def insert(number: int) -> str:
    """A row of the outbox."""
    return (
        f"INSERT INTO outbox VALUES ('00000000-0000-0000-0000-{number:012}', 'orders', 'account-{number % 2}', 'paid', "  # noqa: S608 - numbers
        f"""'{{"amount": {number}, "note": null}}', '2026-11-20 15:00:0{number}+00', '2026-11-20 15:00:0{number}', 5)"""
    )


#: what is there before the engine starts, and what comes then
_BEFORE = [insert(1), insert(2)]
_THEN = [
    insert(3),
    "UPDATE outbox SET type = 'changed' WHERE aggregateid = 'account-0'",
    "DELETE FROM outbox WHERE aggregateid = 'account-0'",
    insert(4),
    "TRUNCATE outbox",
]
#: events: two read, inserted, updated, deleted (without its tombstone), inserted, truncated; routed: the four rows
_COUNTS = {"envelopes": 7, "envelopes_with_schema": 7, "routed": 4}


def _jars() -> list[str]:
    gateway: Any = launch_gateway(SparkConf().set("spark.driver.memory", "512m"))  # type: ignore[no-untyped-call]
    try:
        return resolver(gateway.jvm)(_PACKAGES, _EXCLUDES)
    finally:
        gateway.shutdown()


def _run(engine: sa.Engine, statements: Sequence[str]) -> None:
    for statement in statements:
        with engine.begin() as connection:
            connection.execute(sa.text(statement.replace(":", r"\:")))


def record(kind: str, jars: Sequence[str]) -> None:
    """Write ``kind``.jsonl."""
    with postgres("wal_level=logical") as url, TemporaryDirectory() as folder:
        engine = sa.create_engine(url)
        _run(engine, [_CREATE, *_BEFORE])
        place = urlsplit(url)
        about = dict(_KINDS[kind])
        schemas = about.pop("schemas")
        properties = {
            "name": "shop",
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
            "database.hostname": place.hostname,
            "database.port": place.port,
            "database.user": place.username,
            "database.password": "none",
            "database.dbname": "postgres",
            "topic.prefix": "shop",
            "table.include.list": "public.outbox",
            "tombstones.on.delete": "false",
            "skipped.operations": "none",
            "key.converter.schemas.enable": schemas,
            "value.converter.schemas.enable": schemas,
            "header.converter.schemas.enable": schemas,
            **about,
        }
        config = Path(folder) / "engine.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        spark = [str(jar) for jar in SPARK_JARS.glob("*.jar") if jar.name.startswith(("slf4j-api-", "log4j-", "lz4-"))]
        command = [java_check(), "-cp", ":".join([*jars, *spark]), str(_HERE / "Record.java"), str(config)]
        out = _HERE / f"{kind}.jsonl"
        with subprocess.Popen([*command, str(out), str(_COUNTS[kind])]) as running:
            _wait_for(out, len(_BEFORE), running)
            _run(engine, _THEN)
            assert running.wait(60) == 0
        engine.dispose()


def _wait_for(out: Path, lines: int, running: subprocess.Popen[bytes]) -> None:
    while running.poll() is None and not (out.exists() and out.read_bytes().count(b"\n") >= lines):
        time.sleep(0.1)


if __name__ == "__main__":
    found = _jars()
    for each in _KINDS:
        (_HERE / f"{each}.jsonl").unlink(missing_ok=True)
        record(each, found)
