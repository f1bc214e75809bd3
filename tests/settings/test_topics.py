"""Settings of topics' bodies: what goes together, a schema as one value, secrets of a registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkback.settings import MASK
from checkback.settings.loading import load
from support.loading import refusal, write

REGISTRY = "https://registry.example.com"
PASSWORD = "correct horse, battery"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"body": "xml"}, "must be 'json', 'avro', 'protobuf', 'text' or 'binary'"),
        ({"body": "json", "schema": {}, "schema_file": "x"}, "schema and schema_file exclude each other"),
        ({"schema": {"type": "object"}}, "binary bodies have no schema"),
        ({"body": "text", "schema_registry": REGISTRY}, "text bodies have no schema_registry"),
        ({"body": "avro"}, "avro bodies need a schema"),
        ({"body": "protobuf", "schema": "x"}, "protobuf has no schema within settings"),
        ({"body": "protobuf", "schema_file": "x"}, "set message: package.Name"),
        ({"body": "json", "message": "shop.Order"}, "json bodies have no message"),
        ({"body": "json", "subject": "x"}, "subject goes with schema_registry"),
        ({"body": "json", "schema_registry": "ftp://x"}, "is not an http or https URL"),
        ({"body": "json", "schema_registry": "https://me:pass@x"}, "set user and password, or a token, beside it"),
        ({"body": "json", "schema_registry": REGISTRY, "token": "mine"}, "a token in plain text is refused"),
        ({"body": "json", "schema_registry": REGISTRY, "user": "me", "password": "x"}, "a password in plain text"),
        ({"schemafile": "x"}, "unknown setting; did you mean topics.payments.schema_file?"),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(body: dict[str, object], what: str) -> None:
    assert what in refusal({"topics": {"payments": body}})


def test_a_topic_must_have_a_topics_name() -> None:
    assert "is not a topic's name" in refusal({"topics": {"pay ments": {"body": "json"}}})


def test_a_schema_is_one_value_that_a_later_layer_replaces() -> None:
    write("conf/base.yml", {"topics": {"payments": {"body": "json", "schema": {"properties": {"a": {}}}}}})
    later = write("my.yml", {"topics": {"payments": {"schema": {"type": "object", "properties": {}}}}})
    found = load(
        later,
        environ={"CHECKBACK__TOPICS__PAYMENTS__SUBJECT": "x", "CHECKBACK__TOPICS__payments__SCHEMA_REGISTRY": REGISTRY},
    )
    body = found.settings.topics["payments"]
    assert (body.body, body.schema_) == ("json", {"type": "object", "properties": {}})
    assert (body.subject, body.schema_registry) == ("x", REGISTRY)
    assert found.origin("topics.payments.schema") == "my.yml"


def test_a_registrys_password_is_masked_and_left_out_where_it_is_not_needed() -> None:
    registry = {"body": "json", "schema_registry": f"{REGISTRY}/", "user": "me", "password": "env:REGISTRY"}
    write("conf/base.yml", {"topics": {"payments": registry}})
    found = load(environ={"REGISTRY": PASSWORD})
    password = found.settings.topics["payments"].password
    assert password is not None
    assert password.get_secret_value() == PASSWORD
    assert PASSWORD not in repr(found)
    from checkback.settings import flatten

    flat = flatten(found.settings)
    assert flat["topics.payments.password"] == MASK
    assert flat["topics.payments.schema_registry"] == REGISTRY
    assert load(environ={}, unneeded=["topics"]).settings.topics["payments"].password is None
    assert "the environment variable REGISTRY is not set" in refusal({})
