"""Records of a broker that wants TLS and SASL (docs/landing.md)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from checkback.errors import CheckbackError
from checkback.landing.kafka_query import land
from checkback.settings.loading import load
from landing.broker import PASSWORD, USER, Kafka, changed
from landing.fixtures import Lakehouse, half

if TYPE_CHECKING:
    from pathlib import Path

    from checkback.settings import Settings


def _secured(lake: Lakehouse, certificate: Path, monkeypatch: pytest.MonkeyPatch, password: str) -> Settings:
    """The settings of docs/landing.md for TLS and SASL."""
    login = "org.apache.kafka.common.security.scram.ScramLoginModule"
    monkeypatch.setenv("KAFKA_JAAS", f'{login} required username="{USER}" password="{password}";')
    options = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificate),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "env:KAFKA_JAAS",
    }
    config = certificate.with_name("checkback.yml")
    config.write_text(json.dumps({"storage": {"root": str(lake.root)}, "kafka": {"options": options}}))
    return load(config).settings


def test_records_land_by_tls_and_sasl(
    lake: Lakehouse, kafka: Kafka, topics: tuple[str, str], certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.send(topics[0], changed(half(0), leave=("queue_id", "queue_offset")))
    settings = _secured(lake, certificate, monkeypatch, PASSWORD)
    assert land(lake.spark, settings, kafka.secured, topics[0], None, available_now=True).half == 1
    assert lake.rows("half", "transaction_id") == [("t0",)]


def test_wrong_password_is_one_line(
    lake: Lakehouse, kafka: Kafka, topics: tuple[str, str], certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _secured(lake, certificate, monkeypatch, "battery-staple")
    with pytest.raises(CheckbackError, match=r"cannot be read: Authentication failed.*check kafka\.options") as caught:
        land(lake.spark, settings, kafka.secured, topics[0], None, available_now=True)
    assert "battery" not in str(caught.value)


def test_topic_whose_configuration_may_not_be_read_lands_with_a_warning(
    lake: Lakehouse,
    kafka: Kafka,
    topics: tuple[str, str],
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kafka.send(topics[0], changed(half(0), leave=("queue_id", "queue_offset")))
    kafka.allow_only_to_read(topics[0])
    settings = _secured(lake, certificate, monkeypatch, PASSWORD)
    assert land(lake.spark, settings, kafka.secured, topics[0], None, available_now=True).half == 1
    (told,) = (record.getMessage() for record in caplog.records if "cleanup.policy" in record.getMessage())
    assert told.startswith(f"{topics[0]}: its cleanup.policy cannot be read: ")
    assert PASSWORD not in told
