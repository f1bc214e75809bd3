"""Tables that the pages are shown of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dashboard import hostile

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of tables with hostile messages."""
    root = tmp_path_factory.mktemp("tables")
    hostile.build(root)
    return root
