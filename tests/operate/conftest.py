"""Fixtures of the operator actions' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from operate.fixtures import Lakehouse


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Empty tables."""
    return Lakehouse(tmp_path / "data")
