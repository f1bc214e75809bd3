"""Markdown as the made pages write it."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a cell may hold any text of one line."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def prose(text: str) -> str:
    """The paragraphs of a docstring, wrapped as the pages are; double backquotes become single ones."""
    paragraphs = " ".join(text.replace("``", "`").split(" ")).split("\n\n")
    return "\n\n".join(
        textwrap.fill(" ".join(paragraph.split()), 120, break_long_words=False, break_on_hyphens=False)
        for paragraph in paragraphs
    )
