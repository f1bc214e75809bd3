"""`make docs`: write the pages that are made from the code."""

from __future__ import annotations

from docs.pages import FOLDER, PAGES

for name, page in PAGES.items():
    (FOLDER / name).write_text(page(), encoding="utf-8")
    print(f"docs/{name}")
