"""Object stores beside the local folder: the same tests run over all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from checkback.settings import Storage
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["folder", "s3", "adls"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    """Tables in a local folder, and in object stores."""
    if request.param == "folder":
        return Tables.of(Storage.model_validate({"root": str(tmp_path)}))
    found: Tables = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["s3", "adls"])
def store(request: pytest.FixtureRequest) -> Tables:
    """Tables in each kind of object store."""
    found: Tables = request.getfixturevalue(request.param)
    return found
