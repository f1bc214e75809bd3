"""The Markdown of the project: its pages, their code blocks, code in their text, links and headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
#: `<!-- not run: REASON -->` before a block: it is not, and why.
_MARK = re.compile(r"<!-- not run: (.+?) -->", re.DOTALL)
_COMMENT = re.compile(r"(?:^|\s+)#.*")


@dataclass(frozen=True)
class Block:
    """A code block. ``line`` is its first; ``not_run`` says why it cannot be run, None = it can."""

    page: str
    line: int
    heading: str
    language: str
    text: str
    not_run: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def needs_spark(self) -> bool:
        """Is it Python that is given `spark` (and `settings`)?"""
        return re.search(r"\bspark\b", self.text) is not None

    def lines(self) -> list[str]:
        """Its lines without comments; one that ends with a backslash goes on, and so does an open quote."""
        found, open_line = [], ""
        for line in self.text.splitlines():
            open_line += _COMMENT.sub("", line)  # which may have an apostrophe
            if open_line.endswith("\\"):
                open_line = open_line[:-1]
            elif open_line.count("'") % 2:
                open_line += "\n"
            else:
                if text := open_line.strip():
                    found.append(text)
                open_line = ""
        assert not open_line, f"{self}: a quote stays open"
        return found


@dataclass(frozen=True)
class Page:
    """A page, as it is named from the root of the project."""

    name: str
    blocks: Sequence[Block]
    code: Sequence[str]
    links: Sequence[str]
    anchors: frozenset[str]


@cache
def pages() -> Sequence[Page]:
    """README, CHANGELOG and docs/."""
    found = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [read_page(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in found]


def blocks(*languages: str) -> list[Block]:
    """The blocks of these languages that can be run, of all pages."""
    return [block for page in pages() for block in page.blocks if block.language in languages and block.not_run is None]


def read_page(name: str, text: str) -> Page:
    """A page from its text."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inline = [child for token in tokens for child in token.children or ()]
    titles = [heading for token, heading in _with_heading(tokens) if token.type == "heading_open"]
    return Page(
        name,
        list(_blocks(name, tokens)),
        [child.content for child in inline if child.type == "code_inline"],
        [
            str(child.attrs.get("href") or child.attrs["src"])
            for child in inline
            if child.type in {"link_open", "image"}
        ],
        frozenset(anchor_of(title) for title in titles),
    )


def anchor_of(title: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _with_heading(tokens: Sequence[Token]) -> Iterator[tuple[Token, str]]:
    """Each token with the heading that it stands under."""
    heading = ""
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open" and following is not None:
            heading = following.content
        yield token, heading


def _blocks(page: str, tokens: Sequence[Token]) -> Iterator[Block]:
    not_run = None
    for token, heading in _with_heading(tokens):
        if token.type == "html_block":
            mark = _MARK.fullmatch(token.content.strip())
            not_run = None if mark is None else " ".join(mark[1].split())
        elif token.type == "fence":
            line = (token.map or [0])[0] + 2
            yield Block(page, line, heading, token.info.strip(), token.content, not_run)
            not_run = None
        elif token.type == "inline":
            not_run = None
