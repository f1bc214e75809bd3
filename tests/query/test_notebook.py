"""Which tables a notebook looks at."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from checkback.errors import SettingsError
from checkback.query import notebook_settings
from examples.bank.run import settings_of


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone, in whose notebooks the working folder is."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/base.yml").write_text("storage: {root: ./data}\n")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    return tmp_path


def test_the_examples_by_default(project: Path) -> None:
    """With its times and endpoints; its secret was known to itself only."""
    with pytest.raises(SettingsError, match="there are no tables yet; `make run`"):
        notebook_settings()
    (project / "data/bank").mkdir(parents=True)
    (project / "data/bank/checkback.yml").write_text(yaml.safe_dump(settings_of("/elsewhere/data", 1, 2)))
    settings = notebook_settings(overrides=["check.concurrency=3"])
    assert settings.storage.root == str(project / "data/bank/data")
    assert settings.transaction.timeout.total_seconds() == 4
    assert settings.producers["accounts"].endpoints == ["http://127.0.0.1:2/check"]
    assert settings.producers["accounts"].secret is None
    assert settings.check.concurrency == 3


def test_others_by_environment_file_and_override(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative folder is one in the project, wherever the notebook is."""
    assert notebook_settings(overrides=["storage.root=s3://bucket/t"]).storage.root == "s3://bucket/t"
    (project / "my.yml").write_text("storage: {root: mine}\n")
    assert notebook_settings(project / "my.yml").storage.root == str(project / "mine")
    monkeypatch.setenv("CHECKBACK__STORAGE__ROOT", "theirs")
    assert notebook_settings().storage.root == str(project / "theirs")
