"""Where settings come from: layers, origins, files and variables of another form, secrets by reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from checkback.errors import SettingsError
from checkback.messages.durations import parse_duration
from checkback.settings import Settings, flatten
from checkback.settings.loading import SECRETS_OF_OTHERS, Loaded, load
from support.loading import ROOT, SECRET, refusal, write


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder without conf/base.yml, but for tests that write one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


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


def test_token_of_the_dashboard_is_a_secret() -> None:
    """Refused in plain text, resolved from the environment, masked; an unset variable is named."""
    token = "t" * 32
    loaded = load(None, ["dashboard.token=env:T"], {"T": token})
    assert loaded.settings.dashboard.token is not None
    assert loaded.settings.dashboard.token.get_secret_value() == token
    assert token not in str(flatten(loaded.settings))
    with pytest.raises(SettingsError, match="a token in plain text is refused") as plain:
        load(None, [f"dashboard.token={token}"], {})
    assert token not in str(plain.value)
    with pytest.raises(SettingsError, match="the environment variable T is not set"):
        load(None, ["dashboard.token=env:T"], {})


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


def test_unset_secret_of_a_section_that_is_not_needed_is_left_out() -> None:
    """Whoever only looks at the tables has no secrets of producers."""
    write("conf/base.yml", {"producers": {"orders": {"secret": "env:UNSET_TOO", "endpoints": ["http://1/"]}}})
    content = {"producers": {"orders": {"secret": "env:UNSET", "token": "env:T"}}, "kafka": {"options": {"a": "env:B"}}}
    config = write("my.yml", content)
    loaded = load(config, (), {"T": TOKEN}, SECRETS_OF_OTHERS)
    orders = loaded.settings.producers["orders"]
    assert orders.secret is None
    assert orders.token is not None
    assert orders.endpoints == ["http://1/"]
    assert loaded.settings.kafka.options == {}
    with pytest.raises(SettingsError, match="the environment variable UNSET is not set"):
        load(config, (), {"T": TOKEN}, SECRETS_OF_OTHERS - {"producers"})
    with pytest.raises(SettingsError, match="the environment variable KEY is not set"):
        load(config, ["storage.options.aws_secret_access_key=env:KEY"], {}, SECRETS_OF_OTHERS)
    with pytest.raises(SettingsError, match="plain text"):
        load(write("my.yml", {"producers": {"orders": {"secret": SECRET}}}), (), {}, SECRETS_OF_OTHERS)


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
        ("env:T", {"T": f"{TOKEN} short"}, "is not a bearer token"),
        ("env:T", {"T": f"{TOKEN}\\r"}, "is not a bearer token"),
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


def test_values_in_the_query_of_an_endpoint_are_masked() -> None:
    config = write("my.yml", {"producers": {"orders": {"endpoints": ["http://host/check?token=s3cret"]}}})
    shown = flatten(load(config, (), {}).settings)["producers.orders.endpoints"]
    assert shown == ["http://host/check?token=****"]


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
        ({"check_max": 3}, "check_max", "transaction.check_max?"),
        ({"transaction": None, "timeout": "2s"}, "timeout", "transaction.timeout or check.timeout or gateway.timeout?"),
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
        ("check:\n\ttimeout: 2s\n", "my.yml: is not valid YAML, line 2, column 1; indent with spaces, not with tabs"),
        ("check:\n timeout: 2s\n  a: 5\n", "my.yml: is not valid YAML, line 3, column 4; check the indentation"),
        ("check:\n  timeout: 2s\n a: 5\n", "my.yml: is not valid YAML, line 3, column 2; indent it as the lines"),
        ("check:\n  timeout:2s\n  a: 5\n", "my.yml: is not valid YAML, line 3, column 4; check the indentation"),
        ("transaction: {}\ntransaction: {}\n", "my.yml: has a duplicate key, line 2"),
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


@pytest.mark.parametrize(
    ("key", "told"),
    [("gateway.port", "must be a valid integer"), ("storage.root", "must be a valid string")],
)
def test_empty_value_is_told_as_such(key: str, told: str) -> None:
    """Not with the value of the layer below, as if that were wrong."""
    assert refusal(None, f"{key}=") == f"{key} (--set): is empty, {told}; write a value or leave the key out"


def test_all_that_is_wrong_is_told_at_once() -> None:
    told = refusal({"transaction": {"check_max": 0}, "check": {"concurrency": 0, "fast": True}})
    assert told.startswith("transaction.check_max (")
    assert "; also wrong: check.concurrency (" in told
    assert "): is 0, must be at least 1; also wrong: check.fast (" in told
    assert told.endswith("): unknown setting")


# The files in conf/


def test_base_file_says_the_defaults_and_all_of_them() -> None:
    content = yaml.safe_load((ROOT / "conf/base.yml").read_text())
    assert Settings.model_validate(content) == Settings()
    clients = content["gateway"].pop("rocketmq")
    keys = {f"{section}.{key}" for section, values in content.items() for key in values}
    keys |= {f"gateway.rocketmq.{key}" for key in clients}
    assert keys == set(flatten(Settings()))
    assert set(content) == set(Settings.model_fields)


@pytest.mark.parametrize("place", ["/data/lake #2", "# /data/lake", "a\t#b"])
def test_comment_on_the_command_line_is_refused(place: str) -> None:
    """A shell has its own: who writes one here means a name."""
    assert "has a comment (#)" in refusal(None, f"storage.root={place}")
    assert load(None, [f"storage.root='{place}'"], {}).settings.storage.root == place
    assert load(None, ["storage.root=/data/lake#2"], {}).settings.storage.root == "/data/lake#2"
