"""The pages that are made from the code are those in git."""

from __future__ import annotations

import pytest

from checkback.settings import Settings, flatten
from checkback.storage.schemas import SCHEMAS
from docs.pages import FOLDER, PAGES
from docs.settings_page import read_lines
from docs.tables_page import ABOUT


@pytest.mark.parametrize("name", PAGES)
def test_page_is_what_the_code_makes(name: str) -> None:
    written = (FOLDER / name).read_text(encoding="utf-8")
    assert written == PAGES[name](), f"docs/{name} is not what the code says: run `make docs`"


def test_every_setting_is_told_once() -> None:
    lines = (FOLDER / "settings.md").read_text(encoding="utf-8").splitlines()
    told = {line.split("`")[1].partition(":")[0] for line in lines if line.startswith("| `")}
    assert {key.rpartition(".")[2] for key in flatten(Settings()) if "." in key} <= told


def test_what_has_no_comment_belongs_to_the_key_above() -> None:
    base = "storage:   # here\n  catalog: null  # a name\n  schema: null\n#   orders:\n#     token: 'x#y'  # so\n"
    assert read_lines(base) == {
        "storage.catalog": ("null", "a name"),
        "storage.schema": ("null", "goes with catalog"),
        "producers.token": ("'x#y'", "so"),
    }


def test_every_table_has_its_words() -> None:
    assert {*ABOUT} == {*SCHEMAS, "topics/<topic>", "consumer_groups/<group>"}
