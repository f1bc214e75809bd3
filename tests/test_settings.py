"""Settings: limits, layers, where each value came from, and errors that tell without telling secrets."""

from __future__ import annotations

import base64
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from checkback.errors import SettingsError
from checkback.settings import LONGEST, Loaded, Settings, flatten, format_duration, load, parse_duration

ROOT = Path(__file__).parent.parent
SECRET = "whsec_" + base64.b64encode(b"a key that nobody may see").decode()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder without conf/base.yml, but for tests that write one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: str, content: object) -> Path:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return target


def refusal(content: object = None, *overrides: str, environ: dict[str, str] | None = None) -> str:
    config = None if content is None else write("my.yml", content)
    with pytest.raises(SettingsError) as caught:
        load(config, overrides, environ or {})
    assert caught.value.exit_code == 2
    line = str(caught.value)
    assert "\n" not in line
    # The cause may be printed by --debug: it must not know a secret either.
    assert SECRET not in f"{line} {caught.value.__cause__}"
    return line


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


# The models by themselves


def test_defaults_are_those_of_the_design() -> None:
    settings = Settings()
    transaction = settings.transaction
    assert (transaction.timeout, transaction.check_interval) == (timedelta(seconds=6), timedelta(seconds=60))
    assert (transaction.check_max, transaction.reserved) == (15, timedelta(hours=72))
    assert (settings.reconcile.trigger, settings.reconcile.segment_size) == (timedelta(seconds=2), 4096)
    assert (settings.reconcile.partitions, settings.reconcile.max_files) == (4, 1000)
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
        ("transaction.reserved", ["1ms"], ["0s", "36501d"]),
        ("reconcile.trigger", ["0s"], []),
        ("reconcile.segment_size", [1, 65536], [0, 65537]),
        ("reconcile.partitions", [1], [0]),
        ("reconcile.max_files", [1], [0]),
        ("check.timeout", ["1ms"], ["0s"]),
        ("check.concurrency", [1], [0]),
        ("check.breaker_failures", [1], [0]),
        ("check.breaker_pause", ["1ms"], ["0s"]),
        ("check.retry_after_max", ["1ms"], ["0s"]),
        ("check.batch_time", ["1ms"], ["0s"]),
        ("check.count_undelivered", [False], ["no", 0]),
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
    assert load(None, ["storage={catalog: main, schema: s}"], {}).settings.storage.schema_ == "s"


def test_spark_settings_take_numbers_and_their_plain_names() -> None:
    config = write("my.yml", {"spark": {"executor.cores": 4, "spark.ui.enabled": False}})
    loaded = load(config, ["spark.driver.memory=1g"], {})
    assert loaded.settings.spark == {
        "spark.executor.cores": "4",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
    }
    assert loaded.origin("spark.driver.memory") == "--set"


# Layers


@pytest.mark.parametrize(
    ("layers", "timeout", "origin"),
    [
        ("", "6s", "default"),
        ("base", "1s", "conf/base.yml"),
        ("file", "2s", "my.yml"),
        ("environ", "3s", "CHECKBACK__TRANSACTION__TIMEOUT"),
        ("set", "4s", "--set"),
        ("base file", "2s", "my.yml"),
        ("base environ", "3s", "CHECKBACK__TRANSACTION__TIMEOUT"),
        ("file environ", "3s", "CHECKBACK__TRANSACTION__TIMEOUT"),
        ("base set", "4s", "--set"),
        ("environ set", "4s", "--set"),
        ("base file environ set", "4s", "--set"),
    ],
)
def test_a_later_layer_wins(layers: str, timeout: str, origin: str) -> None:
    if "base" in layers:
        write("conf/base.yml", {"transaction": {"timeout": "1s"}})
    loaded = load(
        write("my.yml", {"transaction": {"timeout": "2s"}}) if "file" in layers else None,
        ["transaction.timeout=4s"] if "set" in layers else [],
        {"CHECKBACK__TRANSACTION__TIMEOUT": "3s", "OTHER": "1"} if "environ" in layers else {},
    )
    assert loaded.settings.transaction.timeout == parse_duration(timeout)
    assert loaded.origins["transaction.timeout"] == origin
    assert loaded.origins["transaction.check_max"] == "default"


def test_the_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKBACK__CHECK__CONCURRENCY", "7")
    assert load().settings.check.concurrency == 7


def test_maps_merge_and_lists_replace() -> None:
    write(
        "conf/base.yml",
        {"producers": {"a": {"endpoints": ["http://1/", "http://2/"], "include_body": True}, "b": {}}},
    )
    loaded = load(write("my.yml", {"producers": {"a": {"endpoints": ["http://3/"]}}}), (), {})
    assert loaded.settings.producers["a"].endpoints == ["http://3/"]
    assert loaded.settings.producers["a"].include_body
    assert set(loaded.settings.producers) == {"a", "b"}
    assert loaded.origins["producers.a.endpoints"] == "my.yml"
    assert loaded.origins["producers.a.include_body"] == "conf/base.yml"


def test_empty_sections_and_files_change_nothing() -> None:
    write("conf/base.yml", {"transaction": {"check_max": 3}})
    for content in ("", "# nothing\n", "transaction:\nproducers:\n"):
        assert load(write("my.yml", content), (), {}).settings.transaction.check_max == 3


def test_every_key_has_an_origin() -> None:
    loaded = load(None, ["producers.orders={}"], {})
    assert isinstance(loaded, Loaded)
    assert set(loaded.origins) == set(flatten(loaded.settings))
    assert loaded.origins["producers.orders.secret"] == "default"


@pytest.mark.parametrize(
    ("variable", "group"),
    [
        ("CHECKBACK__PRODUCERS__ORDERS__INCLUDE_BODY", "Orders"),
        ("CHECKBACK__producers__Orders__include_body", "Orders"),
        ("CHECKBACK__PRODUCERS__PAY__IN__INCLUDE_BODY", "pay__in"),
        ("CHECKBACK__PRODUCERS__New__INCLUDE_BODY", "New"),
    ],
)
def test_group_in_a_variable_is_the_files_else_as_given(variable: str, group: str) -> None:
    config = write("my.yml", {"producers": {"Orders": {}, "pay__in": {}}})
    producers = load(config, (), {variable: "true"}).settings.producers
    assert {name for name, producer in producers.items() if producer.include_body} == {group}
    assert set(producers) == {"Orders", "pay__in", group}


def test_variable_that_may_mean_two_groups_is_refused() -> None:
    line = refusal({"producers": {"a": {}, "A": {}, "Ab": {}, "aB": {}}}, environ={"CHECKBACK__PRODUCERS__AB": "{}"})
    assert line.startswith("CHECKBACK__PRODUCERS__AB: may mean Ab or aB; ")


def test_values_of_set_and_environment_are_yaml() -> None:
    loaded = load(
        None,
        ["producers.orders.endpoints=[http://127.0.0.1:8901/check]", "storage.root=a=b"],
        {"CHECKBACK__TRANSACTION": "{check_max: 2, timeout: 1s}"},
    )
    assert loaded.settings.producers["orders"].endpoints == ["http://127.0.0.1:8901/check"]
    assert loaded.settings.storage.root == "a=b"
    assert loaded.settings.transaction.check_max == 2
    assert loaded.origins["transaction.timeout"] == "CHECKBACK__TRANSACTION"


# Secrets


def test_secret_is_resolved_from_the_environment_and_masked() -> None:
    config = write("my.yml", {"producers": {"orders": {"secret": "env:ORDERS_SECRET"}}})
    loaded = load(config, (), {"ORDERS_SECRET": SECRET})
    secret = loaded.settings.producers["orders"].secret
    assert secret is not None
    assert secret.get_secret_value() == SECRET
    assert flatten(loaded.settings)["producers.orders.secret"] == "****"
    assert SECRET not in repr(loaded)


def test_secret_that_a_later_layer_replaces_is_not_asked_for() -> None:
    config = write("my.yml", {"producers": {"orders": {"secret": "env:UNSET"}}})
    assert (
        load(config, ["producers.orders.secret=env:SET"], {"SET": SECRET}).origins["producers.orders.secret"] == "--set"
    )
    with pytest.raises(SettingsError, match="plain text"):
        load(
            write("my.yml", {"producers": {"orders": {"secret": SECRET}}}),
            ["producers.orders.secret=env:S"],
            {"S": SECRET},
        )


def test_secret_may_stand_in_its_own_variable() -> None:
    # Base64 of digits only: YAML would make a number of it.
    loaded = load(None, (), {"CHECKBACK__PRODUCERS__orders__SECRET": "12345678"})
    secret = loaded.settings.producers["orders"].secret
    assert secret is not None
    assert secret.get_secret_value() == "12345678"


@pytest.mark.parametrize(
    ("secret", "environ", "told"),
    [
        (SECRET, {}, "env:NAME"),
        (12345678, {}, "env:NAME"),
        ("env:ORDERS_SECRET", {}, "the environment variable ORDERS_SECRET is not set"),
        ("env:ORDERS_SECRET", {"ORDERS_SECRET": ""}, "the environment variable ORDERS_SECRET is not set"),
        ("env:ORDERS_SECRET", {"ORDERS_SECRET": f"{SECRET}!"}, "is not a webhook secret"),
        (f"env:{SECRET}=", {}, "env:NAME"),
        ([SECRET], {}, "env:NAME"),
    ],
)
def test_secret_refused_without_showing_it(secret: object, environ: dict[str, str], told: str) -> None:
    line = refusal({"producers": {"orders": {"secret": secret}}}, environ=environ)
    assert line.startswith("producers.orders.secret (my.yml): ")
    assert told in line


TOKEN = "0123456789abcdef"


def test_token_is_resolved_from_the_environment_and_masked() -> None:
    """As a secret is."""
    config = write("my.yml", {"producers": {"orders": {"token": "env:ORDERS_TOKEN"}}})
    loaded = load(config, [], {"ORDERS_TOKEN": TOKEN})
    token = loaded.settings.producers["orders"].token
    assert token is not None
    assert token.get_secret_value() == TOKEN
    assert flatten(loaded.settings)["producers.orders.token"] == "****"
    assert TOKEN not in str(loaded.settings)


@pytest.mark.parametrize(
    ("token", "environ", "told"),
    [
        (TOKEN, {}, "a token in plain text is refused"),
        ("env:T", {}, "the environment variable T is not set"),
        ("env:T", {"T": "short"}, "is not a bearer token"),
        ("env:T", {"T": f"{TOKEN} {TOKEN}"}, "is not a bearer token"),
        ("env:T", {"T": f"{TOKEN}\r\n"}, "is not a bearer token"),
    ],
)
def test_token_refused_without_showing_it(token: object, environ: dict[str, str], told: str) -> None:
    line = refusal({"producers": {"orders": {"token": token}}}, environ=environ)
    assert line.startswith("producers.orders.token (my.yml): ")
    assert told in line
    assert TOKEN not in line
    assert "short" not in line


@pytest.mark.parametrize("queues", [[], [1, 1], [-1], [2**31], ["0"], list(range(65))])
def test_queues_of_the_gateway_are_its_own(queues: object) -> None:
    assert refusal({"gateway": {"queues": queues}}).startswith("gateway")


@pytest.mark.parametrize(
    "overrides",
    [
        [f"producers.orders.secret={SECRET}"],
        [f"producers.orders.secret:{SECRET}"],
        [f"producers.orders={{secrt: {SECRET}}}"],
        [f"producers.orders={SECRET}"],
        [f"producers.orders.secret.x={SECRET}"],
        [f"producers.orders={{secret: [{SECRET}}}"],
    ],
)
def test_secret_on_the_command_line_is_refused_without_showing_it(overrides: list[str]) -> None:
    refusal(None, *overrides)


def test_secret_in_a_broken_file_is_not_shown() -> None:
    assert refusal(f"producers: {{orders: {{secret: *{SECRET}}}}}").startswith("my.yml: is not valid YAML, line 1, ")


def test_secrets_among_spark_settings_are_masked() -> None:
    loaded = load(None, ["spark.hadoop.fs.s3a.secret.key=hunter2", "spark.x.account.key.y=hunter2"], {})
    assert "hunter2" not in str(flatten(loaded.settings))


# Errors


@pytest.mark.parametrize(
    ("content", "unknown", "nearest"),
    [
        ({"transaction": {"timeuot": "1s"}}, "transaction.timeuot", "transaction.timeout"),
        ({"transacton": {"timeout": "1s"}}, "transacton.timeout", "transaction.timeout"),
        ({"transacton": None}, "transacton", "transaction."),
        ({"transaction": {"checkMax": 3}}, "transaction.checkMax", "transaction.check_max"),
        ({"check_max": 3}, "check_max", "transaction.check_max"),
        ({"producers": {"orders": {"endpoint": []}}}, "producers.orders.endpoint", "producers.orders.endpoints"),
        ({"producer": {"orders": {"endpoints": []}}}, "producer.orders.endpoints", "producers.orders.endpoints"),
        ({"storage": {"schema_": "x"}}, "storage.schema_", "storage.schema"),
        ({"sparc": {"executor.memory": "1g"}}, "sparc.executor.memory", "spark.executor.memory"),
    ],
)
def test_unknown_key_names_the_nearest_valid_one(content: object, unknown: str, nearest: str) -> None:
    assert refusal(content).startswith(f"{unknown} (my.yml): unknown setting; did you mean {nearest}")


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("CHECKBACK__TRANSACTION__TIMOUT", "transaction.timeout"),
        ("CHECKBACK__TRANSACTON__TIMEOUT", "transaction.timeout"),
        ("CHECKBACK__CHEK__CONCURRENCY", "check.concurrency"),
        ("CHECKBACK__", ""),
    ],
)
def test_unknown_variable_is_an_error(variable: str, nearest: str) -> None:
    line = refusal(environ={variable: "1s"})
    assert f"({variable}): unknown setting; did you mean {nearest}" in line


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("- a\n- b\n", "my.yml: is not a mapping"),
        ("just text", "my.yml: is not a mapping"),
        ("a: [", "my.yml: is not valid YAML, line 1"),
        ("transaction: {}\ntransaction: {}\n", "my.yml: has a key given twice, line 2"),
        ("1: 2", "my.yml: the key 1 is not text"),
        ("transaction: 5", "transaction (my.yml): is not a mapping"),
        ("producers: [a]", "producers (my.yml): is not a mapping"),
        ("producers: {a: {endpoints: 'http://a/'}}", "producers.a.endpoints (my.yml): must be a valid list"),
        ("spark: {executor: {memory: 1g}}", "spark.executor (my.yml): must be a valid string"),
    ],
)
def test_file_of_another_form_is_refused(content: str, told: str) -> None:
    assert refusal(content).startswith(told)


def test_file_that_cannot_be_read_is_refused(folder: Path) -> None:
    for path, told in ((folder / "none.yml", "No such file"), (folder, "Is a directory")):
        with pytest.raises(SettingsError, match=told):
            load(path, (), {})
    (folder / "latin.yml").write_bytes(b"storage: {root: \xe4}")
    with pytest.raises(SettingsError, match="UTF-8"):
        load(folder / "latin.yml", (), {})


@pytest.mark.parametrize("text", ["", "=", "transaction", "transaction.timeout", ".=1", "a..b=1"])
def test_set_of_another_form_is_refused(text: str) -> None:
    assert refusal(None, "transaction.check_max=3", text).startswith("--set (number 2): is not KEY=VALUE; ")


def test_the_first_of_several_errors_counts_the_others() -> None:
    assert refusal({"transaction": {"check_max": 0}, "check": {"concurrency": 0}}).endswith("(1 more wrong)")


# The files in conf/


def test_base_file_says_the_defaults_and_all_of_them() -> None:
    content = yaml.safe_load((ROOT / "conf/base.yml").read_text())
    assert Settings.model_validate(content) == Settings()
    keys = {f"{section}.{key}" for section, values in content.items() for key in values}
    assert keys == set(flatten(Settings()))
    assert set(content) == set(Settings.model_fields)
