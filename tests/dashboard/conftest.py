"""Tables that the pages are shown of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dashboard import hostile, incident

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of tables with hostile messages."""
    root = tmp_path_factory.mktemp("tables")
    hostile.build(root)
    return root


@pytest.fixture(scope="module")
def evening(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, datetime]:
    """The folder of the tables of an incident, and when that was. Nothing is written to it."""
    root = tmp_path_factory.mktemp("evening")
    return root, incident.build(root)


@pytest.fixture
def this_evening(tmp_path: Path) -> tuple[Path, datetime]:
    """`evening`, of just now: for tests that look back a few minutes, however long those before have taken."""
    root = tmp_path / "evening"
    root.mkdir()
    return root, incident.build(root)
