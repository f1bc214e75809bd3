"""Processes in which only those packages are importable that `pip install checkback[EXTRAS]` brings."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_PROJECT = Path(__file__).parents[2] / "pyproject.toml"
#: Python imports it at its start.
_SITE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def brought_by(*extras: str) -> set[str]:
    """Names of the distributions that an installation with these extras has, at the versions installed here."""
    found: set[str] = set()
    pending = [Requirement(text) for text in _requirements("")]
    pending += [Requirement(f"checkback[{','.join(extras)}]")] if extras else []
    seen: set[tuple[str, str]] = set()
    while pending:
        wanted = pending.pop()
        name = canonicalize_name(wanted.name)
        for extra in ("", *wanted.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            found.add(name)
            pending += _of(name, extra)
    return found - {"checkback"}


def environ(folder: Path, *extras: str) -> dict[str, str]:
    """The environment of such a process; ``folder``: a new one, for a module of it."""
    brought = brought_by(*extras) | {"checkback"}
    others = {
        module
        for module, owners in packages_distributions().items()
        if not brought.intersection(map(canonicalize_name, owners))
    }
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_SITE.format(missing=sorted(others)))
    return {"PYTHONPATH": str(folder)}


def _of(name: str, extra: str) -> list[Requirement]:
    if name == "checkback":
        return [Requirement(text) for text in _requirements(extra)]
    try:
        texts = requires(name) or []
    except PackageNotFoundError:  # not on this machine: of another Python or system
        return []
    found = [Requirement(text) for text in texts]
    return [one for one in found if one.marker is None or one.marker.evaluate({"extra": extra})]


@cache
def _requirements(extra: str) -> list[str]:
    """Those of the project: what is installed here may be of an older pyproject.toml. Python 3.10 has no tomllib."""
    name = extra or "dependencies"
    (section,) = re.findall(rf"^{name} = \[.*?^\]", _PROJECT.read_text(), re.DOTALL | re.MULTILINE)
    return re.findall(r'^ +"([^"]+)"', section, re.MULTILINE)
