"""`land --kafka` says in one line which option is wrong; options of Kafka's client come in safely."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from checkback.cli import main
from checkback.errors import SettingsError
from checkback.settings import Settings, flatten
from checkback.settings.loading import load
from checkback.spark.jars import DELTA_PACKAGE
from checkback.spark.session import kafka_package, spark_settings

TOPICS = ("--half-topic", "half", "--op-topic", "op")
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required password="hush";'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--kafka", "host:9092"), "nothing to land; give --half-topic TOPIC, --op-topic TOPIC or both"),
        (("--kafka", "host:9092", "--half", "x", *TOPICS), "--kafka: files and Kafka land in commands of their own"),
        (TOPICS, "--half-topic, --op-topic: a topic needs the brokers that have it; give --kafka BROKERS"),
        (("--kafka", "host", *TOPICS), "--kafka: are not Kafka's bootstrap servers; write host:port"),
        (("--kafka", "a:1,,b:2", *TOPICS), "--kafka: are not Kafka's bootstrap servers"),
        (("--kafka", "a:1", "--op-topic", "a b"), "--op-topic: is not a topic's name"),
        (("--kafka", "a:1", "--op-topic", "x" * 250), "--op-topic: is not a topic's name"),
        (("--kafka", "a:1", "--half-topic", "x", "--op-topic", "x"), "half and op messages need a topic each"),
        (("--kafka", "a:1", *TOPICS, "--queue-base", "-1"), "kafka.queue_base (--set): is -1, must be at least 0"),
        (("--kafka", "a:1", *TOPICS, "--set", "kafka.max_records=0"), "kafka.max_records (--set): is 0"),
    ],
)
def test_wrong_usage_is_one_line(arguments: tuple[str, ...], told: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["land", *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"checkback: {told}") or told in err


def test_secrets_of_kafka_come_from_the_environment_and_are_never_shown(folder: Path) -> None:
    options = {"sasl.jaas.config": "env:JAAS", "sasl.mechanism": "PLAIN", "check.crcs": True, "client.id": "env:ID"}
    Path("my.yml").write_text(json.dumps({"kafka": {"options": options}}))
    loaded = load(Path("my.yml"), ["kafka.options.ssl.key.password=env:KEY"], {"JAAS": JAAS, "KEY": "hush", "ID": "me"})
    found = {name: value.get_secret_value() for name, value in loaded.settings.kafka.options.items()}
    assert found == {
        "sasl.jaas.config": JAAS,
        "sasl.mechanism": "PLAIN",
        "check.crcs": "true",
        "client.id": "me",
        "ssl.key.password": "hush",
    }
    shown = flatten(loaded.settings)
    assert {shown[f"kafka.options.{name}"] for name in found} == {"****"}
    assert loaded.origin("kafka.options.ssl.key.password") == "--set"
    assert "hush" not in repr(loaded) + json.dumps(shown)


@pytest.mark.parametrize(
    "name", ["sasl.jaas.config", "ssl.key.password", "ssl.keystore.key", "sasl.oauthbearer.client.secret"]
)
def test_secret_of_kafka_in_plain_text_is_refused(name: str) -> None:
    for value, told in (
        ("hush", "in plain text is refused"),
        ("env:UNSET", "the environment variable UNSET is not set"),
    ):
        with pytest.raises(SettingsError) as caught:
            load(None, [f"kafka.options.{name}={value}"], {})
        assert told in str(caught.value)
        assert f"kafka.options.{name} (--set)" in str(caught.value)
        assert "hush" not in str(caught.value)


def test_kafka_source_is_a_package_more_only_where_it_is_wanted() -> None:
    assert "kafka" not in spark_settings(Settings())["spark.jars.packages"]
    assert spark_settings(Settings(), kafka=True)["spark.jars.packages"] == f"{DELTA_PACKAGE},{kafka_package()}"
    cluster = Settings.model_validate({"spark": {"spark.master": "spark://host:7077"}})
    assert spark_settings(cluster, kafka=True)["spark.jars.packages"] == f"{DELTA_PACKAGE},{kafka_package()}"
    # Who has the JARs brings them, as where no repository can be reached.
    own = Settings.model_validate({"spark": {"spark.jars": "/jars/spark-sql-kafka-0-10_2.13-4.2.0.jar"}})
    assert spark_settings(own, kafka=True)["spark.jars.packages"] == DELTA_PACKAGE


@pytest.mark.processes
@pytest.mark.spark
def test_jars_that_cannot_be_fetched_are_one_line(folder: Path) -> None:
    # A repository in an empty folder: nothing is asked of the network.
    (folder / "offline.xml").write_text(
        """<ivysettings><settings defaultResolver="empty"/><resolvers><filesystem name="empty">
        <artifact pattern="/nowhere/[artifact].[ext]"/></filesystem></resolvers></ivysettings>"""
    )
    command = [str(Path(sys.executable).parent / "checkback"), "land", "--kafka", "127.0.0.1:9", *TOPICS]
    command += ["--set", "spark.jars.ivySettings=offline.xml", "--set", "spark.jars.ivy=ivy"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (1, "", 1)
    assert "Delta Lake's and Kafka's JARs could not be fetched" in run.stderr
    assert run.stderr.endswith(", or Kafka's own JARs in spark.jars\n")


def test_spark_submit_brings_the_kafka_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert "spark.jars.packages" not in spark_settings(Settings(), kafka=True)
