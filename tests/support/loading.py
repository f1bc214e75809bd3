"""Settings from files, and what is said of those that are refused."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml

from checkback.errors import SettingsError
from checkback.settings.loading import load

ROOT = Path(__file__).parents[2]
SECRET = "whsec_" + base64.b64encode(b"a key that nobody may see").decode()


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
