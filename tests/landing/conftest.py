"""A lakehouse and an inbox of its own for each test, and a broker for each module."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from checkback.settings import Settings
from landing.broker import Kafka, running_broker
from landing.fixtures import Lakehouse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from support.jars import Jars

_NUMBERS = itertools.count()


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lakehouse:
    root = tmp_path / "data"
    settings = Settings.model_validate({"storage": {"root": str(root)}, "reconcile": {"trigger": "50ms"}})
    return Lakehouse(spark, root, settings)


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """A folder whose name is hard on globs and URIs."""
    folder = tmp_path / "in box [1] 100%"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of its own authority, for the loopback interface."""
    openssl, found = shutil.which("openssl"), tmp_path_factory.mktemp("certificate") / "certificate.pem"
    if openssl is None:
        pytest.skip("no openssl to make the broker's certificate with")
    command = (
        f"{openssl} req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=broker -addext subjectAltName=IP:127.0.0.1"
    )
    key = found.with_name("key.pem")
    subprocess.run([*command.split(), "-keyout", str(key), "-out", str(found)], check=True, capture_output=True)
    found.with_name("both.pem").write_text(key.read_text() + found.read_text())
    return found


@pytest.fixture(scope="module")
def kafka(
    spark: SparkSession, jars: Jars | str, certificate: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kafka]:
    if isinstance(jars, str):
        pytest.skip(jars)
    both = certificate.with_name("both.pem")
    with running_broker(jars.broker, tmp_path_factory.mktemp("broker"), both) as broker:
        client = Kafka(spark, broker)
        yield client
        client.close()


@pytest.fixture
def topics(kafka: Kafka) -> tuple[str, str]:
    """A half topic of two partitions and an op topic, new for each test."""
    number = next(_NUMBERS)
    return kafka.create(f"half-{number}", 2), kafka.create(f"op_{number}.x")
