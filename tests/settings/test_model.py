"""Settings: forms and limits of every value, secrets that are not shown."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from checkback.messages.durations import LONGEST, format_duration, parse_duration
from checkback.settings import Settings
from checkback.settings.loading import load
from checkback.settings.model import flatten
from checkback.settings.values import format_size, parse_size
from support.loading import SECRET, refusal, write


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder without conf/base.yml, but for tests that write one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Durations


@given(st.integers(0, LONGEST // timedelta(milliseconds=1)))
def test_duration_of_whole_milliseconds_survives_text(milliseconds: int) -> None:
    duration = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(duration)) == duration


@given(st.integers(1, 10**6), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_duration_is_written_in_its_shortest_form(number: int, unit: str) -> None:
    text = f"{number}{unit}"
    try:
        duration = parse_duration(text)
    except ValueError:
        assert unit in "hd"
        assert number > 36500
    else:
        assert len(format_duration(duration)) <= len(text)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("6s", timedelta(seconds=6)),
        ("1m", timedelta(minutes=1)),
        ("72h", timedelta(hours=72)),
        ("2d", timedelta(days=2)),
        ("0s", timedelta(0)),
    ],
)
def test_duration_accepted(text: str, duration: timedelta) -> None:
    assert Settings.model_validate({"transaction": {"timeout": text}}).transaction.timeout == duration


@pytest.mark.parametrize(
    "value",
    [6, 6.5, "6", "6 s", "6S", "1.5s", "-1s", "6s\n", "", "s", "\u0661s", "6sek", None, True, [], "9" * 17 + "d"],
)
def test_duration_of_any_other_form_is_refused_and_the_form_shown(value: object) -> None:
    line = refusal({"transaction": {"timeout": value}})
    assert line.startswith("transaction.timeout (my.yml): ")
    assert "500ms, 6s, 1m, 72h or 2d" in line


# Sizes


@given(st.integers(0, 1 << 50))
def test_size_survives_text(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024B", 1024), ("64KiB", 64 << 10), ("16MiB", 16 << 20), ("1GiB", 1 << 30), ("0001MiB", 1 << 20)],
)
def test_size_accepted(text: str, size: int) -> None:
    settings = Settings.model_validate({"gateway": {"max_receiving": "1TiB", "max_body": text}})
    assert settings.gateway.max_body == size


@pytest.mark.parametrize(
    "value", [16777216, 1.5, "16777216", "16 MiB", "16mib", "16MB", "1.5GiB", "-1KiB", "", None, True, []]
)
def test_size_of_any_other_form_is_refused_and_the_form_shown(value: object) -> None:
    line = refusal({"gateway": {"max_body": value}})
    assert line.startswith("gateway.max_body (my.yml): ")
    assert "512B, 32KiB, 16MiB, 1GiB or 1TiB" in line


def test_size_out_of_range_is_refused_with_the_limit_as_it_is_written() -> None:
    assert "is '1023B', must be at least 1KiB; " in refusal({"gateway": {"max_body": "1023B"}})
    assert "is '2GiB', must be at most 1GiB; " in refusal({"gateway": {"max_body": "2GiB"}})


def test_what_is_shown_of_sizes_and_durations_is_read_again() -> None:
    given = {"max_body": "20MiB", "journal_max": "1048577B", "linger": "1m"}
    shown = flatten(Settings.model_validate({"gateway": given}))
    assert {key: shown[f"gateway.{key}"] for key in given} == given


# Counts


@pytest.mark.parametrize("number", [2**31, 2**63, 10**30])
@pytest.mark.parametrize(
    ("section", "key"), [("transaction", "check_max"), ("reconcile", "max_files"), ("maintain", "min_files")]
)
def test_count_that_no_table_or_engine_can_have_is_refused(section: str, key: str, number: int) -> None:
    """check_max is in each batch's row: a batch that cannot be recorded would be replayed for ever."""
    assert refusal({section: {key: number}}).startswith(f"{section}.{key} (my.yml): ")
    Settings.model_validate({section: {key: 2**31 - 1}})


# The models by themselves


def test_defaults_are_those_of_the_design() -> None:
    settings = Settings()
    transaction = settings.transaction
    assert (transaction.timeout, transaction.check_interval) == (timedelta(seconds=6), timedelta(seconds=60))
    assert (transaction.check_max, transaction.max_age) == (15, timedelta(hours=72))
    assert (settings.reconcile.trigger, settings.reconcile.segment_size) == (timedelta(seconds=2), 4096)
    assert (settings.reconcile.partitions, settings.reconcile.max_files) == (None, 1000)
    assert (settings.check.timeout, settings.check.concurrency) == (timedelta(seconds=5), 32)
    assert settings.storage.root == "./data"
    assert settings.storage.checkpoints_root == "./data/_checkpoints"


def test_models_read_neither_environment_nor_files(monkeypatch: pytest.MonkeyPatch) -> None:
    write("conf/base.yml", {"transaction": {"check_max": 3}})
    monkeypatch.setenv("CHECKBACK__TRANSACTION__CHECK_MAX", "4")
    assert Settings().transaction.check_max == 15
    assert Settings.model_validate({"transaction": {"timeout": "1s"}}).transaction.check_max == 15


def test_models_are_frozen_and_hide_secrets() -> None:
    settings = Settings.model_validate({"producers": {"orders": {"secret": SECRET}}})
    secret = settings.producers["orders"].secret
    assert secret is not None
    assert secret.get_secret_value() == SECRET
    assert SECRET not in repr(settings)
    with pytest.raises(ValidationError):
        settings.transaction = settings.transaction


def test_a_bad_secret_is_not_in_the_models_error() -> None:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({"producers": {"orders": {"secret": "my-pass phrase!"}}})
    assert "my-pass" not in str(caught.value)


@pytest.mark.parametrize("secret", [SECRET, SECRET.removeprefix("whsec_"), SECRET.rstrip("=")])
def test_secret_accepted_is_one_that_signs(secret: str) -> None:
    from standardwebhooks import Webhook

    producer = Settings.model_validate({"producers": {"orders": {"secret": secret}}}).producers["orders"]
    assert producer.secret is not None
    Webhook(producer.secret.get_secret_value())


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_not base64!", "a", "whsec_ä"])
def test_secret_that_cannot_sign_is_refused(secret: str) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate({"producers": {"orders": {"secret": secret}}})


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8901/check", "https://orders.example.com", "http://[::1]:80/c?x=1", "HTTP://host/"]
)
def test_endpoint_accepted(url: str) -> None:
    assert load(None, [f"producers.orders.endpoints=['{url}']"], {}).settings.producers["orders"].endpoints == [url]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/check",
        "file:///etc/passwd",
        "host:8901/check",
        "http://",
        "http:///check",
        "http://:80/",
        "http://user:geheim@host/",
        "http://user@host/",
        "http://host/#part",
        "http://host/#",
        "http://host:99999/",
        "http://ho st/",
        "http://host\\@other/",
        "http://[::1/",
        "",
    ],
)
def test_endpoint_refused_and_not_repeated(url: str) -> None:
    line = refusal({"producers": {"orders": {"endpoints": ["http://a/", url]}}})
    assert line.startswith("producers.orders.endpoints[1] (my.yml): ")
    assert "geheim" not in line


@pytest.mark.parametrize(
    ("path", "good", "bad"),
    [
        ("transaction.check_max", [1, 100], [0, -1, "15", 1.0, True, None]),
        ("transaction.timeout", ["0s"], ["-1s"]),
        ("transaction.check_interval", ["1ms"], ["0s"]),
        ("transaction.max_age", ["1ms"], ["0s", "36501d"]),
        ("reconcile.trigger", ["0s"], []),
        ("reconcile.segment_size", [1, 65536], [0, 65537]),
        ("reconcile.partitions", [1], [0]),
        ("reconcile.max_files", [1], [0]),
        ("reconcile.max_checks", [1], [0]),
        ("check.timeout", ["1ms"], ["0s"]),
        ("check.concurrency", [1], [0]),
        ("check.breaker_failures", [1], [0]),
        ("check.breaker_pause", ["1ms"], ["0s"]),
        ("check.retry_after_max", ["1ms"], ["0s"]),
        ("check.batch_time", ["1ms"], ["0s"]),
        ("transaction.count_undelivered", [False], ["no", 0]),
        ("transaction.check_jitter", ["0s", "60s"], ["-1s"]),
        ("producers.orders.checks_per_second", [1, 0.5, None], [0, -1, "5", True, float("nan"), float("inf"), 1e-9]),
        ("producers.orders.checks_burst", [1], [0, 0.5]),
        ("storage.root", ["s3://bucket/x"], ["", None, 5]),
        ("producers.orders.include_body", [True], ["yes", 1]),
    ],
)
def test_limits(path: str, good: list[object], bad: list[object]) -> None:
    def nested(value: object) -> Any:
        for part in reversed(path.split(".")):
            value = {part: value}
        return value

    for value in good:
        load(write("good.yml", nested(value)), (), {})
    for value in bad:
        assert refusal(nested(value)).startswith(f"{path} (my.yml): ")


def test_jitter_longer_than_the_interval_is_refused() -> None:
    assert "check_jitter is longer than check_interval" in refusal({"transaction": {"check_jitter": "61s"}})


@pytest.mark.parametrize("name", ["a b", "a.b", "", "ä", "a" * 121, "a\n"])
def test_group_name_refused(name: str) -> None:
    assert "letters, digits, _ and -" in refusal({"producers": {name: {}}})


def test_group_of_120_characters_is_taken() -> None:
    name = "aZ_-0" * 24
    assert set(load(write("my.yml", {"producers": {name: None}}), (), {}).settings.producers) == {name}


@pytest.mark.parametrize("half", [{"catalog": "main"}, {"schema": "checkback"}])
def test_catalog_and_schema_go_together(half: dict[str, str]) -> None:
    assert "storage.catalog and storage.schema go together" in refusal({"storage": half})
    assert load(None, ["storage={catalog: main, schema: s, checkpoints: /c}"], {}).settings.storage.schema_ == "s"


def test_tables_are_registered_in_a_catalog_or_lie_in_it() -> None:
    assert load(None, ["storage.register=main.checkback"], {}).settings.storage.register_ == "main.checkback"
    assert "storage.register" in refusal({"storage": {"register": "checkback"}})
    both = {"register": "main.a", "catalog": "main", "schema": "b", "checkpoints": "/c"}
    assert "storage.catalog and storage.register exclude each other" in refusal({"storage": both})


def test_catalog_needs_a_folder_for_the_checkpoints() -> None:
    """Under storage.root, ./data, they would be gone with the machine."""
    told = refusal({"storage": {"catalog": "main", "schema": "checkback"}})
    assert "set storage.checkpoints to a folder that outlives the machine" in told


def test_spark_settings_take_numbers_and_their_plain_names() -> None:
    config = write("my.yml", {"spark": {"executor.cores": 4, "spark.ui.enabled": False}})
    loaded = load(config, ["spark.driver.memory=1g"], {})
    assert loaded.settings.spark == {
        "spark.executor.cores": "4",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
    }
    assert loaded.origin("spark.driver.memory") == "--set"
