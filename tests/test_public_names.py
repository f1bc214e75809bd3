"""What people import: `checkback`, `checkback.producer`, `checkback.consumer`, and `checkback.plots` in notebooks."""

from __future__ import annotations

import ast
import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from docs.blocks import ROOT, pages

if TYPE_CHECKING:
    from collections.abc import Iterator

PUBLIC = ("checkback", "checkback.producer", "checkback.consumer", "checkback.plots")
#: programs of a service that people copy; the other examples run the application itself
_EXAMPLES = ("producer.py", "bank/accounts.py", "bank/credits.py")


def _sources() -> Iterator[tuple[str, str]]:
    """Python that users read: of the pages, the notebooks and the examples."""
    for page in pages():
        for block in page.blocks:
            if block.language == "python":
                yield str(block), block.text
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                yield f"{notebook.name} {cell['id']}", "".join(cell["source"])
    for example in _EXAMPLES:
        yield example, (ROOT / "examples" / example).read_text("utf-8")


def _imported(text: str) -> Iterator[tuple[str, str]]:
    """Module and name of each import from the package; a module that is imported whole has no name."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "checkback":
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.partition(".")[0] == "checkback")


def test_what_users_read_imports_public_names_only() -> None:
    sources = list(_sources())
    found = {(module, name): where for where, text in sources for module, name in _imported(text)}
    assert {module for module, _ in found} >= {"checkback", "checkback.producer", "checkback.consumer"}
    private = {
        where: f"{module}: {name}"
        for (module, name), where in found.items()
        if module not in PUBLIC or (name and f"{module}.{name}" not in PUBLIC and name not in _all(module))
    }
    assert not private


@pytest.mark.parametrize("module", PUBLIC)
def test_all_public_names_are_there(module: str) -> None:
    names = _all(module)
    assert [name for name in names if getattr(import_module(module), name, None) is None] == []


def _all(module: str) -> list[str]:
    found: list[str] = import_module(module).__all__
    return found


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    for module in PUBLIC[:3]:
        with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nothing'"):
            import_module(module).nothing  # noqa: B018
    assert Path(import_module("checkback").__file__ or "").parent == ROOT / "lib/checkback"
