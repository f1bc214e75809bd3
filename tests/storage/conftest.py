"""An object store beside the local folder: the same tests run over both."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from checkback.settings import Storage
from checkback.storage.tables import Tables
from support.s3_server import BUCKET, options

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def s3(s3_port: int) -> Tables:
    """Tables in a new place of an object store."""
    root = f"s3a://{BUCKET}/{uuid.uuid4().hex}"
    return Tables.of(Storage.model_validate({"root": root, "options": options(s3_port)}))


@pytest.fixture(params=["folder", "s3"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    """Tables in a local folder, and in an object store."""
    if request.param == "folder":
        return Tables.of(Storage.model_validate({"root": str(tmp_path)}))
    found: Tables = request.getfixturevalue("s3")
    return found
