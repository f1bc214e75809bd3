"""Fixtures of the operator actions' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from operate.fixtures import House


@pytest.fixture
def house(tmp_path: Path) -> House:
    """Empty tables."""
    return House(tmp_path / "data")
