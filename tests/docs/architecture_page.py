"""docs/architecture.md begins with a picture of the rooms: drawn from the imports."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import grimp

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "architecture.md"
_PACKAGE = "checkback"
_BEGIN, _END = "<!-- rooms: made by `make docs` -->", "<!-- end of rooms -->"


def page() -> str:
    """The page with the picture as the code has it."""
    before, _, rest = _PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    return f"{before}{_BEGIN}\n{_picture()}\n\n{_within()}\n{_END}{rest.partition(_END)[2]}"


def _picture() -> str:
    """A flowchart in Mermaid, which GitHub and most editors draw. An arrow: imports; implied ones are left out."""
    edges = rooms()
    needed = {room: {below for below in found if not _implied(edges, room, below)} for room, found in edges.items()}
    lines = ["```mermaid", "flowchart TD"]
    lines += [f'    {room}["<b>{room}</b><br/>{_about(room)}"]' for room in sorted(edges)]
    lines += [f"    {room} --> {' & '.join(sorted(found))}" for room, found in sorted(needed.items()) if found]
    return "\n".join([*lines, "```"])


def _within() -> str:
    """A table of the packages within the large ones."""
    lib = _ROOT / "lib" / _PACKAGE
    found = sorted(str(file.parent.relative_to(lib)) for file in lib.glob("*/*/__init__.py"))
    return "\n".join(["| within | |", "|---|---|", *(f"| `{place}/` | {_about(place)} |" for place in found)])


def rooms() -> dict[str, set[str]]:
    """What each room, or file at the root of the package, imports of the others; also late, and for type checking."""
    graph = grimp.build_graph(_PACKAGE, cache_dir=None)
    counts = Counter[tuple[str, str]]()
    names = {module.split(".")[1] for module in graph.modules if "." in module} - {"__main__"}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            if "." in module and "." in imported:
                counts[module.split(".")[1], imported.split(".")[1]] += 1
    return {name: {below for above, below in counts if above == name and below != name} for name in names}


def _implied(edges: dict[str, set[str]], room: str, below: str) -> bool:
    """Is there a longer way?"""
    return any(below in _reached(edges, via) for via in edges[room] if via != below)


def _reached(edges: dict[str, set[str]], room: str) -> set[str]:
    return edges[room].union(*(_reached(edges, below) for below in edges[room]))


def _about(room: str) -> str:
    """The first sentence of its docstring."""
    place = _ROOT / "lib" / _PACKAGE / room
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    first = text.split("\n\n")[0].replace("\n", " ").partition(". ")[0]
    return first.rstrip(".").replace('"', "'").replace("`", "")
