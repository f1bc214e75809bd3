"""The pages that are made from the code, and what they share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from docs import architecture_page, settings_page, tables_page

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FOLDER = Path(__file__).parents[2] / "docs"
PAGES: Mapping[str, Callable[[], str]] = {
    "architecture.md": architecture_page.page,
    "settings.md": settings_page.page,
    "tables.md": tables_page.page,
}
