"""The settings of `push`: secrets stay secret, and are needed by `checkback push` alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from checkback.cli import main
from checkback.errors import SettingsError
from checkback.settings.loading import SECRETS_OF_OTHERS, load
from push.test_pushed_group import SECRET

if TYPE_CHECKING:
    from pathlib import Path

ABOUT = ["push.mail.topic=payments", "push.mail.url=https://example.com/?key=hidden"]


def test_shown_without_secrets(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKBACK__PUSH__MAIL__SECRET", SECRET)  # spelt as in --set: mail
    options = [word for each in ABOUT for word in ("--set", each)]
    assert main(["config", "show", "-o", "json", *options]) == 0
    out, _ = capfd.readouterr()
    assert "hidden" not in out
    assert SECRET not in out
    shown = json.loads(out)
    assert shown["push.mail.url"]["value"] == "https://example.com/****"  # some services have it in the path
    assert shown["push.mail.secret"] == {"value": "****", "origin": "CHECKBACK__PUSH__MAIL__SECRET"}
    assert shown["push.mail.concurrency"] == {"value": 32, "origin": "default"}


def test_a_secret_that_is_not_set_is_missed_by_push_alone(tmp_path: Path) -> None:
    file = tmp_path / "push.yml"
    file.write_text('push: {mail: {topic: payments, url: "https://example.com/", secret: "env:NOT_SET"}}')
    assert load(file, environ={}, unneeded=SECRETS_OF_OTHERS).settings.push["mail"].secret is None
    with pytest.raises(SettingsError, match="the environment variable NOT_SET is not set"):
        load(file, environ={})


def test_a_url_may_be_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "push.yml"
    file.write_text('push: {mail: {topic: payments, url: "env:HOOK"}, other: {topic: a, url: "https://example.com"}}')
    there = load(file, environ={"HOOK": "https://hooks.example.com/T0/hidden"}).settings.push
    assert there["mail"].url == "https://hooks.example.com/T0/hidden"
    assert list(load(file, environ={}, unneeded=SECRETS_OF_OTHERS).settings.push) == ["other"]
    with pytest.raises(SettingsError, match="the environment variable HOOK is not set"):
        load(file, environ={})


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("push.mail.secret=whsec_AAAA", "a secret in plain text is refused"),
        ("push.mail.urll=x", "did you mean push.mail.url?"),
        ("push.mail.batch=0", "must be at least 1"),
        ("push.mail.batch=1001", "must be at most 1000"),
        ("push.mail.mode=xml", "must be 'binary' or 'structured'"),
        ("push.mail.url=https://user:pass@example.com/", "has a user name or password"),
        ("push.a/b.url=x", "is not a consumer group's name"),
        ('push.mail.content_type="a\\r\\nb: c"', "is not a media type"),
    ],
)
def test_wrong_values(override: str, told: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(None, [*ABOUT, override], environ={})
    assert told in str(refused.value)
    assert "pass" not in str(refused.value).replace("password", "")
