"""An object store beside the local folder: the same tests run over both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from checkback.settings import Storage
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["folder", "s3"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    """Tables in a local folder, and in an object store."""
    if request.param == "folder":
        return Tables.of(Storage.model_validate({"root": str(tmp_path)}))
    found: Tables = request.getfixturevalue("s3")
    return found
