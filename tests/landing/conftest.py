"""A lakehouse and an inbox of its own for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from checkback.settings import Settings
from landing.fixtures import Lakehouse

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lakehouse:
    root = tmp_path / "data"
    settings = Settings.model_validate({"storage": {"root": str(root)}, "reconcile": {"trigger": "50ms"}})
    return Lakehouse(spark, root, settings)


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """A folder whose name is hard on globs and URIs."""
    folder = tmp_path / "in box [1] 100%"
    folder.mkdir()
    return folder
