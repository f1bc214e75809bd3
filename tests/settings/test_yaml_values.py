"""Values that settings' YAML takes and refuses, in files, variables and --set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.settings.loading import InvalidYamlError, load, parsed
from support.loading import refusal


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder without conf/base.yml."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-5", -5),
        ("0", 0),
        ("160_000", 160_000),
        ("0x1F", 31),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1.0e+3", 1000.0),
        ("yes", True),
        ("off", False),
        ("~", None),
        ("", None),
        ("010", "010"),
        ("2:28", "2:28"),
        ("1:30.5", "1:30.5"),
        ("2024-01-01", "2024-01-01"),
        ("2024-13-01", "2024-13-01"),
        ("0x_", "0x_"),
        ("0b_", "0b_"),
        ("=", "="),
        ("[010, {a: 1:30}]", ["010", {"a": "1:30"}]),
        ("9" * 5000, "9" * 5000),
        ("0x" + "f" * 5000, "0x" + "f" * 5000),
    ],
)
def test_value(text: str, value: object) -> None:
    assert parsed(text) == value


@given(st.text() | st.text("01_:.-+xb&*!{}[],'\"\\UD \n?<=%@`|>#ae"))
def test_any_text_is_a_value_or_refused_without_it(text: str) -> None:
    error = _error(text)
    if error is not None:
        assert error.__cause__ is error.__context__ is None
        assert "\n" not in str(error)


def _error(text: str) -> InvalidYamlError | None:
    try:
        parsed(text)
    except InvalidYamlError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("!!int hunter2", "has a tag (!)"),
        ("!!bool hunter2", "has a tag (!)"),
        ("!!timestamp hunter2", "has a tag (!)"),
        ("!!python/name:hunter2 x", "has a tag (!)"),
        ("! hunter2", "has a tag (!)"),
        ("&a {hunter2: *a}", "has an alias (*) of what it is in"),
        ("{a: &a [hunter2, {b: *a}]}", "has an alias (*) of what it is in"),
        ("[" * 1000, "is nested too deeply"),
        ('"\\U00110000hunter2"', "is not valid YAML"),
        ('"\\UFFFFFFFFhunter2"', "is not valid YAML"),
        ("{a: hunter2, a: hunter2}", "has a duplicate key"),
    ],
)
def test_refused_in_one_line_that_does_not_quote_it(value: str, told: str) -> None:
    lines = [
        refusal(None, f"producers={value}"),
        refusal(environ={"CHECKBACK__PRODUCERS": value}),
        refusal(f"producers: {value}\n"),
    ]
    for line, where in zip(lines, ("producers (--set)", "producers (CHECKBACK__PRODUCERS)", "my.yml"), strict=True):
        assert line.startswith(f"{where}: {told}")
        assert "hunter2" not in line


def test_what_several_have_may_be_written_once() -> None:
    text = "{a: &a {x: 1, y: [2]}, b: *a, c: {<<: *a, x: 3}, d: &d [4], e: *d}"
    once = {"x": 1, "y": [2]}
    assert parsed(text) == {"a": once, "b": once, "c": once | {"x": 3}, "d": [4], "e": [4]}


@pytest.mark.parametrize(
    "override",
    ["operator.queue=010", "gateway.port=2:28", "gateway.queues=[010]", "transaction.check_max=" + "9" * 5000],
)
def test_number_of_another_form_is_refused(override: str) -> None:
    key = override.partition("=")[0]
    line = refusal(None, override)
    assert line.startswith(key)
    assert len(line) < 300


def test_text_that_looks_like_a_date_or_number_of_base_60() -> None:
    settings = load(None, ["storage.root=2024-13-01", "spark.x.y=1:30", "spark.x.z=010"], {}).settings
    assert settings.storage.root == "2024-13-01"
    assert settings.spark == {"spark.x.y": "1:30", "spark.x.z": "010"}


@pytest.mark.parametrize(
    ("section", "secret"),
    [
        ("DASHBOARD", "{token: 8675309123}"),
        ("PRODUCERS", "{orders: {token: 8675309123}}"),
        ("KAFKA", "{options: {x.user: [8675309123]}}"),
        ("STORAGE", "{options: {some_user: [8675309123]}}"),
        ("DASHBOARD", "{8675309123: x}"),
        ("SPARK", "{spark.x: [8675309123]}"),
    ],
)
def test_no_error_shows_a_secret(section: str, secret: str) -> None:
    assert "8675309123" not in refusal(environ={f"CHECKBACK__{section}": secret})


def test_a_value_that_is_no_secret_is_shown() -> None:
    values: dict[str, Any] = {"CHECKBACK__DASHBOARD": "{port: 70000}"}
    assert "is 70000, must be at most 65535" in refusal(environ=values)
