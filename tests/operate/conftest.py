"""Fixtures of the operator actions' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from operate.fixtures import Lakehouse


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Empty tables, for copies."""
    return Lakehouse(tmp_path_factory.mktemp("empty") / "data")


@pytest.fixture
def lake(empty: Lakehouse, tmp_path: Path) -> Lakehouse:
    """Empty tables."""
    return empty.copied(tmp_path / "data")
